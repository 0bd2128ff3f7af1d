"""A made-up vocabulary with the control strings of a real format: small, offline, enough for structure and seams."""

from rollwright.renderers import load_engine
from rollwright.renderers.contract import RenderOptions
from rollwright.renderers.families.qwen import QWEN3
from rollwright.renderers.pool import RendererPool
from rollwright.renderers.ranks import byte_vocabulary
from rollwright.renderers.render import TableRenderer

CONTROLS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
WORDS = ("th", "the", " the", "in", "ing", "is", " is", "he", "er", "\n\n", "ab", "abc", " a")
VOCABULARY = byte_vocabulary(CONTROLS, WORDS)


def engine():
    return load_engine(VOCABULARY)


def renderer(**options):
    return TableRenderer(QWEN3, engine(), RenderOptions(**options))


def pool(size=2, **options):
    return RendererPool(lambda: renderer(**options), size=size)
