"""``/largek/ready`` on a scheduler's HTTP port, for probes: whether it serves its jobs.

It is there without a dashboard too, and from before the store is opened until the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from largek_dask.service.web.hosts import GuardedHandler, Hosts

__all__ = ["answer_on", "prefix_of"]

PATH = "largek/ready"
HEALTH = "health$"
"""End of the address at which Dask itself says that it lives."""


class Ready(GuardedHandler):
    """Send whether the scheduler has its jobs."""

    def initialize(  # type: ignore[override]
        self, why_not: Callable[[], str], hosts: Hosts
    ) -> None:
        """Called by tornado."""
        super().initialize(hosts)
        self._why_not = why_not

    def get(self) -> None:
        """Send 200, or 503 with the reason."""
        reason = self._why_not()
        self.set_status(503 if reason else 200)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")
        self.finish(f"{reason or 'ready'}\n")

    def head(self) -> None:
        """Do the same: tornado leaves the text out."""
        self.get()


def answer_on(application: Any, why_not: Callable[[], str], hosts: Hosts) -> None:
    """Add ``/largek/ready`` to an HTTP server of Dask's.

    ``why_not`` returns the reason why it has not, or ""; it is called on the event loop.
    """
    path = f"{prefix_of(application)}{PATH}"
    application.add_handlers(".*$", [(path, Ready, {"why_not": why_not, "hosts": hosts})])


def prefix_of(application: Any) -> str:
    """Return the prefix of all paths of an HTTP server of Dask's, such as ``/`` or ``/proxy/``.

    Dask keeps it nowhere but in its routes: those that are there without a dashboard, and pages.
    """
    for rule in application.wildcard_router.rules:
        pattern = str(rule.matcher.regex.pattern)
        if pattern.endswith(f"/{HEALTH}"):
            return pattern.removesuffix(HEALTH)
    pages = [str(inner.prefix) for inner in application.applications if hasattr(inner, "prefix")]
    return f"/{pages[0].strip('/')}/".replace("//", "/") if pages else "/"
