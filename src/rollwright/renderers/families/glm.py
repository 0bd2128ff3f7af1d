"""GLM-4.5 to 5.3: turns that nothing closes. The model ends its own with the token that opens the next, which
is written after it. Every answer has a block of reasoning, empty where there is none or it was dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rollwright.renderers.contract import LiteralPolicy, RenderOptions, ThinkingPolicy
from rollwright.renderers.script import Script, spoken
from rollwright.wire import Message, Reasoning, ToolSpec

from .calls_pairs import PairCalls
from .jsons import printed, tool_object
from .table import Family, Past, Results, Shown, Speech, Thinking, Words, Wrap, any_text, as_is, strip

_BEGIN, _END = "<think>", "</think>"
_USER, _OBSERVATION = "<|user|>", "<|observation|>"
_LISTING = (
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_LISTED = (
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
    "<tool_call>{function-name}"
)
_QUIET = "quiet"


@dataclass(frozen=True, slots=True)
class GlmHead:
    """The begin tokens and the tool list. The system speaks in a turn of its own."""

    line: str
    efforts: tuple[str, ...] = ()
    """How hard the model may be told to think; the last is the default. None in a format that tells nothing."""
    always: bool = False
    """It is told even if it is asked not to think."""

    def write(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], options: RenderOptions
    ) -> int:
        script.note = _QUIET if options.thinking is False else ""
        script.frame("[gMASK]<sop>")
        if self.efforts and (self.always or options.thinking is not False):
            effort = options.effort if options.effort in self.efforts else self.efforts[-1]
            script.frame(f"<|system|>Reasoning Effort: {effort.capitalize()}")
        if tools:
            script.frame(_LISTING)
            shown = [tool_object(tool) for tool in tools]
            script.said("".join([printed(tool["function"] if self.efforts else tool) + "\n" for tool in shown]))
            pairs = [
                f"<arg_key>{{arg-key-{number}}}</arg_key>{self.line}<arg_value>{{arg-value-{number}}}</arg_value>"
                for number in (1, 2)
            ]
            script.frame(self.line.join([_LISTED, *pairs, "...", "</tool_call>"]))
        return 0


@dataclass(frozen=True, slots=True)
class QuietUser:
    """A user who asks GLM-4.5 not to think says so at the end of every message."""

    def write(self, script: Script, messages: Sequence[Message], at: int, tools: Sequence[ToolSpec]) -> bool:
        if script.note != _QUIET:
            return False
        message = messages[at]
        script.frame(_USER + "\n")
        script.shown(message.parts, as_is)
        script.frame("" if spoken(message.parts, "").endswith("/nothink") else "/nothink")
        return True


@dataclass(frozen=True, slots=True)
class GlmVoice:
    """An answer: its block of reasoning, its text and its calls, each on a line of its own or none."""

    line: str
    empty: str
    """The block without reasoning."""
    prompt: str
    """What of the block the prompt has written."""
    calls: PairCalls
    keeps: bool
    thinks: bool
    words: Words
    """What is done to reasoning."""

    def write(self, script: Script, messages: Sequence[Message], at: int) -> None:
        message = messages[at]
        text, reasoning = self._split(script, message)
        current = self.keeps or not any(later.role == "user" for later in messages[at + 1 :])
        script.frame("<|assistant|>" + self.line)
        if current and reasoning:
            script.reasoned |= bool(self.words(reasoning))
            script.frame(_BEGIN)
            script.said(self.words(reasoning))
            script.frame(_END)
        else:
            script.frame(self.empty)
        self._write_spoken(script, message, text)

    def answer(self, script: Script, message: Message) -> None:
        if self.thinks:
            script.frame((self.line + _BEGIN).removeprefix(self.prompt))
            script.said(self.words(message.reasoning))
            script.frame(_END)
        self._write_spoken(script, message, message.text)
        script.frame(_OBSERVATION if message.tool_calls else _USER)

    def _write_spoken(self, script: Script, message: Message, text: str) -> None:
        if text.strip():
            script.frame(self.line)
            script.said(text.strip())
        for call in message.tool_calls:
            script.frame(self.line)
            self.calls.write(script, call)

    def _split(self, script: Script, message: Message) -> tuple[str, str]:
        """The answer and the reasoning, as the template takes them apart."""
        text = message.text
        told = any(isinstance(part, Reasoning) for part in message.parts)
        if told or script.policy is not LiteralPolicy.PARITY or _END not in text:
            return text, message.reasoning
        before, *_, after = text.split(_END)
        if self.words is as_is:
            return after, before.split(_BEGIN)[-1]
        return after.lstrip("\n"), before.rstrip("\n").split(_BEGIN)[-1].lstrip("\n")


def _speech(line: str, empty: str, prompt: str, words: Words = strip, *, always: bool = False) -> Speech:
    calls = PairCalls("<tool_call>", "</tool_call>", line, lead=line, between=line)
    thinking = Thinking(
        begin=_BEGIN,
        end=_END,
        open=line + _BEGIN,
        close=_END + line,
        shown=Shown.ALWAYS,
        past=Past.KEPT if always else Past.DROPPED,
        dropped=line + empty,
        prompt=prompt,
        prompt_off=line + empty,
        off_skip=line,
        always=always,
        tells_query=any_text,
        without_query=True,
    )

    def voice(options: RenderOptions) -> GlmVoice:
        keeps = always or options.history is ThinkingPolicy.KEEP
        return GlmVoice(line, empty, prompt, calls, keeps, always or options.thinking is not False, words)

    return Speech("<|assistant|>", "", "", thinking=thinking, calls=calls, voice=voice)


GLM4_5 = Family(
    name="glm4.5",
    fingerprints=("44f815868bf02fa458dd2f741a338046", "e6e2ddfb13f8aef529a869e362f74743"),
    models=(r"glm-?4\.[56](?!v)",),
    head=GlmHead("\n"),
    user=Wrap(_USER + "\n", ""),
    heard=QuietUser(),
    system=Wrap("<|system|>\n", ""),
    speech=_speech("\n", _BEGIN + _END, ""),
    results=Results(_OBSERVATION, "\n<tool_response>\n", "\n</tool_response>", ""),
    stops=(_USER, _OBSERVATION, "<|endoftext|>"),
    closing=(_OBSERVATION,),
    opening=(_USER, _OBSERVATION),
)

_RESULTS = Results(_OBSERVATION, "<tool_response>", "</tool_response>", "")

GLM4_7 = replace(
    GLM4_5,
    name="glm4.7",
    fingerprints=("d63ad536c3c81880043e22ec7fd08db4",),
    # The template of GLM-5 is the same to the letter; those of 5.1 and later are not.
    models=(r"glm-?(?:4\.7|5(?![.\d]))",),
    head=GlmHead(""),
    user=Wrap(_USER, ""),
    heard=None,
    system=Wrap("<|system|>", ""),
    speech=_speech("", _END, _BEGIN),
    results=_RESULTS,
)

GLM5_2 = replace(
    GLM4_7,
    name="glm5.2",
    fingerprints=("dedbb4dae748fa22459663ee32851fa5",),
    models=(r"glm-?5\.2",),
    head=GlmHead("", ("high", "max")),
    speech=_speech("", _BEGIN + _END, _BEGIN, as_is),
)

GLM5_3 = replace(
    GLM5_2,
    name="glm5.3",
    fingerprints=("a0006a72544a3f080e5d4e54bf21f55e",),
    # The Flash model sees images, and its template is another one.
    models=(r"glm-?5\.3(?!.*flash)",),
    head=GlmHead("", ("low", "high", "max"), always=True),
    speech=_speech("", _BEGIN + _END, _BEGIN, as_is, always=True),
    results=replace(_RESULTS, by_call=True),
)
