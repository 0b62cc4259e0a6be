"""The last step of a fit, and sums over its steps, as its events tell them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from largek_dask.driver.events import Event, plain
from largek_dask.observe.worker_figures import WorkerFigures

__all__ = ["Totals"]

SUMMED = ("rows", "bytes", "retries", "rebuilt", "evictions")
OF_A_STEP = ("step", "cost", "n_changed", "rows_per_second", "sample", "elapsed", "eta_s",
             "state_bytes", "cache_bytes")  # fmt: skip


class Totals:
    """What is counted from one step to the next; without a lock of its own.

    Attributes
    ----------
    most_work : float
        Seconds of computing and reading in the longest step.
    """

    def __init__(self) -> None:
        self.most_work = 0.0
        self._last: dict[str, Any] = {}
        self._sums: dict[str, Any] = dict.fromkeys(SUMMED, 0)
        self._seconds: dict[str, float] = {}
        self._workers = WorkerFigures()

    def count(self, event: Event) -> None:
        """Take in an event; those that tell no figures change nothing."""
        self._workers.hear(event)
        if event["event"] == "step":
            self._last = {name: plain(event.get(name)) for name in OF_A_STEP}
            for name in SUMMED:
                self._sums[name] += event[name] or 0
            for name, seconds in event["seconds"].items():
                self._seconds[name] = self._seconds.get(name, 0.0) + seconds
            work = sum(event["seconds"].get(name, 0.0) for name in ("compute", "read"))
            self.most_work = max(self.most_work, work)

    def recall(self, events: Iterable[Event]) -> None:
        """Take the last step from events of an earlier time, whose sums are not counted."""
        for event in events:
            if event.get("event") == "step":
                self._last = {name: event.get(name) for name in OF_A_STEP}

    def figures(self) -> dict[str, Any]:
        """The last step's figures, sums over all steps, and what each worker did."""
        return {
            **self._last,
            **self._sums,
            "seconds": dict(self._seconds),
            # Its mappings go on being added to.
            "workers": {name: dict(about) for name, about in self._workers.figures.items()},
        }
