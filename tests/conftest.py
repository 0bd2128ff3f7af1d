"""Fixtures and settings that every room shares."""

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

# A shared machine is slow now and then, and that is no defect of the code under test.
settings.register_profile("rollwright", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rollwright")
