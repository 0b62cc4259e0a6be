"""What each worker has done, read from the events ``workers`` of a fit, of this form or older ones.

``Totals``, ``Seen`` and whoever draws workers have it from here. Events may come from a file that
anybody could have written to: what is missing or of another type counts as nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeGuard

from largek_dask.driver.events import Event, is_number
from largek_dask.driver.worker_columns import WORKER_FIGURES

__all__ = ["WorkerFigures", "seconds_of"]

MOST = 1e18
"""A figure that is larger is none: sums stay numbers that JSON and floats hold."""
LEAST_SECONDS = 1e-3
"""In less time nothing can be said of a speed."""


class WorkerFigures:
    """Adds up what events tell of workers.

    Attributes
    ----------
    figures : dict
        By worker, what its passes have done so far by name (see ``driver.worker_columns``), of
        those that took part when they were told of last.
    speeds : dict
        Rows a second of each worker, between the last two events.
    seconds : float
        Between the last two events; 0: not known.
    added : dict
        By worker, what was added between them by name.
    """

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, float]] = {}
        self.added: dict[str, dict[str, float]] = {}
        self.speeds: dict[str, float] = {}
        self.seconds = 0.0
        self._told_at = 0.0
        self._names: list[str] = []
        self._is_new_run = False

    def hear(self, event: Event) -> None:
        """Take in an event; others than ``started`` and ``workers`` change nothing."""
        kind = event.get("event")
        if kind == "started":
            # Of a run that goes on the workers are told of anew, from 0.
            self._told_at, self._names, self._is_new_run = seconds_of(event), [], True
        elif kind == "workers":
            told = event.get("workers")
            if isinstance(told, Mapping):
                self._take_mapping(told, seconds_of(event))
            else:
                self._take_columns(event)

    def _take_columns(self, event: Event) -> None:
        names = event.get("names")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            self._names = list(dict.fromkeys(names))
            self._told_at, self._is_new_run = 0.0, False
            self.figures = _by_name(self._names, event.get("before"))
        if not self._names:
            # Its names were told before somebody began to listen.
            return
        self.added = _by_name(self._names, event)
        for name, figures in self.added.items():
            of = self.figures.setdefault(name, {})
            for key, value in figures.items():
                of[key] = round(of.get(key, 0) + value, 2)
        seconds = event.get("seconds")
        self._tell_speeds(seconds if is_number(seconds) else 0.0)

    def _take_mapping(self, told: Mapping[Any, Any], now: float) -> None:
        """The form of earlier versions: the figures so far, by worker."""
        before = {} if self._is_new_run else self.figures
        self._is_new_run = False
        self.figures = {
            str(name): {key: about[key] for key in WORKER_FIGURES if _is_figure(about.get(key))}
            for name, about in told.items()
            if isinstance(about, Mapping)
        }
        self.added = {
            name: {key: value - before.get(name, {}).get(key, 0) for key, value in of.items()}
            for name, of in self.figures.items()
        }
        seconds = now - self._told_at if self._told_at and now else 0.0
        self._told_at = now
        self._tell_speeds(seconds)

    def _tell_speeds(self, seconds: float) -> None:
        self.seconds = seconds if LEAST_SECONDS <= seconds <= MOST else 0.0
        self.speeds = {}
        if self.seconds:
            self.speeds = {
                name: max(0.0, of.get("rows", 0) / self.seconds) for name, of in self.added.items()
            }


def seconds_of(event: Event) -> float:
    """When an event was, in seconds since 1970; 0 if it does not say so."""
    try:
        return datetime.fromisoformat(str(event.get("time"))).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _is_figure(value: object) -> TypeGuard[float]:
    return is_number(value) and abs(value) <= MOST


def _by_name(names: list[str], columns: Any) -> dict[str, dict[str, float]]:
    """Figures by worker, of columns as far as they fit the names."""
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    if not isinstance(columns, Mapping):
        return found
    for key in WORKER_FIGURES:
        values = columns.get(key)
        if not isinstance(values, list) or len(values) != len(names):
            continue
        for name, value in zip(names, values, strict=True):
            if value and _is_figure(value):
                found[name][key] = value
    return found
