"""Figures of each worker, read from the events ``workers`` of a fit, of this form or older ones.

Events may come from files: fields that are missing or of another type are ignored.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeGuard

from largek_dask.driver.events import Event, is_number
from largek_dask.driver.worker_columns import WORKER_FIGURES

__all__ = ["WorkerFigures", "seconds_of"]

if TYPE_CHECKING:
    Column = array[int] | array[float]
    """A figure of each worker."""

MOST = 1e18
"""A figure that is larger is none: sums stay numbers that JSON and floats hold."""
SECONDS = frozenset({"compute", "read", "wait", "compiled"})
"""Figures that are seconds; the others are counts and bytes."""
COLUMN_BYTES, NAME_BYTES = 150, 70
"""Bytes of a column beside its numbers, and of a name beside its characters."""
LEAST_SECONDS = 1e-3
"""In less time nothing can be said of a speed."""


class WorkerFigures:
    """Adds up what events tell of workers.

    A scheduler has one for each of its jobs, of which each may have very many workers: columns of
    numbers are a tenth of what mappings of them take.

    Attributes
    ----------
    seconds : float
        Between the last two events; 0: not known.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._told_at = 0.0
        self._names: list[str] = []
        self._name_bytes = 0
        self._sums: dict[str, Column] = {}
        """By figure, what has been told of it by any worker."""
        self._rows: Column = array("q")
        """Rows that were added with the last event."""
        self._is_new_run = False
        self._is_named = False
        """Whether columns can be told apart: their names have been told in this run."""

    @property
    def figures(self) -> dict[str, dict[str, float]]:
        """By worker, what its passes have done so far by name (see ``driver.worker_columns``).

        Of those that took part when they were told of last.
        """
        rows = zip(*self._sums.values(), strict=True) if self._sums else ((),) * len(self._names)
        return {
            name: dict(zip(self._sums, row, strict=True))
            for name, row in zip(self._names, rows, strict=True)
        }

    @property
    def speeds(self) -> dict[str, float]:
        """Rows a second of each worker, between the last two events."""
        if not self.seconds:
            return {}
        return {
            name: max(0.0, rows / self.seconds)
            for name, rows in zip(self._names, self._rows, strict=True)
        }

    @property
    def nbytes(self) -> int:
        """Bytes that this takes in memory, about."""
        columns = (*self._sums.values(), self._rows)
        return self._name_bytes + sum(COLUMN_BYTES + len(of) * of.itemsize for of in columns)

    def update(self, event: Event) -> None:
        """Take an event; kinds other than ``started`` and ``workers`` change nothing."""
        kind = event.get("event")
        if kind == "started":
            # Of a run that goes on the workers are told of anew, from 0.
            self._told_at, self._is_named, self._is_new_run = seconds_of(event), False, True
        elif kind == "workers":
            told = event.get("workers")
            if isinstance(told, Mapping):
                self._take_mapping(told, seconds_of(event))
            else:
                self._take_columns(event)

    def _name(self, names: Iterable[str]) -> None:
        self._names = list(dict.fromkeys(names))
        self._name_bytes = sum(NAME_BYTES + len(name) for name in self._names)

    def _take_columns(self, event: Event) -> None:
        names = event.get("names")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            self._name(names)
            self._told_at, self._is_new_run = 0.0, False
            self._is_named = bool(names)
            self._sums = _columns(event.get("before"), len(self._names))
        if not self._is_named:
            # Its names were told before somebody began to listen.
            return
        added, n = _columns(event, len(self._names)), len(self._names)
        self._rows = added.get("rows", _of_zeros("rows", n))
        for key, column in added.items():
            before = self._sums.get(key, _of_zeros(key, n))
            self._sums[key] = _column(key, map(sum, zip(before, column, strict=True)))
        seconds = event.get("seconds")
        self._take_seconds(seconds if is_number(seconds) else 0.0)

    def _take_mapping(self, told: Mapping[Any, Any], now: float) -> None:
        """The form of earlier versions: the figures so far, by worker."""
        known = dict(zip(self._names, self._sums.get("rows", ()), strict=False))
        before = {} if self._is_new_run else known
        self._is_new_run = self._is_named = False
        about = {str(name): of for name, of in told.items() if isinstance(of, Mapping)}
        self._name(about)
        self._sums = {}
        for key in WORKER_FIGURES:
            values = [of.get(key) for of in about.values()]
            if any(map(_is_figure, values)):
                self._sums[key] = _column(key, (x if _is_figure(x) else 0 for x in values))
        rows = self._sums.get("rows", _of_zeros("rows", len(about)))
        self._rows = _column(
            "rows", (n - before.get(name, 0) for name, n in zip(about, rows, strict=True))
        )
        seconds = now - self._told_at if self._told_at and now else 0.0
        self._told_at = now
        self._take_seconds(seconds)

    def _take_seconds(self, seconds: float) -> None:
        self.seconds = seconds if LEAST_SECONDS <= seconds <= MOST else 0.0


def seconds_of(event: Event) -> float:
    """When an event was, in seconds since 1970; 0 if it does not say so."""
    try:
        return datetime.fromisoformat(str(event.get("time"))).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _is_figure(value: object) -> TypeGuard[float]:
    return is_number(value) and abs(value) <= MOST


def _columns(told: object, n: int) -> dict[str, Column]:
    """Columns of figures of ``n`` workers, as far as they are such; what is no figure is 0."""
    if not isinstance(told, Mapping):
        return {}
    found = {key: told.get(key) for key in WORKER_FIGURES}
    return {
        key: _column(key, (value if _is_figure(value) else 0 for value in values))
        for key, values in found.items()
        if isinstance(values, list) and len(values) == n
    }


def _column(key: str, values: Iterable[float]) -> Column:
    """Numbers side by side: seconds to a hundredth, and all others whole."""
    bounded = (min(max(value, -MOST), MOST) for value in values)
    if key in SECONDS:
        return array("d", (round(value, 2) for value in bounded))
    return array("q", map(int, bounded))


def _of_zeros(key: str, n: int) -> Column:
    return _column(key, repeat(0, n))
