"""Nemotron-3: turns between im_start and im_end, calls as tags in tags, tools listed as tags, and a block of reasoning
in every answer, empty where there is none or where it was dropped. Asking for less effort is not covered."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollwright.renderers.contract import LiteralPolicy, RenderOptions, ThinkingPolicy
from rollwright.renderers.script import Script
from rollwright.wire import Message, ToolSpec

from .calls_xml import XmlCalls
from .jsons import printed
from .qwen import SYSTEM, USER
from .qwen35 import LISTED
from .table import Family, Past, Results, Shown, Speech, Thinking, any_text, as_is

_BEGIN, _END = "<think>", "</think>"
_EMPTY = _BEGIN + _END


def _python_word(value: Any) -> str:
    """As the template writes it: true is True."""
    return str(value)


def _others(schema: Mapping[str, Any], told: Collection[str]) -> str:
    """Fields that have no line of their own."""
    fields = [(key, value) for key, value in schema.items() if key not in told]
    return "".join([f"\n<{key}>{_shown(value)}</{key}>" for key, value in fields])


def _shown(value: Any) -> str:
    return printed(value) if isinstance(value, dict | list) else str(value)


def _field(name: str, schema: Mapping[str, Any]) -> str:
    lines = [f"\n<parameter>\n<name>{name}</name>"]
    if "type" in schema:
        lines.append(f"\n<type>{schema['type']}</type>")
    if "description" in schema:
        lines.append(f"\n<description>{str(schema['description']).strip()}</description>")
    if "enum" in schema:
        lines.append(f"\n<enum>{printed(schema['enum'])}</enum>")
    return "".join(lines) + _others(schema, ("name", "type", "description", "enum")) + "\n</parameter>"


def _listed(tool: ToolSpec) -> str:
    about = f"\n<description>{tool.description.strip()}</description>" if tool.description else ""
    schema = tool.parameters
    fields = schema.get("properties")
    shown = "".join([_field(name, field) for name, field in fields.items()]) if isinstance(fields, dict) else ""
    shown += _others(schema, ("type", "properties", "required"))
    if "required" in schema:
        shown += f"\n<required>{printed(schema['required'])}</required>"
    return f"\n<function>\n<name>{tool.name}</name>{about}\n<parameters>{shown}\n</parameters>\n</function>"


@dataclass(frozen=True, slots=True)
class NemotronHead:
    """The turn of the system, which is there even if it is empty, with the tool list after it."""

    def write(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], options: RenderOptions
    ) -> int:
        given = len(messages) > 0 and messages[0].role == "system"
        script.frame(SYSTEM.open)
        if given:
            script.turn(0, "system")
            script.shown(messages[0].parts, as_is)
            script.turn(-1, "system")
        if tools:
            script.frame("\n\n" if given and messages[0].text else "")
            script.frame("# Tools\n\nYou have access to the following functions:\n\n<tools>")
            script.said("".join(map(_listed, tools)))
            script.frame(LISTED)
        script.frame(SYSTEM.close)
        return int(given)


@dataclass(frozen=True, slots=True)
class NemotronVoice:
    """An answer with its block of reasoning. The template puts both together and strips the whole."""

    speech: Speech
    gap: str
    """What stands between the block and the answer."""
    before_end: str
    strips: bool
    """A dropped block is followed by a stripped text if calls follow."""
    keeps: bool
    thinks: bool

    def write(self, script: Script, messages: Sequence[Message], at: int) -> None:
        message = messages[at]
        script.frame(self.speech.open)
        if self.keeps or not any(later.role == "user" for later in messages[at + 1 :]):
            self._write_current(script, message)
        else:
            self._write_past(script, message)
        self._write_calls(script, message)
        script.frame(self.speech.close + self.speech.gap)

    def answer(self, script: Script, message: Message) -> None:
        if self.thinks:
            self._write_block(script, message)
        else:
            script.said(message.text.rstrip())
        self._write_calls(script, message)
        script.frame(self.speech.close)

    def _write_current(self, script: Script, message: Message) -> None:
        if message.reasoning.strip():
            script.reasoned = True
            script.frame(_BEGIN + "\n")
            self._write_block(script, message)
        elif _tagged(script, message.text):
            script.said(message.text.strip())
        else:
            script.frame(_EMPTY)
            script.said(message.text.rstrip())

    def _write_block(self, script: Script, message: Message) -> None:
        """From the first word of the reasoning on."""
        script.said(message.reasoning)
        script.frame(self.before_end + _END)
        rest = (self.gap + message.text).rstrip()
        if rest:
            script.frame(self.gap)
            script.said(rest.removeprefix(self.gap))

    def _write_past(self, script: Script, message: Message) -> None:
        text, calls = message.text, bool(message.tool_calls)
        tagged = _tagged(script, text)
        if message.reasoning.strip():
            text = text.split(_END)[-1] if tagged and _END in text else self.gap + text
        elif tagged and not calls and not (_BEGIN in text and _END in text):
            script.said(text.strip())
            return
        elif tagged:
            text = text.split(_END)[-1] if _END in text else text.split(_BEGIN)[0]
        script.frame(_EMPTY)
        script.said((text.strip() if self.strips else text) if calls else text.rstrip())

    def _write_calls(self, script: Script, message: Message) -> None:
        form = self.speech.calls
        if not message.tool_calls or form is None:
            return
        script.frame(form.lead)
        for call in message.tool_calls:
            form.write(script, call)
            script.frame(form.tail)


def _tagged(script: Script, text: str) -> bool:
    """The template takes tags inside of an answer for its own."""
    return script.policy is LiteralPolicy.PARITY and (_BEGIN in text or _END in text)


def _speech(before_end: str, gap: str, strips: bool) -> Speech:
    thinking = Thinking(
        begin=_BEGIN,
        end=_END,
        open=_BEGIN + "\n",
        close=before_end + _END + gap,
        shown=Shown.ALWAYS,
        past=Past.DROPPED,
        dropped=_EMPTY,
        prompt=_BEGIN + "\n",
        prompt_off=_EMPTY,
        tells_query=any_text,
    )
    calls = XmlCalls("<tool_call>", "</tool_call>", _python_word, lead="\n", tail="\n")
    plain = Speech("<|im_start|>assistant\n", "<|im_end|>", "\n", thinking=thinking, calls=calls)

    def voice(options: RenderOptions) -> NemotronVoice:
        keeps = options.history is ThinkingPolicy.KEEP
        return NemotronVoice(plain, gap, before_end, strips, keeps, options.thinking is not False)

    return replace(plain, voice=voice)


NEMOTRON3 = Family(
    name="nemotron3",
    fingerprints=("43a92aacc2e169bb37055e4d8b0df31e", "3b74d76d8b903752e764cae114ae8ae2"),
    models=(r"nemotron-?3-(?:nano|super)",),
    head=NemotronHead(),
    user=USER,
    system=SYSTEM,
    speech=_speech("\n", "\n", strips=True),
    results=Results("<|im_start|>user\n", "<tool_response>\n", "\n</tool_response>\n", "<|im_end|>\n"),
    stops=("<|im_end|>", "</s>"),
)

NEMOTRON3_ULTRA = replace(
    NEMOTRON3,
    name="nemotron3-ultra",
    fingerprints=("82753bef5cedc4932c1ed509b5c9a12b", "58933db77d3099b4f78c55a38347a72e"),
    models=(r"nemotron-?3-ultra", r"nemotron-?3\.5-lightning"),
    speech=_speech("", "", strips=False),
)
