"""Scripts that are loaded once and answer many times: forked per call, or shared by choice."""

from .keeper import Care as Care
from .keeper import Keeper as Keeper
from .keeper import keeper as keeper
from .seat import Seat as Seat
from .seat import Seats as Seats
from .seat import Starter as Starter
from .stats import WarmStats as WarmStats
from .stats import stats as stats
