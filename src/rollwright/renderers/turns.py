"""Turns by the table: messages to pieces. Full renders and extensions both come through here, so they cannot differ."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rollwright.wire import Image, Message, Reasoning, Text, ToolResult, ToolSpec, UsageError

from .contract import LiteralPolicy, RenderOptions, ThinkingPolicy
from .engine import TokenEngine
from .families.table import Family, Past, Results, Shown, Thinking
from .script import Script, spoken
from .tape import Tape

_FIELDS = re.compile(r"(\{name\}|\{id\})")


class Turns:
    """Writes the turns of one family under one set of options."""

    def __init__(self, family: Family, options: RenderOptions) -> None:
        self._family = family
        self._voice = None if family.speech.voice is None else family.speech.voice(options)
        self._keeps = options.history is ThinkingPolicy.KEEP
        thinking = family.speech.thinking
        asked = options.thinking if options.thinking is not None else thinking is not None and thinking.on
        self.thinks = thinking is not None and (asked or thinking.always)
        """The model is asked to think."""
        self.prompt = family.speech.open
        """What makes the model speak."""
        if thinking is not None:
            self.prompt += thinking.prompt if self.thinks else thinking.prompt_off
        self.prompt_reasons = thinking is not None and thinking.begin in self.prompt
        # An empty block that stands for dropped reasoning as well is not dropped itself.
        lasts = thinking is not None and not self.thinks and thinking.prompt_off == thinking.dropped
        self.prompt_opens = thinking is not None and self.thinks and thinking.dropped == thinking.prompt + thinking.end
        """The prompt begins a block that is not dropped if the model closes it at once."""
        self._prompt_drops = self.prompt_reasons and not lasts and not self.prompt_opens
        self._resumes = thinking.resumes if thinking is not None and self.thinks else ""
        self._results = _FIELDS.split(family.results.each_open if family.results else "")

    def last_query(self, messages: Sequence[Message]) -> int | None:
        """Index of the last message that the format takes for a question of the user."""
        thinking = self._family.speech.thinking
        if thinking is None:
            return None
        for at in range(len(messages) - 1, -1, -1):
            message = messages[at]
            if message.role == "user" and thinking.tells_query(spoken(message.parts, self._family.image)):
                return at
        return None

    def write_all(self, script: Script, messages: Sequence[Message], at: int, tools: Sequence[ToolSpec] = ()) -> None:
        """A whole conversation, of which the head has written `at` messages."""
        query = self.last_query(messages)
        if query is None and self._family.needs_query:
            raise UsageError("this format wants a message of the user that is no tool result")
        thinking = self._family.speech.thinking
        if query is None:
            query = -1 if thinking is not None and thinking.without_query else len(messages)
        self.write(script, messages, at, 0, query, {}, tools)

    def write(
        self,
        script: Script,
        messages: Sequence[Message],
        at: int,
        offset: int,
        query: int,
        names: Mapping[str, str],
        tools: Sequence[ToolSpec] = (),
    ) -> None:
        """`messages[at:]`, the first of `messages` being number `offset` of the conversation. Answers after `query`
        show their reasoning; `names` has the tools' names by call id, for results whose calls are not among these."""
        count, heard = len(messages), self._family.heard
        while at < count:
            message = messages[at]
            script.turn(offset + at, message.role)
            if message.role == "tool":
                at = self._write_results(script, messages, at, offset, names)
                continue
            if message.role == "assistant" and self._voice is not None:
                self._voice.write(script, messages, at)
            elif message.role == "assistant":
                self._write_speech(script, message, at > query, at == count - 1)
            elif message.role != "user" or heard is None or not heard.write(script, messages, at, tools):
                self._write_heard(script, message)
            at += 1

    def write_prompt(self, script: Script, message: int) -> None:
        speaker = script.speaker
        instead = self._family.speech.after.get(speaker)
        script.turn(message, "assistant")
        if instead is None:
            script.frame(self.prompt)
            script.reasoned |= self._prompt_drops
            return
        script.frame(instead)
        if speaker == "tool" and self._resumes:
            script.frame(self._resumes)
            script.reasoned = True

    def resumes(self, engine: TokenEngine, tape: Tape) -> bool:
        """Whether the tape ends inside of reasoning that its prompt began after results of tools."""
        return bool(self._resumes) and engine.decode(tape.added[-len(self._resumes) :]).endswith(self._resumes)

    def write_answer(self, script: Script, message: Message) -> None:
        """What follows the prompt when the model says `message`, up to its stop token."""
        speech = self._family.speech
        if self._voice is not None:
            self._voice.answer(script, message)
            return
        text, reasoning = self._split(script, message)
        leads, thinking = bool(text), speech.thinking
        if thinking is not None and (self.thinks if self.prompt_reasons else reasoning):
            script.frame(thinking.open[len(thinking.prompt) :] if self.prompt_reasons else thinking.open)
            script.said(thinking.words(reasoning))
            script.frame(thinking.close)
            text = thinking.answer(text)
        self._write_spoken(script, message, text, leads)
        script.frame(speech.close)

    def _write_heard(self, script: Script, message: Message) -> None:
        wrap = self._family.user if message.role == "user" else self._family.system
        if wrap is None:
            raise UsageError("this format has a system message at the beginning only")
        if wrap.open:
            script.speaker = message.role
        script.frame(wrap.open)
        script.shown(message.parts, wrap.words)
        script.frame(wrap.close)

    def _write_results(
        self, script: Script, messages: Sequence[Message], at: int, offset: int, names: Mapping[str, str]
    ) -> int:
        form = self._family.results
        if form is None:
            raise UsageError("this format has no results of tools")
        names = ((form.named or form.by_call) and _names(messages, at)) or names
        found: list[tuple[int, ToolResult]] = []
        while at < len(messages) and messages[at].role == "tool":
            found += [(at, result) for result in _results(messages[at])]
            at += 1
        open_, closing = form.open, ""
        for index, result in _by_call(found, names) if form.by_call else found:
            script.frame(closing)
            script.turn(offset + index, "tool")
            self._open_result(script, open_, result, names)
            closing = self._write_result(script, form, result)
            open_ = form.between
        script.frame(closing + form.close)
        if form.tail is not None:
            form.tail(script, messages, at)
        return at

    def _write_result(self, script: Script, form: Results, result: ToolResult) -> str:
        """One result, and what is left to be written to close it."""
        if form.images_last and any(isinstance(part, Image) for part in result.content):
            script.said(form.words(spoken(result.content, "")))
            script.frame(form.each_close)
            for part in result.content:
                if isinstance(part, Image):
                    script.picture(part)
            return ""
        script.shown(result.content, form.words)
        if form.id_lead:
            script.frame(form.id_lead)
            script.said(form.id_words(result.call_id))
        return form.each_close

    def _open_result(self, script: Script, before: str, result: ToolResult, names: Mapping[str, str]) -> None:
        first, *fields = self._results
        unnamed = self._family.results.unnamed if self._family.results is not None else ""
        script.frame(before + first)
        for word in fields:
            if word == "{name}":
                script.said(_name(names, result.call_id, unnamed))
            elif word == "{id}":
                script.said(result.call_id)
            else:
                script.frame(word)

    def _write_speech(self, script: Script, message: Message, current: bool, last: bool) -> None:
        speech = self._family.speech
        text, reasoning = self._split(script, message)
        script.frame(speech.open)
        shown = text
        if speech.thinking is not None:
            if self._shows(speech.thinking, reasoning, current, last):
                script.reasoned = True
                script.frame(speech.thinking.open)
                script.said(speech.thinking.words(reasoning))
                script.frame(speech.thinking.close)
                shown = speech.thinking.answer(text)
            else:
                script.frame(speech.thinking.dropped)
        self._write_spoken(script, message, shown, bool(text))
        script.frame(speech.close + speech.gap)

    def _write_spoken(self, script: Script, message: Message, text: str, leads: bool) -> None:
        """The answer and the calls. `leads` says that the template takes the answer for a text before the calls."""
        calls, form = message.tool_calls, self._family.speech.calls
        if not calls:
            script.said(text)
            return
        if form is None:
            raise UsageError("this format has no calls of tools")
        if self._family.speech.one_call and len(calls) > 1:
            raise UsageError("this format has one call of a tool per turn")
        joint = ""
        if not self._family.speech.calls_hide_text:
            script.said(text)
            joint = form.lead if leads else ""
        joint += self._family.speech.calls_open
        for call in calls:
            script.frame(joint)
            form.write(script, call)
            script.frame(form.tail)
            joint = form.between
        script.frame(self._family.speech.calls_close)

    def _split(self, script: Script, message: Message) -> tuple[str, str]:
        """The answer and the reasoning of a turn, as the template takes them apart."""
        speech = self._family.speech
        text = speech.words("".join([part.text for part in message.parts if isinstance(part, Text)]))
        thinking = speech.thinking
        if thinking is None or any(isinstance(part, Reasoning) for part in message.parts):
            return text, message.reasoning
        if thinking.in_content and script.policy is LiteralPolicy.PARITY and thinking.end in text:
            before, *_, after = text.split(thinking.end)
            return thinking.rest(after), before.rstrip("\n").split(thinking.begin)[-1].lstrip("\n")
        return text, ""

    def _shows(self, thinking: Thinking, reasoning: str, current: bool, last: bool) -> bool:
        if not (current or self._keeps or thinking.past is Past.KEPT):
            return False
        if reasoning or thinking.shown is Shown.ALWAYS:
            return True
        if thinking.shown is Shown.ONLY_FILLED:
            return False
        # An empty block is written where the prompt had one, so that what is kept stays as it was.
        return self.prompt_reasons and not self.thinks if self._keeps else last


def _results(message: Message) -> list[ToolResult]:
    """The results that a message holds. One that was written without a call's id is a result of no call."""
    parts = message.parts
    found = [part for part in parts if isinstance(part, ToolResult)]
    if found and len(found) == len(parts):
        return found
    rest = tuple(part for part in message.parts if isinstance(part, Text))
    if found or len(rest) != len(message.parts):
        raise UsageError("a message of role tool holds results and nothing else")
    return [ToolResult("", rest)]


def _by_call(found: list[tuple[int, ToolResult]], names: Mapping[str, str]) -> list[tuple[int, ToolResult]]:
    """Results in the order of their calls; as they came, if they do not tell their calls apart."""
    order = {id: at for at, id in enumerate(names)}
    ids = {result.call_id for _, result in found}
    if len(ids) < len(found) or not ids <= order.keys() or "" in order:
        return found
    return sorted(found, key=lambda item: order[item[1].call_id])


def _name(names: Mapping[str, str], id: str, unnamed: str) -> str:
    """The tool that a result is of. Where there was one call only, its result needs no id to be known, unless the
    format has a word for what is not known."""
    if unnamed or len(names) != 1:
        return names.get(id, unnamed)
    return next(iter(names.values()))


def _names(messages: Sequence[Message], at: int) -> dict[str, str]:
    """The tools that were called last before `at`, by call id. Ids of earlier turns may be the same ones again."""
    calls = next((found for back in range(at - 1, -1, -1) if (found := messages[back].tool_calls)), ())
    return {call.id: call.name for call in calls}
