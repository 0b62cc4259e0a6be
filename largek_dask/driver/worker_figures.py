"""Write and read the events ``workers``: figures of each worker.

A mapping of figures per worker would take 400 kB per event with 1,024 workers. Columns of what was
added since the event before, rounded and without those that are all 0, take a tenth of it.

Events may come from files: fields that are missing or of another type are ignored.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeGuard

from largek_dask.driver.events import Event, is_number
from largek_dask.passes.telemetry import PassReport

__all__ = ["WORKER_FIGURES", "WorkerColumns", "WorkerFigures", "pause_between", "seconds_of"]

if TYPE_CHECKING:
    Column = array[int] | array[float]
    """A figure of each worker."""

WORKER_FIGURES = ("rows", "chunks", "compute", "read", "wait", "compiled", "bytes_read",
                  "rebuilt", "evictions", "retries", "state_bytes",
                  "cache_bytes")  # fmt: skip
"""Figures of :class:`PassReport` that events have."""
LEAST_PAUSE, ROOT_PAUSE = 5.0, 3.75
"""Minimum seconds between two events: of one worker, and per square root of their number."""
NAMES_EVERY = 16
"""Events after which names and sums are repeated, for readers that missed earlier ones."""
MOST = 1e18
"""Upper bound of a figure, so that sums stay numbers that JSON and floats hold."""
SECONDS = frozenset({"compute", "read", "wait", "compiled"})
"""Figures that are seconds; the others are counts and bytes."""
COLUMN_BYTES, NAME_BYTES = 150, 70
"""Bytes of a column without its numbers, and of a name without its characters."""
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

    A scheduler has one per job. Columns of numbers take a tenth of what mappings take. ``seconds``
    is the time between the last two events; 0: unknown.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._names: list[str] = []
        self._name_bytes = 0
        self._sums: dict[str, Column] = {}
        self._rows: Column = array("q")
        """Rows that were added with the last event."""
        self._is_named = False
        """Whether names were given in this run, without which columns cannot be told apart."""

    @property
    def figures(self) -> dict[str, dict[str, float]]:
        """Sums by worker and figure, of the workers in the last event."""
        rows = zip(*self._sums.values(), strict=True) if self._sums else ((),) * len(self._names)
        return {
            name: dict(zip(self._sums, row, strict=True))
            for name, row in zip(self._names, rows, strict=True)
        }

    @property
    def speeds(self) -> dict[str, float]:
        """Rows per second of each worker, between the last two events."""
        if not self.seconds:
            return {}
        return {
            name: max(0.0, rows / self.seconds)
            for name, rows in zip(self._names, self._rows, strict=True)
        }

    @property
    def nbytes(self) -> int:
        """Approximate bytes in memory."""
        columns = (*self._sums.values(), self._rows)
        return self._name_bytes + sum(COLUMN_BYTES + len(of) * of.itemsize for of in columns)

    def update(self, event: Event) -> None:
        """Add an event; kinds other than ``started`` and ``workers`` change nothing."""
        kind = event.get("event")
        if kind == "started":
            # A resumed run reports its workers from 0 again.
            self._is_named = False
        elif kind == "workers":
            self._add_columns(event)

    def _add_columns(self, event: Event) -> None:
        names = event.get("names")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            self._names = list(dict.fromkeys(names))
            self._name_bytes = sum(NAME_BYTES + len(name) for name in self._names)
            self._is_named = bool(names)
            self._sums = _columns(event.get("before"), len(self._names))
        if not self._is_named:
            return
        added, n = _columns(event, len(self._names)), len(self._names)
        self._rows = added.get("rows", _zeros("rows", n))
        for key, column in added.items():
            before = self._sums.get(key, _zeros(key, n))
            self._sums[key] = _column(key, map(sum, zip(before, column, strict=True)))
        seconds = event.get("seconds")
        is_known = is_number(seconds) and LEAST_SECONDS <= seconds <= MOST
        self.seconds = seconds if is_known else 0.0


def seconds_of(event: Event) -> float:
    """Return the time of an event in seconds since 1970; 0 if it has none."""
    try:
        return datetime.fromisoformat(str(event.get("time"))).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _is_figure(value: object) -> TypeGuard[float]:
    return is_number(value) and abs(value) <= MOST


def _columns(fields: object, n: int) -> dict[str, Column]:
    """Return the columns that are lists of ``n``; values that are not figures become 0."""
    if not isinstance(fields, Mapping):
        return {}
    found = {key: fields.get(key) for key in WORKER_FIGURES}
    return {
        key: _column(key, (value if _is_figure(value) else 0 for value in values))
        for key, values in found.items()
        if isinstance(values, list) and len(values) == n
    }


def _column(key: str, values: Iterable[float]) -> Column:
    """Return packed numbers: seconds to a hundredth, and all others whole."""
    bounded = (min(max(value, -MOST), MOST) for value in values)
    if key in SECONDS:
        return array("d", (round(value, 2) for value in bounded))
    return array("q", map(int, bounded))


def _zeros(key: str, n: int) -> Column:
    return _column(key, repeat(0, n))
