"""Which of several processes runs a test, and which tests begin. Activated in conftest: `pytest_plugins = ["sharing"]`.

The processes take single tests as they become free, except for tests that need the same costly thing: those are one
unit, and one process runs it. What waits longest begins, beside what computes, and short tests are left for the end:
then no process is still busy with a long one when the others have finished.
"""

import re

import pytest

VOCABULARIES = re.compile(r"gemma3|gptoss|llama|deepseek|mistral|qwen2|qwen3_[568]|qwen|nemotron")
"""As names of cases tell them. Loading one takes a second or two, in each process that asks for it."""

VENDORS = re.compile(r"runtimes/(modal|prime)/|[\[-](modal|prime)\b")
"""Their SDKs and the machines that play them take seconds to begin, too."""

SDKS = re.compile(r"sdk|vendors_clients|official_client|tests/intercept/test_(each_dialect|counting)\.py")
"""Importing those of models takes as long."""

FIRST = ("engine", "vendor", "tests/e2e/", "tests/serve/", "vocabulary")


def unit(nodeid):
    """The tests of a unit run in one process, one after another."""
    if "runtimes/docker/" in nodeid or "[docker]" in nodeid:
        return "engine of containers"
    if found := VENDORS.search(nodeid):
        return f"vendor {found[1] or found[2]}"
    if SDKS.search(nodeid):
        return "vendors of models"
    if "tests/renderers/" in nodeid:
        found = VOCABULARIES.search(nodeid.lower())
        # Tests without a case take the vocabulary that most cases have.
        name = found[0] if found else "" if "[" in nodeid else "qwen"
        return f"vocabulary {name.replace('nemotron', 'qwen')}" if name else nodeid
    return nodeid


def rank(nodeid):
    return next((at for at, start in enumerate(FIRST) if unit(nodeid).startswith(start)), len(FIRST))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    # Every process sorts alike. A single one keeps the order of the files.
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return unit(nodeid)

    # In the order of the collection, and not the largest units first.
    config.option.loadscopereorder = False
    return Units(config, log)
