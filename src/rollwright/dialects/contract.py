"""What a dialect promises: one wire format of model calls, read and written in both directions, with no socket inside.

Bytes in, events out; events in, bytes out. The client side (`write_request`, `read_reply`, `stream_reader`) speaks to
an engine; the server side (`read_request`, `write_reply`, `stream_writer`) answers a program that believes it talks to
a provider. Bytes that do not parse are a WireError whose one sentence is fit for the peer; nothing else escapes, except
that an engine which reports its own failure inside a good stream or a good body raises EngineError.

A call that was read names its dialect. `extra` holds the top-level request fields that we do not know, and the tools
that are no functions; `source` is the request as it was written, with all that we do not know inside of its messages
and tools. `write_request` of the same dialect sends both untouched, where the messages and tools of the call are still
those that were read; another dialect sends neither. Fields that we know win over fields of the same name in `extra`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rollwright.wire import Event, ModelCall, ModelReply

from .forms import Form
from .images import Images


class StreamReader(Protocol):
    """The client's end of one stream. Where the bytes are cut changes nothing."""

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes; `End` is the last one ever. WireError for bytes that make no sense,
        EngineRefused or EngineUnavailable for an error that the engine tells inside the stream."""
        ...

    def close(self) -> None:
        """The peer sent its last byte. WireError if that was before `End`."""
        ...


class StreamWriter(Protocol):
    """The server's end of one stream: `open`, then `write` for each event, `End` last, or `error` instead of it."""

    def open(self) -> bytes: ...
    def write(self, event: Event) -> bytes:
        """May be empty. `End` yields all that the dialect wants at its end."""
        ...

    def error(self, message: str) -> bytes:
        """The engine died mid-stream: say so in the dialect's shape. Nothing is written after it."""
        ...


class Dialect(Protocol):
    """One wire format. Objects of this kind hold no state and are shared by all calls."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str:
        """Where it is served, from the root of the host."""
        ...

    def headers(self, key: str) -> dict[str, str]:
        """What a request of this dialect carries besides its body; an empty key sends no key."""
        ...

    def write_request(self, call: ModelCall, images: Images) -> bytes: ...
    def read_reply(self, body: bytes) -> ModelReply: ...
    def stream_reader(self) -> StreamReader: ...
    def read_error(self, status: int, body: bytes) -> str:
        """The human sentence in an error body, whatever its shape; never empty, never raises."""
        ...

    def read_key(self, headers: Mapping[str, str]) -> str:
        """The caller's key, empty if there is none."""
        ...

    @property
    def form(self) -> Form:
        """How requests are laid out, for `Tails`, which reads those of one rollout faster."""
        ...

    def read_request(self, body: bytes, images: Images) -> ModelCall: ...
    def write_reply(self, reply: ModelReply, call: ModelCall) -> bytes: ...
    def stream_writer(self, call: ModelCall) -> StreamWriter: ...
    def write_error(self, status: int, message: str, kind: str = "") -> bytes:
        """An error body. `kind` is the provider's word for it; it follows from `status` where empty."""
        ...
