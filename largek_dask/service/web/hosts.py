"""Restrict the host names that the page of jobs accepts, to prevent DNS rebinding.

In a DNS rebinding attack, a web site lets its host name resolve to an address in the viewer's
network, and can then read pages of a server without a login as if both had the same origin. The
browser still sends the site's name in the ``Host`` header, so a server that accepts only its own
names is safe. IP addresses need no check, because they are not resolved.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Callable
from functools import cache

from largek_dask import config
from largek_dask.driver.formatting import printable

MOST_BODY = 4_096
"""Maximum size of a request body, in bytes."""
MOST_SHOWN = 100
"""Maximum number of characters of a refused host name to show in the response."""
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:[0-9]*)?")
"""Pattern of a ``Host`` header: a host name or IP address, optionally with a port."""


class Hosts:
    """Host names that a server accepts; ``address`` returns the server's announced URL."""

    def __init__(self, address: Callable[[], str | None]) -> None:
        self._address = address

    async def accepts(self, host: str) -> bool:
        name = _name_of(host)
        if name == "localhost" or name.endswith(".localhost") or _is_address(name):
            return True
        given = config.get("observe.hosts") or ()
        given = given.split(",") if isinstance(given, str) else given
        known = {_name_in(str(host)) for host in (*given, self._address() or "")}
        return bool(name) and (
            not known.isdisjoint({name, "*"})
            or any(one.startswith(".") and f".{name}".endswith(one) for one in known)
            # Use a thread, because looking up this machine's names may block on the network.
            or name in await asyncio.to_thread(_own_names)
        )


def refusal(host: str) -> str:
    """Return the response for an unknown host name, with the setting that would accept it."""
    shown = printable(host)[:MOST_SHOWN]
    name = _name_of(shown) or "NAME"
    return (
        f"This server does not answer requests for the host {shown!r}, which is not one of its "
        "names: it could be a web site that tries to read this page through your browser.\n"
        "If you use this name on purpose, for example through JupyterHub or another proxy, add it "
        "to largek.observe.hosts where the server is started: in Dask's configuration\n\n"
        f"    largek: {{observe: {{hosts: [{name}]}}}}\n\n"
        f"or in the environment, DASK_LARGEK__OBSERVE__HOSTS={name}\n"
    )


def _plain(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()


def _name_of(host: str) -> str:
    """Return the host in a ``Host`` header; empty if malformed."""
    found = HOST.fullmatch(host)
    return _plain(found[1]) if found else ""


def _name_in(url: str) -> str:
    """Return the host in a URL, which may lack a scheme, port or path."""
    return _name_of(re.sub(r"^\w+://", "", url.strip()).partition("/")[0])


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@cache
def _own_names() -> frozenset[str]:
    return frozenset(map(_plain, (socket.gethostname(), socket.getfqdn())))
