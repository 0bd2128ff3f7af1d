"""What the scripted engine says. A policy is a callable from a call and its dice to a message or a reply.

oracle                  the right answer, from the solver that the settings name
noisy(P)                the oracle's answer, spoiled with probability P
echo                    the last thing that was said to it
transcript(FILE.jsonl)  a recorded conversation, see `transcript`
package.module:name     a callable of yours, also as path/to/file.py:name; sync or async
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from rollwright.wire import Message, ModelCall, ModelReply, Text, ToolResult, UsageError, assistant
from rollwright.wire.hints import nearest

from .config import ScriptedConfig
from .conversations import Draw
from .spoil import spoil
from .transcript import Transcript

Said = Message | ModelReply
Policy = Callable[[ModelCall, Draw], Said | Awaitable[Said]]
Solver = Callable[[Sequence[Message]], Message | None]
"""The right answer to a conversation; None where it knows none."""

NAMES = ("oracle", "noisy", "echo", "transcript")
UNKNOWN = "I do not know."

_FORM = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\((.*)\))?\s*", re.DOTALL)


def parse_policy(text: str) -> tuple[str, str]:
    """The name and the argument in a policy string. Import paths have the name `import`."""
    form = _FORM.fullmatch(text)
    if form is None or form[1] not in NAMES:
        if ":" in text and "(" not in text:
            return "import", text.strip()
        raise UsageError(_unknown(text, form[1] if form else text))
    name, argument = form[1], (form[2] or "").strip()
    if name in ("oracle", "echo") and argument:
        raise UsageError(f"policy '{name}' takes no argument, got '{argument}'; write '{name}'")
    if name == "noisy":
        _probability(argument)
    if name == "transcript" and not argument:
        raise UsageError("policy 'transcript' needs a file; write 'transcript(FILE.jsonl)'")
    return name, argument


def make_policy(config: ScriptedConfig) -> Policy:
    """The policy that the settings name; UsageError says what is wrong with them."""
    name, argument = parse_policy(config.policy)
    if name == "import":
        return _callable(argument)
    if name == "echo":
        return echo
    if name == "transcript":
        return Transcript.load(Path(argument))
    solver = _solver(config)
    return oracle(solver) if name == "oracle" else noisy(solver, _probability(argument))


def echo(call: ModelCall, rng: Draw) -> Message:
    """The last message that is not the model's own, as text."""
    for message in reversed(call.messages):
        if message.role in ("user", "tool"):
            return assistant(message.text or _result_text(message))
    return assistant("")


def oracle(solver: Solver) -> Policy:
    def play(call: ModelCall, rng: Draw) -> Message:
        return solver(call.messages) or assistant(UNKNOWN)

    return play


def noisy(solver: Solver, probability: float) -> Policy:
    def play(call: ModelCall, rng: Draw) -> Message:
        right = solver(call.messages)
        if right is None:
            return assistant(UNKNOWN)
        return spoil(right, rng) if rng.random() < probability else right

    return play


def load_object(path: str, what: str) -> Any:
    """What `module:name` or `file.py:name` names."""
    where, _, name = path.rpartition(":")
    try:
        module = _module_of_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"{what} '{path}' cannot be imported: {error}") from error
    found = getattr(module, name, None)
    if found is None:
        close = nearest(name, dir(module))
        hint = f"; did you mean '{where}:{close}'?" if close else ""
        raise UsageError(f"{what} '{path}' is not there: '{where}' has no '{name}'{hint}")
    if not callable(found):
        raise UsageError(f"{what} '{path}' is a {type(found).__name__}; it must be a callable")
    return found


def _callable(path: str) -> Policy:
    policy: Policy = load_object(path, "policy")
    return policy


def _solver(config: ScriptedConfig) -> Solver:
    if not config.solver:
        raise UsageError(
            f"policy '{config.policy}' needs a solver that knows the answers; set solver=MODULE:FACTORY, or use 'echo'"
        )
    factory = load_object(config.solver, "solver")
    solver: Solver = factory(config.solver_options)
    return solver


def _module_of_file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file '{path}'")
    name = f"rollwright_script_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"'{path}' is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and msgspec look their module up by name while it is executed.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _probability(text: str) -> float:
    try:
        probability = float(text)
    except ValueError:
        probability = -1.0
    if not 0.0 <= probability <= 1.0:
        raise UsageError(f"policy 'noisy' needs a probability between 0 and 1, got '{text}'; write 'noisy(0.3)'")
    return probability


def _unknown(text: str, name: str) -> str:
    close = nearest(name, NAMES)
    hint = f"did you mean '{close}'?" if close else f"known are {', '.join(NAMES)} and MODULE:CALLABLE"
    return f"policy '{text}' is not known; {hint}"


def _result_text(message: Message) -> str:
    results = (part for part in message.parts if isinstance(part, ToolResult))
    return "".join(inner.text for result in results for inner in result.content if isinstance(inner, Text))
