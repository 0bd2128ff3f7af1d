"""DeepSeek-V4: one turn for all that the user and tools say, calls as invoke tags in one section, and reasoning that is
dropped when the user speaks again, unless there are tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from rollwright.renderers.contract import Reason, RenderOptions, ThinkingPolicy
from rollwright.renderers.engine import TokenEngine
from rollwright.renderers.script import Script
from rollwright.renderers.tape import Tape
from rollwright.wire import Message, ToolSpec, UsageError

from .calls_invoke import InvokeCalls
from .jsons import printed, tool_object
from .table import Family, Past, Results, Shown, Speech, Thinking, Wrap, as_is

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, SPEAK = "<｜User｜>", "<｜Assistant｜>"
_MARK = "｜DSML｜"
_CALLS_OPEN, _CALLS_CLOSE = f"\n\n<{_MARK}tool_calls>\n", f"</{_MARK}tool_calls>"
_CALLS = InvokeCalls(_MARK, typed=True, empty="\n")
_DROPS = "drops"

_HARD = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST be very thorough in your thinking and "
    "comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all "
    "potential paths, edge cases, and adversarial scenarios.\nExplicitly write out your entire deliberation process, "
    "documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no "
    "assumption is left unchecked.\n\n"
)
_HARDER = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\nYou MUST reason with the utmost "
    "depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most "
    "fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than any "
    "surface symptom.\nDo not stop reasoning until you have independently verified the solution from multiple angles "
    "and are certain that no assumption remains unchecked and no error remains undiscovered.\n\n"
)
_LISTING = (
    "## Tools\n\nYou have access to a set of tools to help answer the user's question. You can invoke tools by writing "
    f'a "<{_MARK}tool_calls>" block like the following:\n\n<{_MARK}tool_calls>\n<{_MARK}invoke name="$TOOL_NAME">\n'
    f'<{_MARK}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{_MARK}parameter>\n...\n'
    f'</{_MARK}invoke>\n<{_MARK}invoke name="$TOOL_NAME2">\n...\n</{_MARK}invoke>\n</{_MARK}tool_calls>\n\n'
    'String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, '
    'arrays, objects), pass the value in JSON format and set `string="false"`.\n\nIf thinking_mode is enabled '
    "(triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls "
    "or final response.\n\nOtherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n"
)
_LISTED = "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"


@dataclass(frozen=True, slots=True)
class DeepSeekHead:
    """All system messages, wherever they stand, and the tool list."""

    efforts: Mapping[str, str] = field(default_factory=dict)

    def write(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], options: RenderOptions
    ) -> int:
        check_results(messages)
        called = any(message.role == "tool" for message in messages)
        keeps = bool(tools) or called or options.history is ThinkingPolicy.KEEP
        script.note = _DROPS if options.thinking and not keeps else ""
        script.frame(BOS)
        if options.thinking and messages:
            script.frame(self.efforts.get(options.effort, ""))
        told = write_system(script, messages)
        script.turn(-1, "system")
        if tools:
            script.frame("\n\n" + _LISTING if told else _LISTING)
            script.said("".join([printed(tool_object(tool)["function"]) + "\n" for tool in tools]))
            script.frame(_LISTED)
        return 0


def write_system(script: Script, messages: Sequence[Message]) -> bool:
    """The system messages in a row. Whether there was anything to write."""
    joint, told = "", False
    for at, message in enumerate(messages):
        if message.role == "system":
            script.turn(at, "system")
            script.frame(joint)
            script.shown(message.parts, as_is)
            told |= bool(joint or message.text)
            joint = "\n\n"
    return told


def check_results(messages: Sequence[Message]) -> None:
    for before, message in pairwise(messages):
        if message.role == "tool" and before.role in ("user", "system"):
            raise UsageError("in this format results of tools follow the answer that called them")


@dataclass(frozen=True, slots=True)
class DeepSeekHeard:
    """Neighbouring messages that are not the model's share one turn."""

    def write(self, script: Script, messages: Sequence[Message], at: int, tools: Sequence[ToolSpec]) -> bool:
        before = at - 1
        while before >= 0 and messages[before].role == "system":
            before -= 1
        script.frame("\n\n" if before >= 0 and messages[before].role != "assistant" else USER)
        script.shown(messages[at].parts, as_is)
        return True


@dataclass(frozen=True, slots=True)
class DeepSeekVoice:
    """The model's own turn, which ends its reasoning even if there is none."""

    thinks: bool

    def write(self, script: Script, messages: Sequence[Message], at: int) -> None:
        script.frame(SPEAK)
        last = all(message.role in ("assistant", "system") for message in messages[at + 1 :])
        if self.thinks and (last or script.note != _DROPS):
            script.reasoned = True
            script.frame("<think>")
            script.said(messages[at].reasoning)
        self._write_spoken(script, messages[at])

    def answer(self, script: Script, message: Message) -> None:
        if self.thinks:
            script.said(message.reasoning)
            self._write_spoken(script, message)
        else:
            self._write_spoken(script, message, "")

    def _write_spoken(self, script: Script, message: Message, before: str = "</think>") -> None:
        script.frame(before)
        script.said(message.text)
        if message.tool_calls:
            script.frame(_CALLS_OPEN)
            for call in message.tool_calls:
                _CALLS.write(script, call)
                script.frame(_CALLS.tail)
            script.frame(_CALLS_CLOSE)
        script.frame(EOS)


def _voice(options: RenderOptions) -> DeepSeekVoice:
    return DeepSeekVoice(bool(options.thinking))


def no_words(text: str) -> str:
    """A system message stands in the head, wherever it was said."""
    return ""


def _declines(engine: TokenEngine, tape: Tape, messages: Sequence[Message]) -> Reason | None:
    if tape.note != _DROPS:
        return moves_system(messages)
    # A first result of a tool brings reasoning back that was dropped before.
    called = any(message.role == "tool" for message in messages)
    return Reason.HEAD_MOVED if called else moves_system(messages) or Reason.THINKING_DROPPED


def moves_system(messages: Sequence[Message]) -> Reason | None:
    """All that the system says stands in the head."""
    return Reason.HEAD_MOVED if any(message.role == "system" for message in messages) else None


THINKING = Thinking(
    begin="<think>",
    end="</think>",
    open="<think>",
    close="</think>",
    shown=Shown.ALWAYS,
    past=Past.KEPT,
    prompt="<think>",
    prompt_off="</think>",
    on=False,
)

DEEPSEEK_V4 = Family(
    name="deepseek-v4",
    fingerprints=("f8b442fab67e75b3aa468334b5cdda67",),
    models=(r"deepseek-?v4(?!.*flash)",),
    head=DeepSeekHead({"max": _HARD}),
    user=Wrap(USER, ""),
    system=Wrap("", "", no_words),
    speech=Speech(
        SPEAK,
        EOS,
        "",
        thinking=THINKING,
        calls=_CALLS,
        calls_open=_CALLS_OPEN,
        calls_close=_CALLS_CLOSE,
        voice=_voice,
    ),
    results=Results(USER, "<tool_result>", "</tool_result>", "", between="\n\n"),
    stops=(EOS,),
    heard=DeepSeekHeard(),
    declines=_declines,
)

DEEPSEEK_V4_FLASH = replace(
    DEEPSEEK_V4,
    name="deepseek-v4-flash",
    fingerprints=("8b6f730567ea3e0a994ce80ac79c18a4",),
    models=(r"deepseek-?v4.*flash",),
    head=DeepSeekHead({"high": _HARD, "max": _HARDER}),
)
