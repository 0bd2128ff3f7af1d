"""Rendering and extending, for every family that is a table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from rollwright.telemetry import Metrics
from rollwright.wire import Message, ToolCallDelta, ToolSpec
from rollwright.wire.arrays import Ids

from .attribution import Written
from .contract import Declined, Parser, Reason, RenderOptions, ThinkingPolicy
from .engine import TokenEngine
from .families.table import Family, Past, Shown
from .lexicon import lexicon_of
from .parse import PushParser
from .script import Script
from .tags import Tags
from .tape import Sampled, Tape
from .turns import Turns

DECLINED_HELP = "Extensions that were declined and became full renders."


class TableRenderer:
    """The renderer of one family over one vocabulary. Cheap: what is large belongs to the engine and is shared."""

    def __init__(
        self, family: Family, engine: TokenEngine, options: RenderOptions | None = None, metrics: Metrics | None = None
    ) -> None:
        self.table = family
        self.family = family.name
        self.engine = engine
        self.options = options or RenderOptions()
        close, *others = family.stops
        # Members of a family differ in the further stops that they know; without the first there is no turn.
        self.stop_ids = (engine.special(close), *(engine.specials[stop] for stop in others if stop in engine.specials))
        self.closing_ids = (self.stop_ids[0], *(engine.special(stop) for stop in family.closing))
        """Tokens that end an answer and close its turn."""
        self._opening = {engine.special(stop): stop for stop in family.opening}
        self.image_ids: tuple[int, ...] = tuple(engine.encode(family.image).tolist()) if family.image else ()
        self._lexicon = lexicon_of(engine, family.plain)
        self._tags = Tags(family, engine)
        self._turns = Turns(family, self.options)
        self._metrics = metrics or Metrics()
        thinking = family.speech.thinking
        self._think_id = None if thinking is None else engine.specials.get(thinking.begin)
        stays = thinking is not None and thinking.dropped.endswith(thinking.begin + thinking.end)
        self._think_end_id = engine.specials.get(thinking.end) if thinking is not None and stays else None

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = True) -> Tape:
        script = Script(self.options.literal, self.table.image)
        script.asks = prompt
        at = self.table.head.write(script, messages, tools, self.options)
        self._turns.write_all(script, messages, at, tools)
        if prompt:
            self._turns.write_prompt(script, len(messages))
        return Tape(
            added=self._lexicon.encode(script.pieces),
            origin=Written(script.pieces, self._lexicon),
            messages=len(messages),
            open=prompt,
            tools=tuple(tools),
            tools_hash=tools_hash(tools),
            reasoned=script.reasoned,
            note=script.note,
        )

    def extend(
        self, tape: Tape, messages: Sequence[Message], tools: Sequence[ToolSpec] | None = None
    ) -> Tape | Declined:
        reasoned = tape.reasoned or self._reasons(tape.added)
        reason = self._declines(tape, messages, tools, reasoned)
        if reason is not None:
            return self._decline(reason)
        script = Script(self.options.literal, self.table.image)
        script.note = tape.note
        script.turn(tape.messages - 1, "assistant")
        speech = self.table.speech
        last = int(tape.added[-1]) if len(tape.added) else -1
        opening = self._opening.get(last)
        if opening is None:
            script.frame(speech.gap if last in self.closing_ids else speech.close + speech.gap)
        self._turns.write(script, messages, 0, tape.messages, len(messages), self._names(tape))
        total = tape.messages + len(messages)
        self._turns.write_prompt(script, total)
        if opening is not None and not _continues(script, opening):
            return self._decline(Reason.STOPPED_OTHERWISE)
        return Tape(
            added=self._lexicon.encode(script.pieces),
            origin=Written(script.pieces, self._lexicon),
            before=tape,
            start=len(tape),
            messages=total,
            open=True,
            tools=tape.tools,
            tools_hash=tape.tools_hash,
            reasoned=reasoned or script.reasoned,
            note=tape.note,
        )

    def _decline(self, reason: Reason) -> Declined:
        self._metrics.counter("renderer_declined_total", DECLINED_HELP, family=self.family, reason=reason).inc()
        return Declined(reason)

    def _reasons(self, ids: Ids) -> bool:
        """Whether an answer holds reasoning that may be dropped. An empty block is none if one stays where
        reasoning was dropped."""
        if self._think_id is None:
            return False
        if self._turns.prompt_opens and (not len(ids) or ids[0] != self._think_end_id):
            return True
        found = np.flatnonzero(ids == self._think_id)
        if self._think_end_id is None or not len(found):
            return len(found) > 0
        return bool((np.append(ids, -1)[found + 1] != self._think_end_id).any())

    def parser(self, tape: Tape) -> Parser:
        if self.table.parser is not None:
            return self.table.parser(self.engine, self.options, tape)
        turns, thinking = self._turns, self.table.speech.thinking
        skip = "" if thinking is None or turns.thinks else thinking.off_skip
        inside = (turns.thinks and turns.prompt_reasons) or turns.resumes(self.engine, tape)
        return PushParser(self._tags, tape, inside=inside, skip=skip)

    def answer(self, tape: Tape, message: Message) -> Ids:
        script = Script(self.options.literal, self.table.image)
        script.turn(tape.messages, "assistant")
        script.resumes = self._turns.resumes(self.engine, tape)
        self._turns.write_answer(script, message)
        return self._lexicon.encode(script.pieces)

    def _names(self, tape: Tape) -> Mapping[str, str]:
        """The tools that the tape's answer called, where results name them again or stand in their order."""
        form = self.table.results
        if tape.calls or tape.before is None or form is None or not (form.named or form.by_call):
            return tape.calls
        parser = self.parser(tape.before)
        events = [*parser.feed(tape.added), *parser.end()]
        return {event.id: event.name for event in events if isinstance(event, ToolCallDelta) and event.id}

    def _declines(
        self, tape: Tape, messages: Sequence[Message], tools: Sequence[ToolSpec] | None, reasoned: bool
    ) -> Reason | None:
        if not isinstance(tape.origin, Sampled):
            return Reason.NOT_SAMPLED
        if tools is not None and tools is not tape.tools and tools_hash(tools) != tape.tools_hash:
            return Reason.TOOLS_CHANGED
        last = int(tape.added[-1]) if len(tape.added) else -1
        if last in self.stop_ids and last not in self.closing_ids:
            return Reason.STOPPED_OTHERWISE
        for message in messages:
            if message.role == "assistant" or (message.role == "system" and self.table.system is None):
                return Reason.ROLE_NOT_APPENDED
        if self.table.declines is not None and (reason := self.table.declines(self.engine, tape, messages)) is not None:
            return reason
        return Reason.THINKING_DROPPED if self._drops(messages, reasoned) else None

    def _drops(self, messages: Sequence[Message], reasoned: bool) -> bool:
        """Whether a full render would show less reasoning than the tape has."""
        thinking = self.table.speech.thinking
        if thinking is None or self.options.history is ThinkingPolicy.KEEP:
            return False
        if self._turns.prompt_reasons and not self._turns.thinks and thinking.shown is Shown.FILLED:
            # The prompt holds an empty block, and the template leaves it out of what is past.
            return True
        return reasoned and thinking.past is Past.DROPPED and self._turns.last_query(messages) is not None


def _continues(script: Script, opening: str) -> bool:
    """Take what opens the next turn from the script, where the answer ended with it. False if another one opens."""
    first = script.pieces[0]
    script.pieces[0] = first._replace(text=first.text.removeprefix(opening))
    return first.text.startswith(opening)


def tools_hash(tools: Sequence[ToolSpec]) -> str:
    return hashlib.sha256(msgspec.json.encode(tools)).hexdigest() if tools else ""
