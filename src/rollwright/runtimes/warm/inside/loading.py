# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""A script as a zygote has it: its imports done, warmed up, and ready to be run as `__main__` in a child.

A `warmup` that yields is run to its first `yield` while the script is loaded. The rest is done later, one step at a
time, when nobody waits for an answer or when calls have paid for its lack: see `Server` in zygote.py. Whatever is
loaded is watched for what would make a child differ from a cold run: variables that it reads or sets, threads that it
starts, and what it registers for the end of the process.
"""

import ast
import contextlib
import gc
import hashlib
import importlib.machinery
import itertools
import os
import sys
import types

import ending
import forking

# Nearly all that is loaded stays: to look for garbage all the while takes a twentieth of the time, and finds little.
_SELDOM = (1_000_000, 10, 10)
_LOADED_AS = "__rollwright_warm__"
_MARK = "ROLLWRIGHT_BOX"
_OURS = ("child", "ending", "forking", "loading", "paging", "seating", "worker", "zygote")


class Refused(Exception):
    """This script is not to be run warm; the message says why."""


class Script:
    """The script as it was when this process began."""

    def __init__(self, path, digest):
        with open(path, "rb") as file:
            source = file.read()
        if hashlib.sha256(source).hexdigest() != digest:
            raise Refused("changed")
        self.path = path
        self.source = source
        try:
            self.code = compile(source, path, "exec", dont_inherit=True)
            self.tree = ast.parse(source)
        except (SyntaxError, ValueError):
            raise Refused("syntax") from None
        self.names = _names(path)
        self.kept = None
        self.steps = None
        """What is left of a warmup that yields."""
        self.late = {}
        """Variables that were read after the host was told which are, with their values here; None for all others."""

    def load(self):
        """Import what its top level imports, and begin its warmup. What fails here fails in the child as it does
        cold."""
        with _watched():
            for statement in _imports(self.tree.body):
                try:
                    _import(statement)
                except Exception:  # The child meets the same failure at the same line, and tells it in its own words.
                    continue
            if any(isinstance(part, ast.FunctionDef) and part.name == "warmup" for part in self.tree.body):
                self._warm_up(self._begin)

    def go_on(self):
        """One more step of the warmup. Refused where no call can be answered here after it."""
        known = set(Variables.seen)
        with _watched():
            self._warm_up(self._step)
        for name in Variables.seen - known:
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
            exec(self.code, module.__dict__)
            self.kept = module  # Its end would run finalizers, which no cold run has run at this point.
        return self.kept

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


def _imports(body):
    for part in body:
        if isinstance(part, (ast.Import, ast.ImportFrom)):
            yield part
        elif isinstance(part, ast.Try):
            yield from _imports(part.body)


def _import(statement):
    if isinstance(statement, ast.Import):
        for name in statement.names:
            importlib.import_module(name.name)
    elif statement.module and not statement.level and statement.module != "__future__":
        module = importlib.import_module(statement.module)
        for name in statement.names:
            if name.name != "*" and not hasattr(module, name.name):
                importlib.import_module(f"{statement.module}.{name.name}")


def _check_neighbours(directory, at_start):
    """A file beside the script that is named like a module we use would be found first by a cold run."""
    ours = {name.partition(".")[0] for name in set(sys.modules) - at_start}
    beside = {name.partition(".")[0] for name in os.listdir(directory)}
    if ours & beside:
        raise Refused("shadows")


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


@contextlib.contextmanager
def _watched():
    """While something is loaded. Refused where it left threads or other variables behind."""
    own = os.environ._data
    os.environ._data = Variables(own)
    before = dict(os.environ._data.items())
    usual = gc.get_threshold()
    gc.set_threshold(*_SELDOM)
    forking.begin_notes()
    try:
        yield
    finally:
        forking.end_notes()
        gc.freeze()  # Or the usual thresholds would have all of it looked through at once.
        if gc.get_threshold() == _SELDOM:  # Else a library chose its own, which a cold run would have, too.
            gc.set_threshold(*usual)
        changed = dict(os.environ._data.items()) != before
        os.environ._data = dict(os.environ._data.items())
    if len(os.listdir("/proc/self/task")) > 1:
        raise Refused("threads")
    if changed:
        raise Refused("environment")


def load(path, digest, at_start, *, whole=False):
    """The script, loaded. `at_start` are the modules that a cold interpreter has loaded before its script, too; `whole`
    leaves no step of its warmup for later."""
    directory = os.path.dirname(path)
    _check_neighbours(directory, at_start)
    forking.suspect(at_start)
    script = Script(path, digest)
    sys.path[0] = directory
    for ours in _OURS:
        del sys.modules[ours]
    script.load()
    while whole and script.steps is not None:
        script.go_on()
    script.late.clear()
    return script


def known():
    """What the host has to know: the variables that were read, and loaded files that are not part of the interpreter
    or its packages, which it watches for changes."""
    return {"reads": sorted(os.fsdecode(name) for name in Variables.seen), "files": _files()}


def _files():
    roots = (sys.prefix + os.sep, sys.base_prefix + os.sep, os.path.dirname(os.__file__) + os.sep)
    found = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    own = os.path.dirname(os.path.abspath(__file__)) + os.sep
    roots += (own,)
    return sorted({f for f in found if isinstance(f, str) and os.path.isabs(f) and not f.startswith(roots)})
