# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""Which imports of a script can be done before it is run: those that nothing stands before.

A statement before an import may decide what is imported, from where, and how it is configured. So the first one that
does more than to name things ends it, and the rest is imported when the script is run.
"""

import ast
import importlib

from watching import Refused

_VALUES = (ast.Constant, ast.Name, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.Starred)
_PARTS = (ast.expr_context, ast.operator, ast.unaryop)


class _Missing(Exception):
    """There is no such module, and nothing was done to find that out."""


def import_first(body):
    """Do the imports that `body`, the top of a script, begins with; whether all of it was harmless."""
    try:
        return all(_done(part) for part in body)
    except _Missing:
        return False


def _done(part):
    """Do what `part` imports, and say whether what follows it may be looked at."""
    if isinstance(part, (ast.Import, ast.ImportFrom)):
        _import(part)
        return True
    if isinstance(part, ast.Try):
        return _done_try(part)
    return _harmless(part)


def _done_try(part):
    """Modules that may be missing, and what is imported in their stead."""
    if part.finalbody or part.orelse or len(part.handlers) != 1:
        return False
    try:
        return all(_done(one) for one in part.body)
    except _Missing:
        caught = part.handlers[0].type
        named = isinstance(caught, ast.Name) and caught.id in ("ImportError", "ModuleNotFoundError", "Exception")
        return (named or caught is None) and all(_done(one) for one in part.handlers[0].body)


def _harmless(part):
    """Whether the statement only gives names to values that it holds, to functions and to classes."""
    if isinstance(part, ast.Expr):
        return isinstance(part.value, ast.Constant)
    if isinstance(part, ast.Assign):
        return all(isinstance(target, ast.Name) for target in part.targets) and _plain(part.value)
    if isinstance(part, ast.AnnAssign):
        return isinstance(part.target, ast.Name) and (part.value is None or _plain(part.value))
    if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
        given = [*part.args.defaults, *(value for value in part.args.kw_defaults if value is not None)]
        return not part.decorator_list and all(map(_plain, given))
    if isinstance(part, ast.ClassDef):
        named = not part.decorator_list and not part.keywords and all(map(_plain, part.bases))
        return named and all(map(_harmless, part.body))
    if isinstance(part, ast.If):
        return _only_for_types(part.test) and not part.orelse
    return isinstance(part, ast.Pass)


def _plain(value):
    return all(isinstance(part, _VALUES + _PARTS) for part in ast.walk(value))


def _only_for_types(test):
    return (test.id if isinstance(test, ast.Name) else getattr(test, "attr", "")) == "TYPE_CHECKING"


def _import(statement):
    """A module that fails in the middle is Refused: the child would begin it once more, with what it left."""
    try:
        _follow(statement)
    except ModuleNotFoundError as error:
        if error.name and error.name in _asked_for(statement):
            raise _Missing from None
        raise Refused("import: ModuleNotFoundError") from None
    except BaseException as error:
        raise Refused(f"import: {type(error).__name__}") from None


def _follow(statement):
    if isinstance(statement, ast.Import):
        for name in statement.names:
            importlib.import_module(name.name)
    elif statement.module and not statement.level and statement.module != "__future__":
        module = importlib.import_module(statement.module)
        for name in statement.names:
            if name.name != "*" and not hasattr(module, name.name):
                importlib.import_module(f"{statement.module}.{name.name}")


def _asked_for(statement):
    """The modules that it names, with the packages that these are in."""
    given = [name.name for name in statement.names]
    if isinstance(statement, ast.ImportFrom):
        given = [statement.module, *(f"{statement.module}.{name}" for name in given)]
    words = [name.split(".") for name in given]
    return {".".join(word[:count]) for word in words for count in range(1, len(word) + 1)}
