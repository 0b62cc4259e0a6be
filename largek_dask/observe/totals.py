"""The last step of a fit, and sums over its steps, as its events tell them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from largek_dask.driver.events import Event, is_number, plain
from largek_dask.driver.stopping import ENDS
from largek_dask.driver.words import short_number
from largek_dask.observe.worker_figures import WorkerFigures

__all__ = ["OF_A_STEP", "SUMMED", "Totals"]

SUMMED = ("rows", "bytes", "retries", "rebuilt", "evictions")
OF_A_STEP = ("step", "cost", "n_changed", "rows_per_second", "sample", "elapsed", "eta_s",
             "limited_by", "share", "state_bytes", "cache_bytes")  # fmt: skip
OF_STARTS = ("start", "starts")
OF_SIZES = ("n_empty", "least", "median", "mean", "most", "edges", "counts")
PASS_OVER = frozenset({"step", "started", "stopped", "interrupted", *ENDS})
"""Kinds of events after which what was said of a pass is no longer true."""
COME_OR_GONE = {"joined": 1, "left": -1}
"""How many more workers there are after a change of one."""


class Totals:
    """What is counted from one step to the next; without a lock of its own.

    Events may come from a file: what is missing, of another type or not finite counts as nothing.

    Attributes
    ----------
    most_work : float
        Seconds of computing and reading in the longest step.
    n_steps : int
        Steps that were counted.
    """

    def __init__(self) -> None:
        self.most_work = 0.0
        self.n_steps = 0
        self._last: dict[str, Any] = {}
        self._sums: dict[str, Any] = dict.fromkeys(SUMMED, 0)
        self._seconds: dict[str, float] = {}
        self._workers = WorkerFigures()
        self._about: dict[str, Any] = {}
        """``n_rows``, ``start`` of ``starts``, ``sizes``: as far as they are known."""
        self._progress: dict[str, Any] | None = None
        self._n_workers = 0
        self._share = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of what grows with the number of workers, about."""
        return self._workers.nbytes

    def forget_workers(self) -> None:
        """Let go of what grows with the number of workers."""
        self._workers = WorkerFigures()

    def count(self, event: Event) -> None:
        """Take in an event; those that tell no figures change nothing."""
        self._workers.hear(event)
        self._know(event)
        kind = event.get("event")
        if kind == "progress":
            done, n_chunks = event.get("done"), event.get("n_chunks")
            if is_number(done) and is_number(n_chunks):
                self._progress = {"done": done, "n_chunks": n_chunks}
        elif kind in PASS_OVER:
            self._progress = None
        if kind == "started" and is_number(n_workers := event.get("n_workers")):
            self._n_workers = int(n_workers)
        elif kind == "worker":
            self._n_workers += COME_OR_GONE.get(str(event.get("change")), 0)
        if kind == "step":
            self.n_steps += 1
            for name in SUMMED:
                value = event.get(name)
                self._sums[name] += value if is_number(value) else 0
            told = event.get("seconds")
            seconds = {
                str(name): value
                for name, value in (told.items() if isinstance(told, Mapping) else ())
                if is_number(value)
            }
            for name, value in seconds.items():
                self._seconds[name] = self._seconds.get(name, 0.0) + value
            work = sum(seconds.get(name, 0.0) for name in ("compute", "read"))
            self.most_work = max(self.most_work, work)

    def _know(self, event: Event) -> None:
        """Take over what is true until it is told again."""
        kind = event.get("event")
        if kind == "step":
            self._last = {name: plain(event.get(name)) for name in OF_A_STEP}
            # A run that resumes from a checkpoint repeats steps.
            if is_number(share := event.get("share")):
                self._share = self._last["share"] = max(self._share, share)
            told = {name: event.get(name) for name in OF_STARTS}
            self._about |= {name: value for name, value in told.items() if is_number(value)}
        elif kind == "started" and is_number(n_rows := event.get("n_rows")):
            self._about["n_rows"] = n_rows
        elif kind == "sizes":
            self._about["sizes"] = {name: plain(event.get(name)) for name in OF_SIZES}

    def recall(self, events: Iterable[Event]) -> None:
        """Take the last step from events of an earlier time, whose sums are not counted."""
        for event in events:
            self._know(event)

    def numbers(self) -> dict[str, float]:
        """Figures that are known, by the names of ``observe.metrics``."""
        cost, last = self._last.get("cost"), self._last
        known = {"state_bytes": last.get("state_bytes"), "eta_seconds": last.get("eta_s")}
        return {
            **({"cost": _to(9, cost)} if is_number(cost) else {}),
            **{name: short_number(value) for name, value in known.items() if is_number(value)},
            **{name: _to(9, value) for name, value in self._sums.items()},
            "steps": self.n_steps,
            "workers": max(0, self._n_workers),
        }

    def seconds(self) -> dict[str, float]:
        """Seconds by kind of all steps, to a hundredth; of kinds that there were any of."""
        spent = {kind: _to(7, round(seconds, 2)) for kind, seconds in self._seconds.items()}
        return {kind: seconds for kind, seconds in spent.items() if seconds}

    def figures(self) -> dict[str, Any]:
        """The last step's figures, sums over all steps, and what each worker did."""
        return {
            **self._last,
            **self._about,
            **self._sums,
            "seconds": dict(self._seconds),
            "progress": self._progress,
            "workers": self._workers.figures,
        }


def _to(figures: int, value: float) -> float:
    """A number of as many figures: a scrape has thousands of them."""
    return float(f"{value:.{figures}g}")
