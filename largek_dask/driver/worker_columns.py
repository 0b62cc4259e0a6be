"""What workers have done, as the event ``workers`` tells it: names once, then what was added.

With 1,024 workers the figures of each as a mapping are 400 kB an event. Columns of what was added
since the event before, rounded, are a tenth of it, and a figure that nobody has added to is left
out. ``driver.worker_figures`` reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from largek_dask.passes.telemetry import PassReport

__all__ = ["WORKER_FIGURES", "WorkerColumns", "pause_between"]

WORKER_FIGURES = ("rows", "chunks", "compute", "read", "wait", "compiled", "bytes_read",
                  "rebuilt", "evictions", "retries", "state_bytes",
                  "cache_bytes")  # fmt: skip
"""Figures of :class:`PassReport` that are told of each worker."""
LEAST_SECONDS = 5.0
"""Least time between two events about workers, of a single one."""
OF_WORKERS = 3.75
"""The same of several, times the square root of their number."""
NAMES_EVERY = 16
"""Events after which names and sums are told again, for whoever has not heard all before."""


def pause_between(n_workers: int) -> float:
    """Seconds between two events about as many workers: 5 of one, 30 of 64, 120 of 1,024."""
    return max(LEAST_SECONDS, OF_WORKERS * math.sqrt(n_workers))


class WorkerColumns:
    """Makes the events ``workers`` of one run.

    Parameters
    ----------
    by_worker : mapping
        Figures of all passes so far by worker; it goes on changing.
    left : collection of str
        Workers that take part no longer; it goes on changing. They are named no more once all that
        they have done is told.
    clock : callable
        Seconds.
    """

    def __init__(
        self,
        by_worker: Mapping[str, PassReport],
        left: Collection[str],
        clock: Callable[[], float],
    ) -> None:
        self._by_worker = by_worker
        self._left = left
        self._clock = clock
        self._told_at = clock()
        self._told = {name: _rounded(report) for name, report in by_worker.items()}
        self._names: list[str] = []
        self._until_names = 0

    def due(self) -> dict[str, Any]:
        """The fields of an event; nothing where there are no workers, or it is too soon."""
        now = self._clock()
        seconds = now - self._told_at
        if not self._by_worker or seconds < pause_between(len(self._names)):
            return {}
        found = {name: _rounded(report) for name, report in self._by_worker.items()}
        names = [
            name for name in found if name not in self._left or found[name] != self._told.get(name)
        ]
        event: dict[str, Any] = {"seconds": round(seconds, 2)}
        nothing = dict.fromkeys(WORKER_FIGURES, 0.0)
        before = [self._told.get(name, nothing) for name in names]
        if names != self._names or not self._until_names:
            self._names, self._until_names = names, NAMES_EVERY
            event |= {"names": names, "before": _columns(before)}
        added = [
            {key: round(found[name][key] - told[key], 2) for key in WORKER_FIGURES}
            for name, told in zip(names, before, strict=True)
        ]
        event |= {"rows": [0] * len(names)} | _columns(added)
        self._until_names -= 1
        self._told_at, self._told = now, found
        return event


def _rounded(report: PassReport) -> dict[str, float]:
    """The figures of a worker: seconds to a hundredth, so that differences add up."""
    return {name: round(getattr(report, name), 2) for name in WORKER_FIGURES}


def _columns(figures: list[dict[str, float]]) -> dict[str, list[float]]:
    """A list of each figure that is not 0 of all workers."""
    columns = {name: [_short(of[name]) for of in figures] for name in WORKER_FIGURES}
    return {name: values for name, values in columns.items() if any(values)}


def _short(value: float) -> float:
    """As JSON it takes no more characters than it needs: ``12`` and not ``12.0``."""
    return int(value) if value == int(value) else value
