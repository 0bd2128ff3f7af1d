"""Boxes at Modal. Its SDK (extra `modal`) is imported when the first box starts, by vendor.py and nowhere else."""

from .config import ModalConfig as ModalConfig
