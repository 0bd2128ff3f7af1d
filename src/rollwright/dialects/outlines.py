"""Where the parts of a request lie in its bytes: what stands before its list of messages, each element of the list, and
what follows. Values are cut out by the JSON reader, so that a bracket inside a string deceives nobody; what is not JSON
is refused here.

A list may also be read from a border within it, given what follows that border: reading JSON goes from left to right,
so bytes that were read once mean the same when they stand at the beginning of another body."""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple

import msgspec
import orjson

from rollwright.wire import WireError

from .jsontext import read
from .steps import STEP_BYTES, STEP_ELEMENTS, Steps

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_OPENING = re.compile(rb"[ \t\n\r]*\{")
_KEY = re.compile(rb'[ \t\n\r]*("(?:[^"\\]|\\.)*")[ \t\n\r]*:[ \t\n\r]*', re.DOTALL)
_GAP = re.compile(rb"[ \t\n\r]*,?[ \t\n\r]*")
_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_LISTED_AT_ONCE = 8 * STEP_ELEMENTS
# A name that no request has, for the list that is read from a border. Nobody outside learns it.
_REST = secrets.token_hex(16)


class Outline(NamedTuple):
    """Offsets count from the beginning of the body, also where only the end of it was read."""

    head: bytes
    """All up to the bracket that opens the list, and with it. Empty where the request has no list."""
    elements: list[msgspec.Raw]
    ends: list[int]
    """Where each element ends. The next one begins with the comma between them."""
    after: bytes
    """All from the bracket that closes the list."""
    texts: list[bytes]
    """The body from the border on that was read from, in one piece or in slices that end with elements."""


def outline(body: bytes, field: str, what: str) -> Steps[Outline]:
    """The outline of a whole body. A `field` that is no list is no failure: it belongs to what follows."""
    check_text(body, 0, what)
    large = len(body) > STEP_BYTES
    if large:
        yield
    fields = read(_FIELDS, body, what)
    if large:
        yield
    value = fields.get(field)
    if value is None:
        raise WireError(f"{what} does not parse: Object missing required field `{field}`")
    if bytes(memoryview(value)[:1]) != b"[":
        return Outline(b"", [], [], body, [])
    begin = _value_of(body, fields, field, what) + 1
    elements = read(_ELEMENTS, value, what)
    if large:
        yield
    return (yield from _listed(body[:begin], body, begin, body[begin:], begin, elements))


def outline_rest(head: bytes, rest: bytes, at: int, what: str) -> Steps[Outline]:
    """The outline from a border of the list: after its opening bracket or after one of its elements. `rest` is what
    stands from there, and `at` the offset of the border."""
    check_text(rest, at, what)
    large = len(rest) > STEP_BYTES
    before = b'{"%b":[' % _REST.encode() if at == len(head) else b'{"%b":[{}' % _REST.encode()
    text = before + rest
    if large:
        yield
    try:
        value = read(_FIELDS, text, what)[_REST]
        if large:
            yield
        elements = read(_ELEMENTS, value, what)
    except WireError as error:
        told = _AT_BYTE.sub(lambda found: f"(byte {int(found[1]) + at - len(before)})", str(error))
        raise WireError(told) from error
    if at != len(head):
        del elements[0]
    if large:
        yield
    return (yield from _listed(head, rest, 0, rest, at, elements))


def comes_after(drawn: Outline, field: str, what: str) -> bool:
    """Whether a field stands behind the list."""
    return field.encode() in drawn.after and field in read(_FIELDS, b'{"":[%b' % drawn.after, what)


def check_text(body: bytes, shift: int, what: str) -> None:
    """The JSON reader passes over fields that nobody asks for without looking at their text, and we hand them on."""
    if body.isascii():
        return
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"{what} is not UTF-8 at byte {error.start + shift}") from error


def _value_of(body: bytes, fields: dict[str, msgspec.Raw], field: str, what: str) -> int:
    """The offset of the value of `field`. The fields come in the order of the body, unless one comes twice."""
    opening = _OPENING.match(body)
    at = opening.end() if opening else 0
    for name, value in fields.items():
        key = _KEY.match(body, at)
        if key is None or orjson.loads(key[1]) != name or not body.startswith(value, key.end()):
            break
        if name == field:
            return key.end()
        after_value = _GAP.match(body, key.end() + len(memoryview(value)))
        at = after_value.end() if after_value else len(body)
    raise named_twice(what)


def named_twice(what: str) -> WireError:
    return WireError(f"{what} names a field twice, so that readers would not agree on what it says")


def _listed(head: bytes, text: bytes, begin: int, rest: bytes, at: int, elements: list[msgspec.Raw]) -> Steps[Outline]:
    """The elements stand in `text` from `begin` on, which is the offset `at` of the body; `rest` is all from there."""
    ends: list[int] = []
    for first in range(0, len(elements), _LISTED_AT_ONCE):
        if first:
            yield
        read_to = ends[-1] - at if ends else 0
        ends += ends_of(text, begin + read_to, at + read_to, elements[first : first + _LISTED_AT_ONCE])
    last = ends[-1] - at if ends else 0
    return Outline(head, elements, ends, text[_after_gap(text, begin + last) :], [rest])


def ends_of(text: bytes, begin: int, at: int, elements: list[msgspec.Raw]) -> list[int]:
    """Where elements end that stand in `text` from `begin` on, which is the offset `at` of the body."""
    ends = []
    here = begin
    for element in elements:
        here = _after_gap(text, here) + len(memoryview(element))
        ends.append(here + at - begin)
    return ends


def _after_gap(text: bytes, at: int) -> int:
    gap = _GAP.match(text, at)
    return gap.end() if gap else at
