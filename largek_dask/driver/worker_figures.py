"""Write and read the events ``workers``: figures of each worker.

A mapping of figures per worker would take 400 kB per event with 1,024 workers. Columns of what was
added since the event before, rounded and without those that are all 0, take a tenth of it.

Events may come from files: fields that are missing or of another type are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.driver.events import Event, is_number
from largek_dask.passes.telemetry import PassReport

__all__ = ["WORKER_FIGURES", "WorkerColumns", "WorkerFigures", "pause_between", "seconds_of"]

WORKER_FIGURES = ("rows", "chunks", "compute", "read", "wait", "compiled", "bytes_read",
                  "rebuilt", "evictions", "retries", "state_bytes",
                  "cache_bytes")  # fmt: skip
ROWS = WORKER_FIGURES.index("rows")
LEAST_PAUSE, ROOT_PAUSE = 5.0, 3.75
"""Minimum seconds between two events: of one worker, and per square root of their number."""
NAMES_EVERY = 16
"""Events after which names and sums are repeated, for readers that missed earlier ones."""
MOST = 1e18
"""Upper bound of a figure, so that sums stay numbers that JSON and floats hold."""
SECONDS = frozenset({"compute", "read", "wait", "compiled"})
"""Figures that are seconds; the others are counts and bytes."""
NAME_BYTES = 70
"""Bytes of a name without its characters."""
LEAST_SECONDS = 1e-3
"""Minimum seconds for which a speed is computed."""


def pause_between(n_workers: int) -> float:
    """Return the seconds between two events: 5 for one worker, 30 for 64, 120 for 1,024."""
    return max(LEAST_PAUSE, ROOT_PAUSE * math.sqrt(n_workers))


class WorkerColumns:
    """Make the events ``workers`` of one run.

    Parameters
    ----------
    by_worker : mapping
        Figures of all passes so far by worker; may change between calls.
    left : collection of str
        Workers that have left; may change. They are dropped once all of their work is reported.
    """

    def __init__(
        self, by_worker: Mapping[str, PassReport], left: Collection[str], clock: Callable[[], float]
    ) -> None:
        self._by_worker = by_worker
        self._left = left
        self._clock = clock
        self._reported_at = clock()
        self._reported = {name: _rounded(report) for name, report in by_worker.items()}
        self._names: list[str] = []
        self._until_names = 0

    def due(self) -> dict[str, Any]:
        """Return the fields of an event; empty if there are no workers, or it is too soon."""
        now = self._clock()
        seconds = now - self._reported_at
        if not self._by_worker or seconds < pause_between(len(self._names)):
            return {}
        found = {name: _rounded(report) for name, report in self._by_worker.items()}
        names = [n for n in found if n not in self._left or found[n] != self._reported.get(n)]
        event: dict[str, Any] = {"seconds": round(seconds, 2)}
        nothing = dict.fromkeys(WORKER_FIGURES, 0.0)
        before = [self._reported.get(name, nothing) for name in names]
        if names != self._names or not self._until_names:
            self._names, self._until_names = names, NAMES_EVERY
            event |= {"names": names, "before": _nonzero(before)}
        added = [
            {key: round(found[name][key] - old[key], 2) for key in WORKER_FIGURES}
            for name, old in zip(names, before, strict=True)
        ]
        event |= {"rows": [0] * len(names)} | _nonzero(added)
        self._until_names -= 1
        self._reported_at, self._reported = now, found
        return event


def _rounded(report: PassReport) -> dict[str, float]:
    """Return the figures of a worker: seconds to a hundredth, so that differences add up."""
    return {name: round(getattr(report, name), 2) for name in WORKER_FIGURES}


def _nonzero(figures: list[dict[str, float]]) -> dict[str, list[float]]:
    """Return the columns that are not all 0; JSON has ``12`` and not ``12.0``."""
    columns = {
        name: [int(of[name]) if of[name] == int(of[name]) else of[name] for of in figures]
        for name in WORKER_FIGURES
    }
    return {name: values for name, values in columns.items() if any(values)}


class WorkerFigures:
    """Add up the figures of events ``workers``.

    ``seconds`` is the time between the last two events; 0: unknown.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._names: list[str] = []
        self._sums = _table(None, 0)
        self._rows = self._sums[ROWS]
        """Rows that were added with the last event."""
        self._is_named = False
        """Whether names were given in this run, without which columns cannot be told apart."""

    @property
    def figures(self) -> dict[str, dict[str, float]]:
        """Sums by worker and figure, of the workers in the last event; zeros may be missing."""
        kept = [i for i, sums in enumerate(self._sums) if i == ROWS or sums.any()]
        keys = [WORKER_FIGURES[i] for i in kept]
        columns = [
            [round(value, 2) if key in SECONDS else int(value) for value in self._sums[i].tolist()]
            for i, key in zip(kept, keys, strict=True)
        ]
        return {
            name: dict(zip(keys, row, strict=True))
            for name, *row in zip(self._names, *columns, strict=True)
        }

    @property
    def speeds(self) -> dict[str, float]:
        """Rows per second of each worker, between the last two events."""
        if not self.seconds:
            return {}
        speeds = np.maximum(0, self._rows / self.seconds)
        return dict(zip(self._names, speeds.tolist(), strict=True))

    @property
    def nbytes(self) -> int:
        """Approximate bytes in memory."""
        names = sum(NAME_BYTES + len(name) for name in self._names)
        return names + int(self._sums.nbytes + self._rows.nbytes)

    def update(self, event: Event) -> None:
        """Add an event; kinds other than ``started`` and ``workers`` change nothing."""
        kind = event.get("event")
        if kind == "started":
            # A resumed run reports its workers from 0 again.
            self._is_named = False
        elif kind == "workers":
            self._add(event)

    def _add(self, event: Event) -> None:
        names = event.get("names")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            self._names = list(dict.fromkeys(names))
            self._is_named = bool(names)
            self._sums = _table(event.get("before"), len(self._names))
        if not self._is_named:
            return
        added = _table(event, len(self._names))
        self._rows = added[ROWS].copy()
        self._sums = np.clip(self._sums + added, -MOST, MOST)
        seconds, self.seconds = event.get("seconds"), 0.0
        if is_number(seconds) and LEAST_SECONDS <= seconds <= MOST:
            self.seconds = seconds


def _table(fields: object, n: int) -> NDArray[np.float64]:
    """Return a row per figure: its values if they are a list of ``n``, else zeros."""
    table = np.zeros((len(WORKER_FIGURES), n))
    for row, key in zip(table, WORKER_FIGURES, strict=True):
        values = fields.get(key) if isinstance(fields, Mapping) else None
        if isinstance(values, list) and len(values) == n:
            row[:] = [x if is_number(x) and abs(x) <= MOST else 0 for x in values]
    return table


def seconds_of(event: Event) -> float:
    """Return the time of an event in seconds since 1970; 0 if it has none."""
    try:
        return datetime.fromisoformat(str(event.get("time"))).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
