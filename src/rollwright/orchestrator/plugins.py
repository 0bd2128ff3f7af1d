"""Code of the user's that is named in settings as `module:name`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from rollwright.wire import UsageError
from rollwright.wire.hints import hint


def load_plugin(path: str, what: str) -> Callable[..., Any]:
    """What `path` names. UsageError if there is nothing of the kind; `what` is what it was wanted for."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise UsageError(f"{what} {path!r} is not of the form 'module:name'")
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # The border to the author's code.
        raise UsageError(f"{what} {path!r} could not be imported: {type(error).__name__}: {error}") from error
    plugin = getattr(found, name, None)
    if not callable(plugin):
        known = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"{what} {path!r}: {module} has no function or class {name!r}; {hint(name, known)}")
    made: Callable[..., Any] = plugin
    return made
