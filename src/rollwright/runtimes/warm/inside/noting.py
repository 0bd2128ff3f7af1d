# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""What stands in, while something is loaded, for the things that tell of a single call: its variables, words, streams,
directory and program. They note who looks, and are what they stand for in all else. See watching.py."""

import _frozen_importlib as importing
import os
import sys
import types

LOADED_AS = "__rollwright_warm__"
"""The name of a script that is loaded as a module."""
_PLAIN = frozenset(("__name__", "__file__", "__spec__", "__loader__", "__package__", "__cached__", "__class__"))
_OF_ALL = frozenset(("__dict__", "__doc__", "__annotations__"))
# Modules that many scripts import, and what they keep of where they are imported.
_PUT_RIGHT = {
    "multiprocessing.process": ("ORIGINAL_DIR", lambda module: os.getcwd()),
    "rich": ("_IMPORT_CWD", lambda module: os.getcwd()),
    "urllib3.util.connection": ("HAS_IPV6", lambda module: module._has_ipv6("::1")),
}

notes = []
"""Why what is loaded now makes a child differ from a cold run."""
loading = []
"""Not empty while something is loaded; whoever keeps one of these beyond that has the thing itself."""
about = ["", frozenset()]
"""For whom: the script's path, and the names that it uses."""


def note(why):
    """Something was seen that a child would not do as a cold run does."""
    notes.append(why)


class Variables(dict):
    """The environment's own store while the script is loaded: it notes the names that are looked at, since a module
    which has read a variable of this process would go on with it in a box where it has another value."""

    seen = set()

    def __getitem__(self, key):
        self.seen.add(key)
        return dict.__getitem__(self, key)

    def __contains__(self, key):
        self.seen.add(key)
        return dict.__contains__(self, key)

    def __iter__(self):
        self.seen.update(dict.keys(self))
        self.seen.add(b"*")
        return dict.__iter__(self)


class Words(types.ModuleType):
    """What `sys` is while something is loaded: it notes that somebody looks at the words of a call."""

    def __getattr__(self, name):
        if name != "argv":
            raise AttributeError(f"module 'sys' has no attribute {name!r}")
        if _imported(sys._getframe(1)):
            note("argv")
        return about[:1]


def _imported(frame):
    """Whether a module that is being imported asks, and not the script, which will ask again."""
    while frame is not None:
        if frame.f_globals is importing.__dict__:
            return True
        frame = frame.f_back
    return False


class Speech:
    """Stands in for the `write` of a stream while something is loaded. What the script itself says it will say again
    when it is run; a library may say a thing but once in a process."""

    def __init__(self, stream):
        self.write = stream.write

    def __call__(self, text):
        if not loading or not isinstance(text, str):
            return self.write(text)
        if not own(sys._getframe(1)):
            note("said")
        return len(text)


def own(frame):
    """Whether it is the script, itself or through the standard library."""
    while frame is not None:
        names = frame.f_globals
        name = names.get("__name__") or ""
        if name == LOADED_AS:
            return True
        if names is importing.__dict__ or name.partition(".")[0] not in sys.stdlib_module_names:
            return False
        frame = frame.f_back
    return False


class Look:
    """Stands in for a function of `os` that looks at a place which may be relative to where a call is. Whoever keeps it
    has the function itself in all but name, also in the sets that `os` has of its functions."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args, **kwargs):
        if (
            loading
            and (not args or relative(args[0]))
            and not (kwargs.get("dir_fd") or put_right_later(sys._getframe(1)))
        ):
            note("cwd")
        return self.function(*args, **kwargs)

    def __eq__(self, other):
        return other is self or other == self.function

    def __hash__(self):
        return hash(self.function)


def put_right_later(frame):
    """Whether a well-known module asks what it keeps: each child asks again for it."""
    return frame.f_globals.get("__name__") in _PUT_RIGHT


def put_right():
    """In a child that has its seat: what these modules would have found when they were imported there."""
    for name, (kept, find) in _PUT_RIGHT.items():
        module = sys.modules.get(name)
        if hasattr(module, kept):
            setattr(module, kept, find(module))


def relative(path):
    """Names of code that lies in no file are none of a place."""
    if isinstance(path, int):
        return False
    path = os.fsdecode(path)
    return not path.startswith(("/", "<"))


class Program(types.ModuleType):
    """What `__main__` is while something is loaded: a script that has not begun. It notes that somebody looks for what
    is there once it has."""

    def __getattribute__(self, name):
        if name in _OF_ALL or (name in about[1] and name not in _PLAIN):
            note("__main__")
        return types.ModuleType.__getattribute__(self, name)
