"""Secrets of rollouts: where a request carries one, and what the SDKs say about asking again."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import msgspec

_LONGEST = 200
"""Longer than any secret or mark; what is longer is not looked at."""


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def key_in(headers: Mapping[str, str]) -> str:
    """The secret that a request carries, empty if none. Programs use either place, whatever their dialect. `headers`
    finds its names in any case."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return headers.get("x-api-key", "").strip()


class Mark(msgspec.Struct, frozen=True):
    """What a request says about being sent more than once."""

    comes_back: bool = False
    """Its client is of a kind that asks again and says so, if it gets no answer."""
    again: bool = False
    """It was sent before."""
    key: str = ""
    """The same for all sendings of one request, where the client names it."""


_UNMARKED = Mark()


def mark_of(headers: Mapping[str, str]) -> Mark:
    """SDKs count their retries in `x-stainless-retry-count`, 0 at first; `idempotency-key` is set by hand."""
    count, key = headers.get("x-stainless-retry-count"), headers.get("idempotency-key", "")
    if count is None and not key:
        return _UNMARKED
    again = bool(key) or (count is not None and count != "0" and count.isdecimal())
    return Mark(True, again, key[:_LONGEST])
