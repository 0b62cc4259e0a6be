"""What is watched on workers beside their work; see ``service.plugin``, which sends it there."""

from __future__ import annotations

from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin

from largek_dask.observe import logs
from largek_dask.version import __version__

__all__ = ["WatchPlugin"]


class WatchPlugin(WorkerPlugin):  # type: ignore[misc]  # distributed has no types
    """Set up on every worker of a cluster that has a service, also on those that join later.

    Parameters
    ----------
    log : str
        Form of the log, as it is on the scheduler.
    """

    name = f"largek-watch-{__version__}"
    idempotent = True

    def __init__(self, log: str) -> None:
        self.log = log

    def setup(self, worker: Any) -> None:
        """Called by Dask on each worker."""
        logs.set_up(self.log, worker.address)
