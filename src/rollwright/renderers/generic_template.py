"""A foreign chat template as its model's own library runs it: the same sandbox, filters and functions.

What is not here: what the template means. `generic_probe.py` asks it, and `generic.py` renders with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rollwright.wire import UsageError

Row = dict[str, Any]

_NAMED = ("bos_token", "eos_token")


class ForeignTemplate:
    """One template. `named` are the control strings that it may ask for by name; `date` is its only clock."""

    def __init__(self, source: str, named: Mapping[str, str], date: str) -> None:
        environment = _environment(date)
        try:
            wanted = find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise UsageError(f"the chat template cannot be read: {error}") from error
        for name in _NAMED:
            if name in wanted and name not in named:
                raise UsageError(f"the chat template asks for the {name}; give it with the model's tokenizer settings")
        self.source = source
        self._named = dict(named)

    def text(self, rows: Sequence[Row], tools: Sequence[Row], *, prompt: bool, given: Mapping[str, Any]) -> str:
        """What the template makes of a conversation. UsageError if it refuses."""
        try:
            return self._template.render(
                messages=list(rows), tools=list(tools) or None, add_generation_prompt=prompt, **self._named, **given
            )
        except Exception as error:  # The border: a foreign template may fail in any way that Python knows.
            raise UsageError(f"the chat template refuses this conversation: {error}") from error


class _Generation(Extension):
    """Templates made for training put `{% generation %}` around answers. It writes nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _environment(date: str) -> ImmutableSandboxedEnvironment:
    try:
        today = datetime.strptime(date, "%d %b %Y").replace(tzinfo=UTC)
    except ValueError:
        raise UsageError(f"the date {date!r} is not of the form 26 Jul 2024") from None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = today.strftime
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without the HTML escapes of Jinja's own, as models are trained."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise TemplateError(message)
