"""A real browser as tools (extra `browser`): the model sees screenshots and clicks, types and scrolls in them."""

from .places import find_chromium as find_chromium
from .toolset import BrowserToolset as BrowserToolset
