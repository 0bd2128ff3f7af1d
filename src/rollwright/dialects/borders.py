"""What the dialects share at their borders: keys, and the many shapes of an error."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NoReturn

import orjson

from rollwright.wire import EngineRefused, EngineUnavailable, ModelCall

from .forms import Form
from .images import Images
from .jsontext import dumps
from .reading import read_request

_MAX_MESSAGE = 500
_REFUSALS = ("invalid", "authentication", "permission", "not_found", "too_large", "billing", "content_policy")
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def read_key(headers: Mapping[str, str]) -> str:
    """A bearer token or an x-api-key. Agents use either, whatever their dialect."""
    lowered = {name.lower(): value for name, value in headers.items()}
    scheme, _, token = lowered.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return lowered.get("x-api-key", "").strip()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def error_kind(status: int) -> str:
    return _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")


def openai_error(message: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def write_openai_error(status: int, message: str, kind: str = "") -> bytes:
    return dumps(openai_error(message, kind or error_kind(status)))


def read_error(status: int, body: bytes) -> str:
    try:
        message = _message_in(orjson.loads(body))
    except orjson.JSONDecodeError:
        message = body[: 4 * _MAX_MESSAGE].decode("utf-8", "replace")
    message = " ".join(message.split())
    if not message:
        message = f"HTTP {status} {_phrase(status)} without a message".replace("  ", " ")
    return message if len(message) <= _MAX_MESSAGE else message[:_MAX_MESSAGE] + "..."


class Borders:
    """What every dialect has at its borders."""

    form: Form
    read_error = staticmethod(read_error)
    read_key = staticmethod(read_key)

    def read_request(self, body: bytes, images: Images) -> ModelCall:
        return read_request(self.form, body, images)


class OpenAiBorders(Borders):
    """Keys and errors of both dialects that are OpenAI's."""

    headers = staticmethod(bearer)
    write_error = staticmethod(write_openai_error)


def raise_engine_error(error: Any) -> NoReturn:
    """Raise what an engine told inside a good stream or a good body."""
    message = _message_in(error) or "the engine reported an error without a message"
    told = error if isinstance(error, dict) else {}
    kind = f"{told.get('type') or ''} {told.get('code') or ''}".lower()
    if any(word in kind for word in _REFUSALS) or told.get("code") in (400, 401, 403, 404, 413, 422):
        raise EngineRefused(message[:_MAX_MESSAGE])
    raise EngineUnavailable(message[:_MAX_MESSAGE])


def _message_in(error: Any, depth: int = 6) -> str:
    """Looks where providers, proxies and web frameworks put their sentence."""
    if isinstance(error, str):
        return error
    if isinstance(error, list) and depth:
        return "; ".join(filter(None, (_message_in(item, depth - 1) for item in error[:20])))
    if isinstance(error, dict) and depth:
        for name in ("error", "message", "detail", "msg", "error_description", "title"):
            if found := _message_in(error.get(name), depth - 1):
                return found
    return ""


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
