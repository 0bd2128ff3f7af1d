"""Where a Chromium is, and which addresses it may reach. Nothing here starts one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from rollwright.wire import UsageError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_INNER = ("about", "blob", "data")
"""Schemes that reach nothing."""


def find_chromium(named: str = "", *, or_else: str = "") -> str:
    """The program to run: the one named, else the first usual one of this host; empty if there is none. `or_else` is
    what to say where the named one is not there."""
    if not named:
        return next((found for program in PROGRAMS if (found := shutil.which(program))), "")
    found = shutil.which(named)
    if found is None:
        raise UsageError(or_else or f"there is no browser program {named!r}")
    return found


class AllowedHosts:
    """Hosts that pages may come from: `host` (any port), `host:port`, or `*` for all."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        if not self._hosts:
            raise UsageError("a browser needs allow_hosts: the hosts that its pages may come from, or '*' for all")

    def admit(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme)
        except ValueError:
            return False
        if parts.scheme in _INNER:
            return True
        if parts.scheme not in _DEFAULT_PORTS or not host:
            return False
        return "*" in self._hosts or host in self._hosts or f"{host}:{port}" in self._hosts

    def resolver_rules(self, names: Mapping[str, str]) -> str:
        """What the browser is told about names. Redirects and prefetches, which are not asked about, end here too: a
        host that is not allowed has no address."""
        rules = [f"MAP {name} {address}" for name, address in names.items()]
        if "*" not in self._hosts:
            rules.append("MAP * ~NOTFOUND")
            rules += [f"EXCLUDE {host.partition(':')[0]}" for host in sorted(self._hosts) if host not in names]
        return ", ".join(rules)


def runs_as_root() -> bool:
    return os.geteuid() == 0
