"""What an attempt's failure means: worth another try, or the last word. The one place where HTTP becomes our errors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import aiohttp

from rollwright.wire import EngineRefused, EngineUnavailable, WireError

from .endpoint import ClientSide, Endpoint
from .pacing import retry_after_s

_OVERLOADED = (429, 503, 529)
_MAY_PASS = (408, 409, 425, 429)


class Setback(Exception):
    """One attempt failed in a way that may pass. Never leaves the relay."""

    def __init__(self, reason: str, *, overloaded: bool = False, asked_s: float | None = None, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.overloaded = overloaded
        """The endpoint has too much to do, so fewer calls should be in flight."""
        self.asked_s = asked_s
        """How long the endpoint asked us to stay away."""
        self.hint = hint
        """What a person may do about it if it does not pass."""


def refuse_or_retry(
    endpoint: Endpoint, dialect: ClientSide, response: aiohttp.ClientResponse, body: bytes, *, model: str
) -> Setback | EngineRefused:
    """The error that an answer with a bad status stands for."""
    status, headers = response.status, response.headers
    said = dialect.read_error(status, body)
    # A spent quota comes as 429 from some vendors and does not refill while we wait.
    hopeless = headers.get("x-should-retry") == "false" or (status == 429 and b"insufficient_quota" in body)
    if (status >= 500 or status in _MAY_PASS) and not hopeless:
        hint = "lower max_concurrency or set requests_per_minute" if status == 429 else "look at the server's log"
        asked_s = retry_after_s(headers, time.time())
        return Setback(f"answered {status}: {said}", overloaded=status in _OVERLOADED, asked_s=asked_s, hint=hint)
    return EngineRefused(_refusal(endpoint, status, headers, said, model))


def _refusal(endpoint: Endpoint, status: int, headers: Mapping[str, str], said: str, model: str) -> str:
    if 300 <= status < 400:
        target = headers.get("Location", "another address")
        return f"{endpoint.name} sends calls on to {target} ({status}), which is not followed; use that as base_url"
    if status in (401, 403):
        step = "check the key in" if endpoint.has_key else "no key was sent; put one into"
        return f"{endpoint.name} refused the key ({status}: {said}); {step} {endpoint.key_variable}"
    if status == 404:
        return f"{endpoint.url} was not found ({said}); check the model name {model!r} and the base_url"
    return f"{endpoint.name} refused the call ({status}: {said})"


@contextmanager
def translated(endpoint: Endpoint) -> Iterator[None]:
    """Errors of the HTTP client, said in our words. Cancellation passes through."""
    try:
        yield
    except (aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch) as error:
        raise EngineRefused(f"{endpoint.name} showed no certificate that this machine trusts: {error}") from error
    except aiohttp.ConnectionTimeoutError as error:
        raise Setback("took no connection in time", overloaded=True, hint="check the base_url") from error
    except TimeoutError as error:
        raise Setback("did not answer in time", overloaded=True, hint="raise timeout_s") from error
    except aiohttp.ClientConnectorError as error:
        reason = error.os_error.strerror or str(error.os_error)
        raise Setback(f"cannot be reached: {reason}", hint="check the base_url and that the server runs") from error
    except aiohttp.InvalidURL as error:
        raise EngineRefused(f"{endpoint.name} is not an address: {error}") from error
    except (aiohttp.ClientError, OSError) as error:
        said = f"{type(error).__name__}: {error}"[:200]
        raise Setback(f"broke the connection ({said})", hint="look at the server's log") from error


@contextmanager
def understood(endpoint: Endpoint) -> Iterator[None]:
    """Errors of a dialect that reads an answer, said in our words."""
    try:
        yield
    except WireError as error:
        raise Setback(f"sent what makes no sense: {error}", hint="check that it speaks this dialect") from error
    except EngineUnavailable as error:
        raise Setback(f"said inside its answer: {error}") from error
    except EngineRefused as error:
        raise EngineRefused(f"{endpoint.name} refused the call: {error}") from error
