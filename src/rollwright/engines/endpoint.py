"""Where a call goes: the address, the headers with the key, the proxy. Read from settings and environment once."""

from __future__ import annotations

import base64
import ipaddress
import os
import re
import urllib.request
from collections.abc import Mapping
from typing import Protocol

import msgspec
from yarl import URL

from rollwright.wire import ModelReply, UsageError

from .config import RelayConfig

VENDORS = {
    "chat": "https://api.openai.com",
    "responses": "https://api.openai.com",
    "messages": "https://api.anthropic.com",
}
_CALL_PATHS = ("/chat/completions", "/responses", "/messages")


class ClientSide(Protocol):
    """What the client of an endpoint needs of a wire format, besides writing requests and reading streams."""

    @property
    def path(self) -> str: ...
    def headers(self, key: str) -> dict[str, str]: ...
    def read_reply(self, body: bytes) -> ModelReply: ...
    def read_error(self, status: int, body: bytes) -> str: ...


class Endpoint(msgspec.Struct, frozen=True):
    """One address that speaks one dialect. Its `repr` and `name` are free of secrets."""

    name: str
    """The address as people know it, for messages."""
    url: URL
    headers: dict[str, str]
    key_variable: str
    has_key: bool
    proxy: URL | None = None
    proxy_headers: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"<Endpoint {self.url}>"


def find_endpoint(config: RelayConfig, dialect: ClientSide, environ: Mapping[str, str] = os.environ) -> Endpoint:
    base = base_url(config.base_url or VENDORS[config.dialect])
    key = environ.get(config.key_variable, "").strip()
    if any(ord(letter) < 33 or ord(letter) > 126 for letter in key):
        raise UsageError(f"the key in {config.key_variable} holds characters that no key has; set it again")
    # Compression saves little on loopback and the wire is rarely the limit, but inflating runs on the event loop.
    headers = {"content-type": "application/json", "accept-encoding": "identity", **dialect.headers(key)}
    proxy, proxy_headers = find_proxy(base)
    path = base.path.rstrip("/") + dialect.path.removeprefix("/v1")
    return Endpoint(
        name=str(base),
        url=base.with_path(path),
        headers=headers,
        key_variable=config.key_variable,
        has_key=bool(key),
        proxy=proxy,
        proxy_headers=proxy_headers,
    )


def base_url(text: str) -> URL:
    """The address under which the dialect's paths lie. A bare host gets /v1; a pasted call address loses its tail; any
    other path is the user's own and stays."""
    if "://" not in text:
        raise UsageError(f"the base URL {text!r} has no scheme; write http://{text} or https://{text}")
    try:
        url = URL(text.strip())
        host, _port = url.host, url.port
    except ValueError as error:
        raise UsageError(f"the base URL {text!r} cannot be read: {error}") from error
    if url.scheme not in ("http", "https") or not host:
        raise UsageError(f"the base URL {text!r} is not an http or https address")
    if url.user or url.password:
        raise UsageError("the base URL holds a password; put the key into the environment variable of api_key_env")
    path = re.sub("(" + "|".join(_CALL_PATHS) + ")$", "", url.path.rstrip("/"))
    return url.with_query(None).with_fragment(None).with_path(path or "/v1")


def find_proxy(url: URL) -> tuple[URL | None, dict[str, str] | None]:
    """The proxy that HTTP_PROXY, HTTPS_PROXY and NO_PROXY name for this address, once instead of per request. Loopback
    never goes through a proxy. Proxies other than http are not spoken."""
    host = url.host or ""
    if is_loopback(host) or urllib.request.proxy_bypass(f"{host}:{url.port}"):
        return None, None
    value = urllib.request.getproxies().get(url.scheme, "")
    if not value.startswith("http://"):
        return None, None
    proxy = URL(value)
    if not proxy.user:
        return proxy, None
    secret = base64.b64encode(f"{proxy.user}:{proxy.password or ''}".encode()).decode("ascii")
    return proxy.with_user(None), {"Proxy-Authorization": f"Basic {secret}"}


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
