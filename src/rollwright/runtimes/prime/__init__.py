"""Boxes at Prime Intellect. The vendor's SDK is imported when the first box is made, and only in this folder."""

from .config import PrimeConfig as PrimeConfig
