"""What a model's own chat template and tokenizer make of a conversation: the other side of every parity test."""

import json
from datetime import date

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rollwright.renderers.families.jsons import tool_object
from rollwright.wire import Image, Message, Reasoning, Text, ToolResult


class Refused(Exception):
    """The template refuses the conversation."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """As careful as the stock one about what begins with an underscore, and three times as fast about the rest."""

    def is_safe_attribute(self, obj, attr, value):
        return not attr.startswith("_")


class Oracle:
    """One template. `arguments` says whether it wants the arguments of calls as text or as an object, `reasoning` how
    it calls the reasoning of a message, and `hollow` what it is given as the content of an answer that only calls."""

    def __init__(self, template, *, arguments="object", reasoning="reasoning_content", hollow="", **given):
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: date(2026, 1, 2).strftime(form)
        self._template = environment.from_string(template)
        self._arguments = arguments
        self._reasoning = reasoning
        self._hollow = hollow
        self._given = given

    def text(self, messages, tools=(), *, prompt=True, **given):
        """The text that the template gives, control strings included."""
        shown = [row for message in messages for row in self._rows(message)]
        offered = [tool_object(tool) for tool in tools] or None
        try:
            return self._template.render(
                messages=shown, tools=offered, add_generation_prompt=prompt, **{**self._given, **given}
            )
        except (Refused, TemplateError) as error:
            raise Refused(str(error)) from error

    def _rows(self, message: Message):
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        if results:
            return [
                {"role": "tool", "content": _content(result.content), "tool_call_id": result.call_id}
                for result in results
            ]
        content = _content(message.parts) or (self._hollow if message.tool_calls else "")
        row = {"role": message.role, "content": content}
        if any(isinstance(part, Reasoning) for part in message.parts):
            row[self._reasoning] = message.reasoning
        if message.tool_calls:
            row["tool_calls"] = [self._call(call) for call in message.tool_calls]
        return [row]

    def _call(self, call):
        arguments = call.arguments if self._arguments == "text" else json.loads(call.arguments)
        return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _content(parts):
    if any(isinstance(part, Image) for part in parts):
        return [
            {"type": "image"} if isinstance(part, Image) else {"type": "text", "text": part.text}
            for part in parts
            if isinstance(part, Image | Text)
        ]
    return "".join(part.text for part in parts if isinstance(part, Text))


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message):
    raise Refused(message)
