# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""A script as a zygote has it: its imports done, warmed up, and ready to be run as `__main__` in a child.

A `warmup` that yields is run to its first `yield` while the script is loaded. The rest is done later, one step at a
time, when nobody waits for an answer or when calls have paid for its lack: see `Server` in zygote.py. Whatever is
loaded is watched for what would make a child differ from a cold run: see watching.py.
"""

import ast
import contextlib
import gc
import hashlib
import importlib.machinery
import io
import itertools
import json
import os
import sys
import types

import ending
import forking
import imports
import noting
import watching

Refused = watching.Refused
_LOADED_AS = noting.LOADED_AS
_MARK = "ROLLWRIGHT_BOX"
_MOST_TOLD = 60_000
_OURS = ("child", "ending", "forking", "imports", "loading", "noting", "paging")
_OURS += ("seating", "watching", "worker", "zygote")


class Script:
    """The script as it was when this process began."""

    def __init__(self, path, digest):
        with open(path, "rb") as file:
            source = file.read()
        if hashlib.sha256(source).hexdigest() != digest:
            raise Refused("changed")
        self.path = path
        self.source = source
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                self._code = compile(source, path, "exec", dont_inherit=True)
                self.remarks = said.getvalue()
                self.tree = ast.parse(source)
            except (SyntaxError, ValueError):
                raise Refused("syntax") from None
        self.names = _names(path)
        if not self.remarks:
            self.code = self._code
        self.kept = None
        self.steps = None
        """What is left of a warmup that yields."""
        self.late = {}
        """Variables that were read after the host was told which are, with their values here; None for all others."""

    def __getattr__(self, name):
        """`code` of a script that the compiler warns of, for whoever runs it as a program. That is said first, as in a
        cold run: before anything could change how warnings are told."""
        if name != "code":
            raise AttributeError(name)
        with contextlib.suppress(Exception):
            sys.stderr.write(self.remarks)
        return self._code

    def load(self):
        """Import what its top level imports first, and begin its warmup."""
        with self._watched():
            watching.begin_imports()
            imports.import_first(self.tree.body)
            watching.end_imports()
            if any(isinstance(part, ast.FunctionDef) and part.name == "warmup" for part in self.tree.body):
                self._warm_up(self._begin)

    def go_on(self):
        """One more step of the warmup. Refused where no call can be answered here after it."""
        known = set(noting.Variables.seen)
        with self._watched():
            self._warm_up(self._step)
        for name in noting.Variables.seen - known:
            self.late[os.fsdecode(name)] = os.environ.get(os.fsdecode(name))

    def suits(self, env):
        """Whether later steps would have read the same in a process with these variables; the host knows the rest."""
        if not self.late:
            return True
        if "*" in self.late:
            return {**os.environ, _MARK: ""} == {**env, _MARK: ""}
        return all(env.get(name) == value for name, value in self.late.items())

    def module(self):
        """The script as a module whose functions can be called, not as a program; the same one each time."""
        if self.kept is None:
            module = types.ModuleType(_LOADED_AS)
            module.__file__ = self.path
            sys.modules[_LOADED_AS] = module
            exec(self._code, module.__dict__)
            self.kept = module  # Its end would run finalizers, which no cold run has run at this point.
        return self.kept

    def _watched(self):
        return watching.watched(self.path, self._code.co_names)

    def _begin(self):
        begun = self.module().warmup()
        if isinstance(begun, types.GeneratorType):
            self.steps = begun
            self._step()

    def _step(self):
        try:
            next(self.steps)
        except StopIteration:
            self.steps = None

    def _warm_up(self, part):
        register = ending.note_registrations()
        if self.kept is not None:
            sys.modules[_LOADED_AS] = self.kept
        try:
            part()
        except BaseException as error:
            self.steps = None
            raise Refused(f"warmup: {type(error).__name__}") from error
        finally:
            ending.forget_registrations(register, sys.modules.pop(_LOADED_AS))

    def become_main(self, argv):
        """Let this process be a program that has not begun yet: what is left is to run `code` in `__main__`."""
        sys.modules["__main__"] = _module(self.names)
        gc.collect(0)  # In a cold run it is older than what the script makes, and comes after that in a collection.
        sys.argv = [self.path, *argv]
        sys.orig_argv = [sys.orig_argv[0], self.path, *argv]


def _module(names):
    main = types.ModuleType("__main__")
    main.__dict__.update(names)
    if "__annotations__" in names:
        main.__annotations__ = {}
    return main


def rehearse():
    _module({"__annotations__": None})


def _names(path):
    """What a cold interpreter puts into `__main__` before it runs a script, in its order: the zygote is one as well."""
    own = vars(sys.modules["__main__"])
    names = {name: own[name] for name in itertools.takewhile(lambda name: name[:2] == "__", own)}
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    return {**names, "__doc__": None, "__file__": path, "__loader__": loader}


def _check_neighbours(directory, at_start):
    """A file beside the script that is named like a module we use would be found first by a cold run."""
    ours = {name.partition(".")[0] for name in set(sys.modules) - at_start}
    beside = {name.partition(".")[0] for name in os.listdir(directory)}
    if ours & beside:
        raise Refused("shadows")


def load(path, digest, at_start, *, whole=False):
    """The script, loaded. `at_start` are the modules that a cold interpreter has loaded before its script, too; `whole`
    leaves no step of its warmup for later."""
    directory = os.path.dirname(path)
    script = Script(path, digest)
    _check_neighbours(directory, at_start)
    forking.suspect(at_start)
    sys.path[0] = directory
    for ours in _OURS:
        del sys.modules[ours]
    script.load()
    while whole and script.steps is not None:
        script.go_on()
    script.late.clear()
    return script


def known():
    """What the host has to know, as JSON: the variables that were read; files that were loaded or read and are not part
    of the interpreter or its packages, which it watches for changes; and the modules that a new file beside the script
    could hide."""
    reads = sorted(os.fsdecode(name) for name in noting.Variables.seen)
    names = sorted({name.partition(".")[0] for name in sys.modules} - set(sys.builtin_module_names))
    told = json.dumps({"reads": reads, "files": _files(), "names": names}).encode()
    if len(told) > _MOST_TOLD:
        raise Refused("files")
    return told


def _files():
    found = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    loaded = {file for file in found if isinstance(file, str) and os.path.isabs(file)}
    roots = watching.roots()
    return sorted(file for file in loaded | watching.opened if not file.startswith(roots))
