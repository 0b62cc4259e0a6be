"""Derive the status, totals and time series of a job or fit from its events.

This module uses neither a clock nor I/O. Events may come from untrusted files or newer versions, so
unknown events and invalid fields are ignored, and no event raises an error.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.objective import Objective, objective_in
from largek_dask.driver.events import Event, is_number, seconds_of
from largek_dask.driver.formatting import count_of, human_seconds, printable, short_number
from largek_dask.driver.stopping import ENDS

SUMMED = ("rows", "bytes", "retries", "rebuilt", "evictions")
STEP_FIGURES = ("step", "cost", "n_changed", "rows_per_second", "sample", "elapsed", "eta_s",
             "share", "state_bytes", "cache_bytes")  # fmt: skip
OF_SIZES = ("n_empty", "least", "median", "mean", "most", "edges", "counts")
KINDS = ("compute", "read", "wait", "reduce", "driver", "compile")
"""Kinds of work whose seconds a step reports, in addition to their total."""
EXTRA = ("distances", "gain")
"""Values in ``StepRecord.extra`` that are plotted over time."""
PASS_ENDS = frozenset({"step", "started", "stopped", "interrupted", *ENDS})
"""Kinds of events that end the progress display of a pass."""

MOST_SUMMED = 1e18
"""Largest value that is added to a sum, so that sums fit in floats and JSON."""
MOST_STARTS = 12
"""Maximum number of starts for which curves are kept; the latest starts are kept."""
MOST_MARKS = 60
"""Maximum number of marks of one kind; the latest marks are kept."""
MOST_TEXT = 240
MOST_VALUES = 100
"""Maximum length of a list in an event."""
MOST_WARNINGS = 3
MOST_WORKERS = 100_000
"""Maximum number of workers whose addresses are kept."""
MOST_POINTS = 512
"""Maximum number of regular points of a series; the lowest, highest and last points are added."""
A_START, MOST_KEY = float(2**32), float(2**53)
"""Number of step keys reserved for each start, and the largest key."""

Points = NDArray[np.float64]
"""Array with one point per row."""
Point = tuple[float, ...]
"""Tuple ``(key, x, y)``; keys increase with starts and steps."""
KEY, X, Y = range(3)

FAILED = {"error": "FailedJobError", "message": "no reason is given", "traceback": None}
"""Defaults of the fields of the event "failed"."""


class Series:
    """Values over time, thinned to every ``s``-th point plus the lowest, highest and last points.

    The stride ``s`` is the smallest power of two that leaves at most ``MOST_POINTS`` points.

    Examples
    --------
    >>> series = Series()
    >>> for step in range(100_000):
    ...     series.add((step, 0.1 * step, abs(step - 70_000)))
    >>> found = series.points()[:, Y]
    >>> len(found) <= 515, found[0].item(), found.min().item(), found[-1].item()
    (True, 70000.0, 0.0, 29999.0)
    """

    __slots__ = ("_kept", "_n", "_stride", "highest", "last", "lowest")

    def __init__(self) -> None:
        self._kept = array("d")
        """Coordinates of every s-th point, concatenated."""
        self._n, self._stride = 0, 1

    def add(self, point: Point) -> None:
        """Append a point of finite numbers."""
        if self._n == 0:
            self.lowest = self.highest = point
        if self._n % self._stride == 0:
            if self._n == MOST_POINTS * self._stride:
                self._kept = array("d", self._table()[::2].tobytes())
                self._stride *= 2
            self._kept.extend(point)
        self._n += 1
        self.last = point
        if point[Y] < self.lowest[Y]:
            self.lowest = point
        elif point[Y] > self.highest[Y]:
            self.highest = point

    def points(self) -> Points:
        table = np.concatenate([self._table(), [self.lowest, self.highest, self.last]])
        return table[np.unique(table[:, KEY], return_index=True)[1]]

    def before(self, x: float) -> Point | None:
        """Return the last known point at or before ``x``."""
        points = self.points()
        known = points[points[:, X] <= x]
        return tuple(known[-1].tolist()) if len(known) else None

    def _table(self) -> Points:
        return np.array(self._kept, np.float64).reshape(-1, 3)


class CurveKey(NamedTuple):
    """Key of a cost curve: its start, and whether costs are computed on samples or on all rows."""

    start: int | None
    """Index of the start; None if there is only one start."""
    on_sample: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """An event that is marked on the time axis of charts."""

    elapsed: float
    """Seconds used by the fit until the event."""
    seconds: float
    """Time of the event in seconds since 1970; 0 if unknown."""
    kind: str
    """Kind of the event, such as "worker" or "checkpoint"."""
    text: str


class JobView:
    """State of a job or fit, derived from its status and events.

    Memory is bounded: series are thinned (see :class:`Series`), and lists have a maximum length.
    ``status`` is the result of ``Job.status``, or contains the known properties of a fit before it
    begins.

    Attributes
    ----------
    started, chosen, compiling : mapping
        The last event of this kind; ``compiling`` only until the next step.
    labelled : float or None
        Fraction of the rows whose labels are written; None before the last pass.
    costs : dict
        Series of the objective by :class:`CurveKey`.
    series : dict
        Other series by name, against seconds used.

    Examples
    --------
    >>> view = JobView({"id": "7f3a"})
    >>> view.update({"event": "started", "n_rows": 100})
    >>> for n in (1, 2):
    ...     view.update({"event": "step", "step": n, "elapsed": n, "cost": 9 / n, "rows": 100})
    >>> view.state, view.status["cost"], view.status["rows"]
    ('running', 4.5, 200)
    """

    def __init__(self, status: Mapping[str, Any] | None = None) -> None:
        self.started: Event = {}
        self.chosen: Event = {}
        self.compiling: Event | None = None
        self.labelled: float | None = None
        self.last_seconds = 0.0
        """Time of the last event, in seconds since 1970."""
        self._given = dict(status or {})
        self._from_events: dict[str, Any] = {}
        """State and result from events, used if the status contains neither."""
        self._status: dict[str, Any] | None = None
        self._is_job = False
        """Whether a scheduler runs the fit as a job; a job ends after its fit."""
        self._last: dict[str, Any] = {}
        self._about: dict[str, Any] = {}
        """Contains ``n_rows``, ``start``, ``starts`` and ``sizes``, as far as they are known."""
        self._progress: dict[str, Any] | None = None
        self._share = 0.0
        self.sums: dict[str, float] = dict.fromkeys(SUMMED, 0)
        self.seconds: dict[str, float] = {}
        self.n_steps = 0
        self.most_work = 0.0
        """Seconds of computing and reading in the most expensive step."""
        self.step_seconds: float | None = None
        self.drop_series()

    def drop_series(self) -> None:
        """Drop all data that grow with the number of steps or workers; keep status and sums."""
        self.costs: dict[CurveKey, Series] = {}
        self.series: dict[str, Series] = {}
        self._workers: dict[str, None] = {}
        """Addresses of the workers of the last run."""
        self._marks: dict[str, deque[Mark]] = {}
        self._key = -1.0
        self._elapsed = 0.0
        self._status = None

    def set_status(self, status: Mapping[str, Any]) -> None:
        """Replace the status, but keep values of the last step that the new status lacks."""
        known = self.status
        kept = {n: known[n] for n in (*STEP_FIGURES, "energy", "objective") if n in known}
        self._given, self._status = {**kept, **status}, None

    def update(self, event: object) -> None:
        """Update the state from an event; ignore anything that is not an event."""
        if not isinstance(event, Mapping):
            return
        kind = event.get("event")
        if not isinstance(kind, str):
            return
        self._status = None
        self.last_seconds = max(self.last_seconds, seconds_of(event))
        if kind in PASS_ENDS:
            self._progress = None
        self._update_state(kind, event)
        if (take := getattr(self, f"_on_{kind}", None)) is not None:
            take(event)

    def update_all(self, events: Iterable[object]) -> Self:
        for event in events:
            self.update(event)
        return self

    @property
    def status(self) -> Mapping[str, Any]:
        """The latest status, updated with values of later events."""
        if self._status is None:
            # Keep keys in the order of the given status.
            found = {**self.figures(), **self._from_events, **self._given}
            self._status = {**self._given, **found}
        return self._status

    @property
    def title(self) -> str:
        """Title of a fit, or the id of a job."""
        return str(self.status.get("title") or f"Job {self.status.get('id')}")

    @property
    def objective(self) -> Objective:
        return objective_in(self.status)

    @property
    def state(self) -> str:
        """See :meth:`Job.status`."""
        return printable(self.status.get("state"))

    @property
    def has_ended(self) -> bool:
        """True if the job has ended; it may still be resumed."""
        return self.state in ENDS

    @property
    def sizes(self) -> Mapping[str, Any]:
        """Fields of the latest event "sizes"; empty if there is none."""
        found: Mapping[str, Any] = self._about.get("sizes", {})
        return found

    @property
    def warnings(self) -> list[str]:
        return [mark.text for mark in self._marks.get("warning", ())][-MOST_WARNINGS:]

    def share_done(self) -> float | None:
        """Return the used fraction of ``max_time`` or ``max_iter``; None if there is no limit."""
        if self.state == "finished":
            return 1.0
        share = number_in(self.status, "share")
        return None if share is None else min(1.0, max(0.0, share))

    def figures(self) -> dict[str, Any]:
        """Return values of the last step, sums over all steps, and worker addresses."""
        return {
            **self._last,
            **self._about,
            **{name: self.sums[name] for name in SUMMED},
            "seconds": dict(self.seconds),
            "progress": self._progress,
            "workers": sorted(self._workers),
        }

    def metrics(self) -> dict[str, float]:
        """Return the known metrics, named as in ``service.metrics``."""
        last = self._last
        known = {"state_bytes": last.get("state_bytes"), "eta_seconds": last.get("eta_s")}
        return {
            **({"cost": short_number(cost, 9)} if is_number(cost := last.get("cost")) else {}),
            **{name: short_number(value) for name, value in known.items() if is_number(value)},
            **{name: short_number(self.sums[name], 9) for name in SUMMED},
            "steps": self.n_steps,
            "workers": len(self._workers),
        }

    def metric_seconds(self) -> dict[str, float]:
        """Return the positive totals of seconds by kind of work, rounded to hundredths."""
        spent = {kind: short_number(round(n, 2), 7) for kind, n in self.seconds.items()}
        return {kind: seconds for kind, seconds in spent.items() if seconds}

    @property
    def n_chunks(self) -> int:
        """Number of chunks of the table; 1 while unknown."""
        return max(1, int(number_in(self.started, "n_chunks") or 1))

    def marks(self) -> list[Mark]:
        """Return the marks, earliest first."""
        return sorted(
            (mark for kept in self._marks.values() for mark in kept),
            key=lambda mark: (mark.seconds, mark.elapsed),
        )

    def _update_state(self, kind: str, event: Event) -> None:
        found = self._from_events
        if kind in ENDS:
            result = {**FAILED, **event} if kind == "failed" else dict(event)
            found |= {"state": kind, "result": result}
        elif kind in ("queued", "running", "started", "step"):
            self._is_job |= kind in ("queued", "running")
            self._from_events = {"state": "queued" if kind == "queued" else "running"}
            return
        elif not self._is_job and (kind == "best" or (kind == "stopped" and "start" not in event)):
            is_cancelled = event.get("reason") in ("cancelled", "interrupted")
            found["state"] = "cancelled" if is_cancelled else "finished"

    def _on_chosen(self, event: Event) -> None:
        self.chosen = event

    def _on_compiling(self, event: Event) -> None:
        self.compiling = event

    def _on_progress(self, event: Event) -> None:
        done, n_chunks = event.get("done"), event.get("n_chunks")
        if is_number(done) and is_number(n_chunks):
            self._progress = {"done": done, "n_chunks": n_chunks}

    def _on_labels(self, event: Event) -> None:
        rows, n_rows = number_in(event, "rows"), number_in(event, "n_rows")
        if rows is not None and n_rows is not None and n_rows > 0:
            self.labelled = min(1.0, max(0.0, rows / n_rows))

    def _on_started(self, event: Event) -> None:
        self.started = {name: event[name] for name in event if name != "workers"}
        self.labelled = None
        if "objective" in event:
            self._given["objective"] = event["objective"]
        if is_number(n_rows := event.get("n_rows")):
            self._about["n_rows"] = n_rows
        if isinstance(workers := event.get("workers"), list):
            names = (str(name)[:MOST_TEXT] for name in workers[:MOST_WORKERS])
            self._workers = dict.fromkeys(names)
        if (n_iter := number_in(event, "n_iter") or 0.0) > 0:
            self._mark("running", f"resumes after step {n_iter:,.0f}", event)

    def _on_step(self, event: Event) -> None:
        self.compiling = None
        last = {name: _stored(event[name]) for name in STEP_FIGURES if name in event}
        # A resumed run repeats steps, but the fraction must not decrease.
        if (share := number_in(event, "share")) is not None:
            self._share = last["share"] = max(self._share, share)
        if (energy := number_in(event.get("extra"), "energy")) is not None:
            last["energy"] = energy
        self._last |= last
        self._given |= last
        for name in ("start", "starts"):
            if is_number(value := event.get(name)):
                self._about[name] = value
        self.n_steps += 1
        for name in self.sums:
            if _is_summed(value := event.get(name)):
                self.sums[name] += value
        seconds = event.get("seconds")
        spent = {}
        if isinstance(seconds, Mapping):
            spent = {k: n for k in ("total", *KINDS) if _is_summed(n := seconds.get(k))}
        for kind, value in spent.items():
            self.seconds[kind] = self.seconds.get(kind, 0.0) + value
        self.step_seconds = spent.get("total", self.step_seconds)
        self.most_work = max(self.most_work, spent.get("compute", 0.0) + spent.get("read", 0.0))
        self._add_step(event)

    def _on_sizes(self, event: Event) -> None:
        self._about["sizes"] = {name: _stored(event.get(name)) for name in OF_SIZES}

    def _on_checkpoint(self, event: Event) -> None:
        n_iter, seconds = number_in(event, "n_iter"), number_in(event, "seconds")
        took = "" if seconds is None else f", written in {human_seconds(max(0.0, seconds))}"
        at = "" if n_iter is None else f" after step {n_iter:,.0f}"
        self._mark("checkpoint", f"checkpoint{at}{took}", event)

    def _on_warning(self, event: Event) -> None:
        self._mark("warning", printable(event.get("message")), event)

    def _on_running(self, event: Event) -> None:
        kind, reason = str(event["event"]), event.get("reason")
        self._mark(kind, kind if reason is None else f"{kind}: {reason}", event)

    _on_interrupted = _on_running

    def _on_worker(self, event: Event) -> None:
        change, chunks = event.get("change"), number_in(event, "chunks")
        address = str(event.get("address"))[:MOST_TEXT]
        if change in ("left", "joined"):
            self._workers.pop(address, None)
        if change in ("joined", "back") and len(self._workers) < MOST_WORKERS:
            self._workers[address] = None
        had = "" if chunks is None else f", {count_of(int(chunks), 'chunk')}"
        self._mark("worker", f"worker {event.get('address')} {change}{had}", event)

    def _add_step(self, event: Event) -> None:
        step, elapsed = number_in(event, "step"), number_in(event, "elapsed")
        if step is None or step < 0 or (elapsed is not None and elapsed < 0):
            return
        self._elapsed = max(self._elapsed, elapsed or 0.0)
        start = max(0.0, number_in(event, "start") or 0.0)
        key = min(MOST_KEY, start * A_START + min(step, A_START - 1))
        # A resumed run repeats earlier steps with equal values.
        if key <= self._key:
            return
        self._key = key
        self._add_cost(event)
        changed, rows = number_in(event, "n_changed"), number_in(event, "rows") or 0.0
        if changed is not None and rows > 0:
            self._add("n_changed", changed / rows)
        for name in ("shift", "rows_per_second"):
            self._add(name, number_in(event, name))
        for name in EXTRA:
            self._add(name, number_in(event.get("extra"), name))

    def _add_cost(self, event: Event) -> None:
        cost = number_in(event, "cost")
        if cost is None:
            return
        start = number_in(event, "start")
        line = CurveKey(None if start is None else int(start), event.get("sample") is not None)
        if line not in self.costs:
            self.costs[line] = Series()
            starts = list(dict.fromkeys(known.start for known in self.costs))
            if len(starts) > MOST_STARTS:
                for other in [known for known in self.costs if known.start == starts[0]]:
                    del self.costs[other]
        self.costs[line].add((self._key, self._elapsed, cost))

    def _add(self, name: str, value: float | None) -> None:
        if value is not None:
            self.series.setdefault(name, Series()).add((self._key, self._elapsed, value))

    def _mark(self, kind: str, text: str, event: Event) -> None:
        kept = self._marks.setdefault(kind, deque(maxlen=MOST_MARKS))
        words = printable(text[: 2 * MOST_TEXT])
        if len(words) > MOST_TEXT:
            words = f"{words[: MOST_TEXT - 1]}…"
        kept.append(Mark(self._elapsed, seconds_of(event), kind, words))


def number_in(about: object, name: str) -> float | None:
    """Return a field of an event or status as a float; None if it is not a finite number."""
    # Checking for a plain dictionary, the usual case, is fastest.
    value = about.get(name) if type(about) is dict or isinstance(about, Mapping) else None
    return float(value) if is_number(value) else None


def _stored(value: object) -> Any:
    """Return the value if it is a number, a short text or a list of numbers, else None."""
    if isinstance(value, list):
        return [item if is_number(item) else None for item in value[:MOST_VALUES]]
    if isinstance(value, str):
        return value[:MOST_TEXT]
    return value if is_number(value) else None


def _is_summed(value: object) -> TypeGuard[float]:
    """Return whether a value can be added to a counter, which never decreases."""
    return is_number(value) and 0 <= value <= MOST_SUMMED
