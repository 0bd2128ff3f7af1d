"""Boxes at Modal. Its SDK (extra `modal`) is imported when the first box starts, and nowhere but in vendor.py."""

from .config import ModalConfig as ModalConfig
from .runtime import ModalRuntime as ModalRuntime
