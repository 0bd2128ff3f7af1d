"""The generic family: a model whose template no table was proven against, rendered by that very template.

A full render runs the template and encodes its text. Extending writes what the template writes after an answer, for
turns whose appending was proven at construction; all others are declined, and the caller renders again. The parser
knows the tags that the template shows; what a model writes in others is read as text.

Not covered: images, and keeping reasoning that the template drops.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from rollwright.telemetry import Metrics
from rollwright.wire import Message, ToolSpec, UsageError, reply_of
from rollwright.wire.arrays import Ids

from .attribution import Written
from .contract import Declined, Parser, Reason, RenderOptions, ThinkingPolicy
from .engine import TokenEngine
from .families.table import Family, Speech, Wrap
from .generic_model import ForeignModel
from .generic_probe import ASK, Findings, probe
from .generic_proof import Prover, Shape, appended, shape_of
from .generic_template import ForeignTemplate
from .lexicon import Lexicon, lexicon_of
from .parse import PushParser
from .render import DECLINED_HELP, tools_hash
from .script import Piece, Script
from .source import ModelTokens
from .tags import Tags
from .tape import Sampled, Tape

NAME = "generic"


class GenericRenderer:
    """The renderer of one foreign template over one vocabulary. What was found and proven is shared by all renderers of
    the same template, vocabulary and options."""

    def __init__(
        self,
        template: str,
        engine: TokenEngine,
        options: RenderOptions | None = None,
        metrics: Metrics | None = None,
        tokens: ModelTokens | None = None,
    ) -> None:
        self.family = NAME
        self.engine = engine
        self.options = options or RenderOptions()
        self._metrics = metrics or Metrics()
        self._known: _Known = _known(template, engine, self.options, tokens or ModelTokens())  # type: ignore[arg-type]
        self._lexicon = self._known.lexicon
        self._model = self._known.findings.model
        self.stop_ids = self._known.stop_ids
        self.image_ids: tuple[int, ...] = ()

    @property
    def proven(self) -> frozenset[Shape]:
        """The turns that are extended."""
        return self._known.proven

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = True) -> Tape:
        pieces, _ = self._model.pieces(messages, tools, prompt=prompt)
        return Tape(
            added=self._lexicon.encode(pieces),
            origin=Written(pieces, self._lexicon),
            messages=len(messages),
            open=prompt,
            tools=tuple(tools),
            tools_hash=tools_hash(tools),
            reasoned=any(message.reasoning for message in messages) and self._reasons(pieces),
        )

    def extend(
        self, tape: Tape, messages: Sequence[Message], tools: Sequence[ToolSpec] | None = None
    ) -> Tape | Declined:
        reason = self._declines(tape, messages, tools)
        if reason is not None:
            return self._decline(reason)
        answer = self._known.read(tape.before, tape.added) if tape.before is not None else Message("assistant", ())
        shape = shape_of(answer, messages, tools=bool(tape.tools), reasoned=tape.reasoned)
        if shape not in self.proven:
            calm = shape._replace(reasoned=False, reasoning=False)
            return self._decline(Reason.THINKING_DROPPED if calm in self.proven else Reason.UNVERIFIED)
        pieces = appended(self._model, answer, messages, tape.tools)
        if pieces is None:
            # The template looks into these very texts.
            return self._decline(Reason.UNVERIFIED)
        return self._longer(tape, messages, pieces, reasoned=tape.reasoned or shape.reasoning)

    def parser(self, tape: Tape) -> Parser:
        return self._known.parser(tape)

    def answer(self, tape: Tape, message: Message) -> Ids:
        prompt = self._text(self._model.pieces(ASK, tape.tools)[0])
        pieces, _ = self._model.pieces((*ASK, message), tape.tools, prompt=False)
        text = self._text(pieces)
        if not text.startswith(prompt):
            # The template writes what is past in another way than what is to come.
            return self._lexicon.encode([*self._bare(tape, message), *self._close])
        # Only the format's own end counts, not one that the message speaks of.
        ends = [at for name in self._known.stops for at in _framed(pieces, name) if at >= len(prompt)]
        return self._lexicon.encode([*_between(pieces, len(prompt), min(ends, default=len(text))), *self._close])

    def _bare(self, tape: Tape, message: Message) -> list[Piece]:
        """The answer by the tags that were found."""
        script = Script(self.options.literal)
        script.turn(tape.messages, "assistant")
        thinking, calls = self._known.findings.thinking, self._known.findings.calls
        if thinking is not None and (message.reasoning or self._known.findings.inside):
            script.frame(thinking.open[len(thinking.prompt) :] if self._known.findings.inside else thinking.open)
            script.said(message.reasoning)
            script.frame(thinking.close)
        script.said(message.text)
        if message.tool_calls and calls is None:
            raise UsageError("the chat template shows no calls of tools that could be read back")
        joint = calls.lead if calls is not None and message.text else ""
        for call in message.tool_calls:
            assert calls is not None
            script.frame(joint)
            calls.write(script, call)
            joint = calls.between
        return script.pieces

    @property
    def _close(self) -> list[Piece]:
        return [Piece(self._known.stops[0], None, -1, "assistant")]

    def _reasons(self, pieces: Sequence[Piece]) -> bool:
        """Whether reasoning may be shown."""
        thinking = self._known.findings.thinking
        return thinking is None or thinking.begin in self._text(pieces)

    @staticmethod
    def _text(pieces: Sequence[Piece]) -> str:
        return "".join([piece.text for piece in pieces])

    def _declines(self, tape: Tape, messages: Sequence[Message], tools: Sequence[ToolSpec] | None) -> Reason | None:
        if not isinstance(tape.origin, Sampled):
            return Reason.NOT_SAMPLED
        if tools is not None and tools is not tape.tools and tools_hash(tools) != tape.tools_hash:
            return Reason.TOOLS_CHANGED
        if len(tape.added) and int(tape.added[-1]) in self.stop_ids[1:]:
            return Reason.STOPPED_OTHERWISE
        if any(message.role == "assistant" for message in messages):
            return Reason.ROLE_NOT_APPENDED
        return None

    def _decline(self, reason: Reason) -> Declined:
        self._metrics.counter("renderer_declined_total", DECLINED_HELP, family=self.family, reason=reason).inc()
        return Declined(reason)

    def _longer(self, tape: Tape, messages: Sequence[Message], pieces: Sequence[Piece], *, reasoned: bool) -> Tape:
        # The stand-in conversation has one message before the answer.
        shift = tape.messages - 1 - len(ASK)
        placed = [piece._replace(message=piece.message + shift) if piece.message >= 0 else piece for piece in pieces]
        if not (len(tape.added) and tape.added[-1] == self.stop_ids[0]):
            placed.insert(0, Piece(self._model.habits.close, None, tape.messages - 1, "assistant"))
        return Tape(
            added=self._lexicon.encode(placed),
            origin=Written(placed, self._lexicon),
            before=tape,
            start=len(tape),
            messages=tape.messages + len(messages),
            open=True,
            tools=tape.tools,
            tools_hash=tape.tools_hash,
            reasoned=reasoned,
        )


class _Known:
    """What is found out about a template once."""

    def __init__(self, template: str, engine: TokenEngine, options: RenderOptions, tokens: ModelTokens) -> None:
        plain = _plain(engine, template)
        self.lexicon: Lexicon = lexicon_of(engine, plain)
        names = sorted(self.lexicon.controls, key=len, reverse=True)
        control = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        model = ForeignModel(ForeignTemplate(template, tokens.named, options.date), control, options)
        self.findings: Findings = probe(model, control)
        self.stop_ids = _stop_ids(engine, self.findings.model.habits.close, tokens)
        by_id = {id: name for name, id in engine.specials.items()}
        self.stops = tuple(by_id[id] for id in self.stop_ids)
        self._tags = Tags(_table(self.findings, self.stops, plain), engine)
        self.proven = Prover(self.findings, engine.encode, lambda ids: self.read(None, ids)).proven()
        if options.history is ThinkingPolicy.KEEP and self._drops():
            raise UsageError("this chat template drops earlier reasoning, and only a family's table can keep it")

    def _drops(self) -> bool:
        """Whether turns are extended without reasoning that are not extended with it."""
        calm = {shape for shape in self.proven if not (shape.reasoned or shape.reasoning)}
        found = self.findings.thinking is not None
        return found and any(shape._replace(reasoning=True) not in self.proven for shape in calm)

    def parser(self, tape: Tape) -> Parser:
        return PushParser(self._tags, tape, inside=self.findings.inside)

    def read(self, tape: Tape | None, ids: Ids) -> Message:
        """The answer to a tape."""
        if tape is None:
            tape = Tape(added=ids[:0], origin=Sampled(0), messages=1, open=True)
        parser = self.parser(tape)
        return reply_of([*parser.feed(ids), *parser.end()]).message


_known = lru_cache(maxsize=64)(_Known)


def _plain(engine: TokenEngine, template: str) -> str:
    """Added tokens that are text: spaces, and what is neither marked special, nor used by the template, nor spelled
    like a control string."""
    names = [
        name
        for name in engine.specials
        if name not in engine.reserved and name not in template and not (name.startswith("<|") or name.endswith("|>"))
    ]
    return "|".join([r"\s+", *map(re.escape, sorted(names))])


def _stop_ids(engine: TokenEngine, close: str, tokens: ModelTokens) -> tuple[int, ...]:
    found = [engine.special(close)] if close else []
    if (end := tokens.named.get("eos_token")) is not None:
        found.append(engine.special(end))
    known = set(engine.specials.values())
    found += [id for id in tokens.stop_ids if id in known]
    if not found:
        raise UsageError("nothing tells which token ends an answer; give the model's eos_token")
    return tuple(dict.fromkeys(found))


def _table(findings: Findings, stops: tuple[str, ...], plain: str) -> Family:
    """What the parser asks a table for."""
    speech = Speech("", stops[0], "", thinking=findings.thinking, calls=findings.calls)
    return Family(NAME, (), (), _NoHead(), Wrap("", ""), speech, None, stops, plain=plain)


class _NoHead:
    """The template itself writes all beginnings."""

    def write(
        self, script: Script, messages: Sequence[Message], tools: Sequence[ToolSpec], options: RenderOptions
    ) -> int:
        raise UsageError("a foreign template is not written by a table")


def _framed(pieces: Sequence[Piece], name: str) -> list[int]:
    """Where the format itself writes `name`."""
    found, at = [], 0
    for piece in pieces:
        if piece.policy is None:
            found += [at + place.start() for place in re.finditer(re.escape(name), piece.text)]
        at += len(piece.text)
    return found


def _between(pieces: Sequence[Piece], start: int, stop: int) -> list[Piece]:
    """The pieces of the characters from `start` to `stop`."""
    found, at = [], 0
    for piece in pieces:
        keep = piece.text[max(start - at, 0) : max(stop - at, 0)]
        at += len(piece.text)
        if keep:
            found.append(piece._replace(text=keep))
    return found
