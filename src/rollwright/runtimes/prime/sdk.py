"""The vendor's SDK behind one door: when it is imported, one client per event loop, and what its errors mean.

The client reads key, team and address by itself, from PRIME_* variables and the file that the vendor's own tool writes.
Creating a box is asked for here, without the SDK's own tries, since those do not hear how long the vendor asks to wait.
"""

from __future__ import annotations

import asyncio
import importlib
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from rollwright.runtimes.local.threads import in_thread
from rollwright.runtimes.provision.flights import Flights
from rollwright.runtimes.remote import LinkBroken, Pace, Retry
from rollwright.wire import RuntimeFault, RuntimeLost, UsageError

if TYPE_CHECKING:
    from prime_sandboxes import AsyncSandboxClient

    from .config import PrimeConfig

_BURST = 10
_GONE = ("TERMINATED", "TIMEOUT", "ERROR")


class _Shared:
    """The client of one event loop, closed by the last box that lets go of it."""

    def __init__(self, client: AsyncSandboxClient) -> None:
        self.client = client
        self.users = 0


_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = weakref.WeakKeyDictionary()
_clients: Flights[None] = Flights()
_paces: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Pace] = weakref.WeakKeyDictionary()


async def take_client() -> AsyncSandboxClient:
    """The client of this loop. Whoever takes it lets go of it once."""
    loop = asyncio.get_running_loop()
    while loop not in _shared:  # Once more where another who waited has used it and let go of it already.
        await _clients.join("prime", _make_client)
    shared = _shared[loop]
    shared.users += 1
    return shared.client


async def _make_client() -> None:
    """In a thread, because the import and the client's TLS context take longer than a loop may be held."""
    try:
        await in_thread(importlib.import_module, "prime_sandboxes")
    except ImportError as error:
        raise UsageError("runtime 'prime' needs the vendor's SDK: pip install 'rollwright[prime]'") from error
    _shared[asyncio.get_running_loop()] = _Shared(await in_thread(_new_client))


async def let_go() -> None:
    loop = asyncio.get_running_loop()
    shared = _shared[loop]
    shared.users -= 1
    if not shared.users:
        del _shared[loop]
        await shared.client.aclose()


@asynccontextmanager
async def client_for_a_while() -> AsyncIterator[AsyncSandboxClient]:
    client = await take_client()
    try:
        yield client
    finally:
        await let_go()


def pace(config: PrimeConfig) -> Pace:
    """How fast this loop creates boxes; the first box's setting counts."""
    loop = asyncio.get_running_loop()
    if loop not in _paces:
        _paces[loop] = Pace(60.0 / config.creates_per_minute, _BURST)
    return _paces[loop]


def _new_client() -> AsyncSandboxClient:
    from prime_sandboxes import AsyncSandboxClient

    try:
        client = AsyncSandboxClient()
    except ValueError as error:  # Its own settings are wrong, such as PRIME_CONTEXT.
        raise UsageError(f"the settings of Prime Intellect are wrong: {error}") from error
    if not client.client.api_key:
        raise UsageError("no key for Prime Intellect: set PRIME_API_KEY, or log in with the vendor's own tool")
    return client


async def create(client: AsyncSandboxClient, config: PrimeConfig, name: str, key: str) -> str:
    """Ask for a box once; its id. Asked again with the same key, the vendor gives the same box."""
    from prime_sandboxes import CreateSandboxRequest

    request = CreateSandboxRequest(
        name=name,
        docker_image=config.image,
        checkpoint_id=None,
        cpu_cores=config.cpu_cores,
        memory_gb=config.memory_gb,
        disk_size_gb=config.disk_gb,
        gpu_count=config.gpu_count,
        gpu_type=config.gpu_type or None,
        network_allowlist=None if config.network_allow is None else list(config.network_allow),
        timeout_minutes=config.lifetime_minutes,
        idle_timeout_minutes=config.idle_minutes or None,
        labels=[name],
        team_id=config.team_id or client.client.config.team_id,
        region=config.region or None,
        idempotency_key=key,
    )
    payload = request.model_dump(by_alias=False, exclude_none=True) | {"vm": True}
    api = client.client
    response = await api.client.post(f"{api.base_url}/api/v1/sandbox", json=payload)
    response.raise_for_status()
    return str(response.json()["id"])


def meaning(error: Exception) -> Retry | None:
    """Whether asking for a box again may succeed."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        return Retry(_seconds(error.response.headers.get("Retry-After"))) if status == 429 or status >= 500 else None
    return Retry() if isinstance(error, httpx.TransportError) else None


def _seconds(value: str | None) -> float:
    try:
        return max(0.0, float(value or 0))
    except ValueError:
        return 0.0


@contextmanager
def told(what: str) -> Iterator[None]:
    """The SDK's errors, translated: a box that is gone, a refusal, or an answer that was lost on the way."""
    import httpx
    from prime_sandboxes import APIError, PaymentRequiredError, SandboxNotRunningError, UnauthorizedError

    try:
        yield
    except SandboxNotRunningError as error:
        raise RuntimeLost(f"{what}: {error}") from error
    except (UnauthorizedError, PaymentRequiredError) as error:
        raise RuntimeFault(f"{what}: {error}") from error
    except (APIError, httpx.HTTPError, RuntimeError) as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # The SDK tells a cancelled request as a failed one, and the cancellation would be lost.
            raise asyncio.CancelledError from error
        status = _status(error)
        if status in (404, 410):
            raise RuntimeLost(f"{what}: the vendor no longer knows the box") from error
        if status is not None and 400 <= status < 500 and status not in (401, 408, 409, 429):
            raise RuntimeFault(f"{what}: {error}") from error
        raise LinkBroken(f"{what}: {error}") from error


async def is_running(client: AsyncSandboxClient, sandbox_id: str) -> bool:
    return (await client.get(sandbox_id)).status not in _GONE


async def delete(client: AsyncSandboxClient, sandbox_id: str) -> None:
    """Delete a box; one that is gone already is deleted."""
    try:
        with told(f"deleting box {sandbox_id}"):
            await client.delete(sandbox_id)
    except RuntimeLost:
        return
    except LinkBroken as error:
        raise RuntimeFault(str(error)) from error


async def labelled(client: AsyncSandboxClient, label: str, team: str) -> list[str]:
    """Ids of the boxes with this label that still run."""
    try:
        with told("listing boxes"):
            found = await client.list(team_id=team or None, labels=[label], exclude_terminated=True)
    except LinkBroken as error:
        raise RuntimeFault(str(error)) from error
    return [box.id for box in found.sandboxes if box.status not in _GONE and label in box.labels]


def _status(error: BaseException) -> int | None:
    """The status of the HTTP answer that an error came from."""
    import httpx

    cause: Any = error
    for _ in range(5):
        if isinstance(cause, httpx.HTTPStatusError):
            return int(cause.response.status_code)
        cause = cause.__cause__ or cause.__context__ if cause is not None else None
    return None
