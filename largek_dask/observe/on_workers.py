"""What is watched on workers beside their work; see ``service.plugin``, which sends it there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin

from largek_dask.observe import metrics, process_log
from largek_dask.passes.worker import WorkPlugin
from largek_dask.version import __version__

__all__ = ["WatchPlugin"]

NOTHING: Mapping[str, Any] = {
    **dict.fromkeys(("rows", "bytes", "retries", "state_bytes", "cache_bytes"), 0),
    "seconds": {},
}
"""Figures of a worker that has not been given any work."""


class WatchPlugin(WorkerPlugin):  # type: ignore[misc]  # distributed has no types
    """Set up on every worker of a cluster that has a service, also on those that join later."""

    name = f"largek-watch-{__version__}"
    idempotent = True

    def setup(self, worker: Any) -> None:
        """Called by Dask on each worker."""
        self.worker = worker
        metrics.watch_worker(self.figures)
        process_log.watch(worker, process_log.sender(worker))

    def teardown(self, worker: Any) -> None:
        """Called by Dask when the worker closes."""
        metrics.forget(self.figures)
        process_log.unwatch(worker)

    def figures(self) -> Mapping[str, Any]:
        """What the passes of all jobs have done on this worker; never waits."""
        plugin: WorkPlugin | None = self.worker.plugins.get(WorkPlugin.name)
        limit = self.worker.memory_manager.memory_limit
        return {
            **(NOTHING if plugin is None else plugin.figures()),
            **({"memory_limit_bytes": limit} if limit else {}),
        }
