"""What a foreign template does, found by showing it words that nobody else uses: how it wants to be given arguments and
reasoning, what ends an answer, and which tags the model is to write. What the probe does not show is not assumed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rollwright.wire import Message, Reasoning, Text, ToolCall, ToolSpec, UsageError, assistant, user

from .families.calls_json import JsonCalls
from .families.calls_xml import XmlCalls
from .families.jsons import printed
from .families.table import Calls, Past, Shown, Thinking
from .generic_model import ForeignModel
from .script import Script

ASK = (user("Vuqo zemi?"),)
TOOL = ToolSpec("xolvi", "Dremu.", {"type": "object", "properties": {"kufa": {"type": "string"}}})
_SAID, _THOUGHT, _NEXT = "Ybiro pelg.", "Gawun tesk.", "Hocta rilm?"
_CALL = ToolCall("call00001", "xolvi", '{"kufa": "Muzde"}')
_AGAIN = ToolCall("call00002", "xolvi", '{"kufa": "Norpa"}')
_KEYS = ("reasoning_content", "reasoning", "thinking")
_TAG = r"<[^<>\s]{1,40}>|\[[A-Z_]{2,30}\]"
_JSON = re.compile(
    rf'(?P<open>(?P<begin>{_TAG})\s*\{{"name": ?")xolvi(?P<middle>", ?"(?:arguments|parameters)": ?)'
    rf'\{{"kufa": "Muzde"\}}(?P<close>\}}\s*(?P<end>{_TAG}))'
)


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found."""

    model: ForeignModel
    """The model with its habits."""
    thinking: Thinking | None
    calls: Calls | None
    inside: bool
    """The prompt begins the reasoning."""


def probe(model: ForeignModel, control: re.Pattern[str]) -> Findings:
    model = model.with_habits(arguments=_arguments(model))
    model = model.with_habits(reasoning=_reasoning(model))
    model = model.with_habits(close=_close(model, control))
    thinking = _thinking(model)
    prompt = _text(model, ASK, prompt=True)
    inside = thinking is not None and prompt.rstrip().endswith(thinking.begin)
    return Findings(model, thinking, _json_calls(model) or _xml_calls(model), inside)


def _text(
    model: ForeignModel, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = False
) -> str:
    """Empty if the template refuses."""
    try:
        return model.text(messages, tools, prompt=prompt)
    except UsageError:
        return ""


def _arguments(model: ForeignModel) -> str:
    """As text where the template shows it as it is, since then nothing is printed anew."""
    talk = (*ASK, assistant("", _CALL))
    return "text" if _CALL.arguments in _text(model.with_habits(arguments="text"), talk, (TOOL,)) else "object"


def _reasoning(model: ForeignModel) -> str:
    for key in _KEYS:
        keyed = model.with_habits(reasoning=key)
        for calls in ((), (_CALL,)):
            talk = (*ASK, Message("assistant", (Reasoning(_THOUGHT), Text(_SAID), *calls)))
            if _THOUGHT in _text(keyed, talk, (TOOL,) if calls else ()):
                return key
    return _KEYS[0]


def _close(model: ForeignModel, control: re.Pattern[str]) -> str:
    """The control string that follows an answer, whether or not something comes after it."""
    found = set()
    for talk in ((*ASK, assistant(_SAID)), (*ASK, assistant(_SAID), user(_NEXT))):
        _, said, rest = _text(model, talk).partition(_SAID)
        end = control.match(rest) if said else None
        found.add(end[0] if end else "")
    return found.pop() if len(found) == 1 else ""


def _thinking(model: ForeignModel) -> Thinking | None:
    talk = (*ASK, Message("assistant", (Reasoning(_THOUGHT), Text(_SAID))))
    before, thought, rest = _text(model, talk).partition(_THOUGHT)
    between, said, _ = rest.partition(_SAID)
    begin = re.search(rf"({_TAG})(\s*)\Z", before)
    end = re.fullmatch(rf"\s*({_TAG})\s*", between)
    if thought and said and begin and end:
        return _tags(model, begin[1], end[1], begin[0], between)
    # A template that never shows reasoning may still ask for it.
    asked = re.search(r"<(think\w*)>\s*\Z", _text(model, ASK, prompt=True))
    return _tags(model, f"<{asked[1]}>", f"</{asked[1]}>", asked[0], f"</{asked[1]}>") if asked else None


def _tags(model: ForeignModel, begin: str, end: str, open: str, close: str) -> Thinking:
    asked = re.search(rf"{re.escape(begin)}\s*\Z", _text(model, ASK, prompt=True))
    return Thinking(begin, end, open, close, Shown.FILLED, Past.DROPPED, prompt=asked[0] if asked else "")


def _json_calls(model: ForeignModel) -> JsonCalls | None:
    alone = _JSON.search(_text(model, (*ASK, assistant("", _CALL)), (TOOL,)))
    if alone is None:
        return None
    lead, between = _joints(model, alone["begin"], alone["end"])
    if lead is None or between is None:
        return None
    return JsonCalls(
        alone["begin"], alone["end"], alone["open"], alone["middle"], alone["close"], lead=lead, between=between
    )


def _xml_calls(model: ForeignModel) -> XmlCalls | None:
    """Tags in tags, where the template writes them as the families that are known to."""
    form = XmlCalls("<tool_call>", "</tool_call>", printed)
    script = Script(model.literal)
    form.write(script, _CALL)
    written = "".join(piece.text for piece in script.pieces)
    if written not in _text(model, (*ASK, assistant("", _CALL)), (TOOL,)):
        return None
    lead, between = _joints(model, form.begin, form.end)
    if lead is None or between is None:
        return None
    return XmlCalls(form.begin, form.end, printed, lead=lead, between=between)


def _joints(model: ForeignModel, begin: str, end: str) -> tuple[str | None, str | None]:
    """What stands between a text and a call, and between two calls; None for what is more than space."""
    text = _text(model, (*ASK, assistant(_SAID, _CALL, _AGAIN)), (TOOL,)).rpartition(_SAID)[2]
    lead = re.match(rf"(\s*){re.escape(begin)}", text)
    between = re.search(rf"Muzde.*?{re.escape(end)}(\s*){re.escape(begin)}.*?Norpa", text, re.DOTALL)
    return lead[1] if lead else None, between[1] if between else None
