"""The border to Modal's SDK: everything that is asked of it, and what its errors mean. No other module names it.

The SDK runs on a loop and a thread of its own, so one client serves every loop of this process. Its control plane
makes and ends sandboxes; commands go straight to the worker that hosts the box. The SDK itself repeats requests that
failed on the way, under an id by which the vendor recognises them.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from typing import Any

from rollwright.runtimes.local.threads import in_thread
from rollwright.runtimes.provision.flights import Flights
from rollwright.runtimes.remote import LinkBroken, Pace, Retry
from rollwright.wire import RuntimeFault, RuntimeLost, UsageError

from .config import ModalConfig

_BURST = 8
_CALL_S = 60.0
ENTRYPOINT = 'mkdir -p "$0/control" && { sleep 90000 & } && : > "$0/control/up"; wait; wait'
"""The first process of a box, given the box's directory. While it waits, it also reaps what has lost its parent."""

_PASSING = ("ServiceError", "InternalError", "ConnectionError", "TimeoutError", "InternalFailure")
_GONE = ("NotFoundError", "ConflictError", "ClientClosed", "SandboxTerminatedError", "SandboxTimeoutError")
_STRANGERS = ("AuthError", "PermissionDeniedError")


class Vendor:
    """One account as the environment tells it. Apps and images are looked up once."""

    def __init__(self) -> None:
        self._sdk: Any = None
        self._places: dict[str, tuple[Any, Any]] = {}
        self._flights: Flights[tuple[Any, Any]] = Flights()
        self._paces: dict[float, Pace] = {}

    def __repr__(self) -> str:
        return f"<Vendor modal, {len(self._places)} apps with an image>"

    def pace(self, creates_per_s: float) -> Pace:
        return self._paces.setdefault(creates_per_s, Pace(1 / creates_per_s, _BURST))

    async def create(self, config: ModalConfig, name: str) -> Any:
        """A running sandbox called `name`. Called again after a lost answer, it gives the one that was made."""
        sdk = await self._loaded()
        app, image = await self._place(config)
        options: dict[str, Any] = {
            "app": app,
            "name": name,
            "image": image,
            "timeout": config.lifetime_s,
            "block_network": config.block_network,
            "encrypted_ports": list(config.ports),
        }
        if config.idle_timeout_s:
            options["idle_timeout"] = config.idle_timeout_s
        if config.cpu:
            options["cpu"] = config.cpu
        if config.memory_mb:
            options["memory"] = (config.memory_mb, config.memory_mb)
        if config.region:
            options["region"] = config.region
        try:
            return await sdk.Sandbox.create.aio("sh", "-c", ENTRYPOINT, config.directory, **options)
        except sdk.exception.AlreadyExistsError:
            return await sdk.Sandbox.from_name.aio(config.app, name)

    async def free(self, app: str, name: str, sandbox_id: str) -> None:
        """End a sandbox that is known by its id, or only by its name. One that is gone is freed."""
        sdk = await self._loaded()
        try:
            async with asyncio.timeout(_CALL_S):
                if sandbox_id:
                    sandbox = await sdk.Sandbox.from_id.aio(sandbox_id)
                else:
                    sandbox = await sdk.Sandbox.from_name.aio(app, name)
                await sandbox.terminate.aio()
                await sandbox.detach.aio()
        except sdk.exception.NotFoundError:
            return
        except Exception as error:  # The SDK's errors have no common root; this is its border.
            raise RuntimeFault(f"modal could not end sandbox {sandbox_id or name}: {_words(error)}") from error

    async def _loaded(self) -> Any:
        if self._sdk is None:
            self._sdk = await in_thread(importlib.import_module, "modal")
        return self._sdk

    async def _place(self, config: ModalConfig) -> tuple[Any, Any]:
        """The app and the image of a box. Looked up and built once, for all who ask at the same time."""
        key = "|".join((config.app, config.image, "" if config.image else config.python))
        if key not in self._places:
            self._places[key] = await self._flights.join(key, lambda: self._prepare(config))
        return self._places[key]

    async def _prepare(self, config: ModalConfig) -> tuple[Any, Any]:
        app = await self._sdk.App.lookup.aio(config.app, create_if_missing=True)
        if config.image:
            image = self._sdk.Image.from_registry(config.image)
        else:
            image = self._sdk.Image.debian_slim(python_version=config.python).pip_install("uv")
        return app, await image.build.aio(app)


_shared = Vendor()


def shared_vendor() -> Vendor:
    """The one that every box of this process uses unless it is given another."""
    return _shared


def check_installed() -> None:
    if importlib.util.find_spec("modal") is None:
        raise UsageError("runtime 'modal' needs its SDK; install it with: pip install 'rollwright[modal]'")


def meaning(error: Exception) -> Retry | None:
    """Whether creating may be tried again after this."""
    if _is(error, "ResourceExhaustedError"):
        return Retry(after_s=1.0)
    return Retry() if _is(error, *_PASSING) or isinstance(error, OSError) else None


def refused(error: Exception, what: str) -> RuntimeFault:
    """An error of the SDK that says that no box was made, and that none will be."""
    if _is(error, *_STRANGERS):
        return RuntimeFault(
            f"modal refused {what}: {_words(error)}. Set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run: modal token new"
        )
    return RuntimeFault(f"modal could not make {what}: {_words(error)}")


def broken(error: Exception, name: str) -> Exception:
    """An error of the SDK while a box is used: the box is gone, or only the answer is."""
    if _is(error, *_GONE):
        return RuntimeLost(f"box {name} is gone: {_words(error)}")
    if _is(error, *_STRANGERS, "InvalidError"):
        return RuntimeFault(f"modal refused a command in box {name}: {_words(error)}")
    return LinkBroken(_words(error))


def ending(error: Exception) -> str:
    """Why a sandbox is over, where an error of waiting for it says so."""
    if _is(error, "SandboxTimeoutError"):
        return "is past its lifetime or idle time"
    return "is not known to the vendor any more" if _is(error, "NotFoundError") else ""


def is_conflict(error: Exception) -> bool:
    """The request came too late for the state that its object is in."""
    return _is(error, "ConflictError")


def _is(error: Exception, *names: str) -> bool:
    """By name along the bases, so that reading an error does not import the SDK. Timeouts of a command are not among
    those of the connection."""
    bases = {base.__name__ for base in type(error).__mro__ if base.__module__ == "modal.exception"}
    return not bases.isdisjoint(names)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
