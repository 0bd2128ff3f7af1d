"""The vendors' SDKs, imported when a test first uses one: together they take seconds, and every process collects all
tests but runs a share of them. Tests that use these run in one process (`sharing`)."""

import importlib
import importlib.metadata

import pytest


class Sdk:
    """A package whose names are looked up when they are asked for: `openai.AsyncOpenAI`."""

    def __init__(self, package):
        self._package = package

    def __getattr__(self, name):
        # Whoever collects tests asks everything in their modules for marks.
        if name.startswith("_") or name == "pytestmark":
            raise AttributeError(name)
        return getattr(importlib.import_module(self._package), name)


def _major(package):
    try:
        return int(importlib.metadata.version(package).split(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return -1


anthropic = Sdk("anthropic")
openai = Sdk("openai")
mcp = Sdk("mcp")
pydantic = Sdk("pydantic")
needs_mcp = pytest.mark.skipif(_major("mcp") < 2, reason="the mcp SDK (2.0 or later) is missing")
