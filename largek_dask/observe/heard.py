"""What the events of a job have told, as series and marks of bounded size.

Pure: no clock, no I/O. Events may come from a file that anybody could have written to, or from a
newer version: what is missing, of another type or not finite is passed over, and nothing is raised.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from largek_dask.driver.events import Event
from largek_dask.driver.words import count_of, human_seconds, printable
from largek_dask.observe.history import A_START, Series, X, Y, key_of
from largek_dask.observe.showing import is_number, seconds_of
from largek_dask.observe.worker_figures import WorkerFigures

__all__ = ["AXES", "Heard", "Line", "Mark", "Window", "number_in", "short_name"]

MOST_STARTS = 12
"""Starts of which a line each is kept: of more the latest."""
MOST_MARKS = 60
"""Marks of a kind that are kept: of more the latest."""
MOST_TEXT = 240
"""Characters of a mark's text."""
MOST_BATCHES = 64
"""Sizes of the batch that are kept: of more the latest."""
MOST_PARTITIONS = 512
"""Partitions whose objective is kept: of more every second one."""
RECENT = 9
"""Steps whose time tells how long a step takes."""
MOST = sys.float_info.max
MOST_THREADS = 1e6
WORKER_BUCKETS = 64
"""Buckets of the line of one worker, of which there may be many."""

KINDS = ("compute", "read", "wait", "reduce", "driver", "compile")
"""Kinds of seconds that a step tells beside its total."""
EXTRA = frozenset(
    {"distances", "batch_rows", "lower_bound", "energy", "alive", "rounds", "factor", "eta",
     "partitions", "settled", "gain"}
)  # fmt: skip
"""Figures of algorithms that are drawn: see ``StepRecord.extra``."""
CHECKPOINT, RETRY, REBUILT, WARNING = "checkpoint", "retry", "rebuilt", "warning"
RESUMED = "running"
WORK = ("compute", "read", "wait", "reduce", "driver")
"""Kinds that are summed over threads, without those in which kernels were compiled."""
MOST_WORKERS = 32
"""Workers that have a line each; of more there are quantiles."""
QUANTILES = {"slowest": 0.0, "slowest tenth": 0.1, "median": 0.5, "fastest tenth": 0.9,
             "fastest": 1.0}  # fmt: skip
WORKER = "worker "
"""What the name of a worker's series begins with."""


class Line(NamedTuple):
    """Which line of the cost a step belongs to."""

    start: int | None
    """The start, where there are several."""
    on_sample: bool
    """Whether it is of the rows of a sample."""


AXES = ("elapsed", "time", "passes")
"""Axes along which a job goes on: seconds used, ms since 1970, passes over the data."""


class Window(NamedTuple):
    """A part of an axis that is looked at closely."""

    axis: str
    """One of :data:`AXES`."""
    low: float
    """Where it begins, in the unit of the axis."""
    high: float
    """Where it ends."""

    def holds(self, elapsed: float, time: float, passes: float) -> bool:
        """Whether a step lies in it."""
        at = {"elapsed": elapsed, "time": time, "passes": passes}[self.axis]
        return self.low <= at <= self.high


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened, to be marked on the axis of time."""

    key: float
    """Key of the last step before it."""
    elapsed: float
    """Seconds that the fit had taken."""
    seconds: float
    """Time of day, in seconds since 1970; 0 where it is not known."""
    passes: float
    """Passes over the data made until then."""
    kind: str
    """Kind of what happened, such as "worker" or "checkpoint"."""
    text: str
    """Words of it, safe to print."""


class Heard:
    """Series and marks of a job.

    Parameters
    ----------
    window : Window, optional
        Only steps that lie in it have points, which so are the finer.
    whole : Heard, optional
        Where all steps of the same job are.

    Attributes
    ----------
    whole : Heard
        Where all steps are.
    costs : dict
        Series of the objective by :class:`Line`, with wall time (ms since 1970) and passes beside.
    series : dict
        Other series by name, against seconds used.
    by_partition : dict
        The objective by number of clusters, of a fit of all partitions.
    sums : dict
        Of ``bytes``, ``copied``, ``retries``, ``rebuilt``, ``evictions`` and seconds by kind.
    """

    def __init__(self, window: Window | None = None, whole: Heard | None = None) -> None:
        self.window = window
        self.whole = whole or self
        self.costs: dict[Line, Series] = {}
        self.series: dict[str, Series] = {}
        self.by_partition: dict[int, float] = {}
        self.sums: dict[str, float] = {}
        self.n_rows: float | None = None
        self.batches: deque[tuple[float, float]] = deque(maxlen=MOST_BATCHES)
        """Keys of the steps with which a batch grew, and its rows since."""
        self.latest: Mapping[str, Any] = {}
        """The last step."""
        self.last_seconds = 0.0
        """When anything was told last, in seconds since 1970."""
        self.n_marks: Counter[str] = Counter()
        self.has_stopped = False
        """Whether the last run has said that it made its last step."""
        self.n_features: float | None = None
        self.threads = 1.0
        """Seconds of work in a second of the busiest step."""
        self.speeds: dict[str, float] = {}
        """Rows a second of each worker, between its last two reports."""
        self.sizes: Mapping[str, Any] = {}
        """The last word on the sizes of clusters."""
        self._workers = WorkerFigures()
        self._marks: dict[str, deque[Mark]] = {}
        self._clock = Series(beside=1)
        """Passes and wall time by seconds used."""
        self._key = -1.0
        self._elapsed = self._passes = 0.0
        self._begins = False
        """Whether the next step is after a gap."""
        self._is_in = window is None
        """Whether the last step lies in the window."""
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._hear: dict[str, Callable[[Event], None]] = {
            "started": self._hear_started,
            "step": self._hear_step,
            "checkpoint": self._hear_checkpoint,
            "warning": self._hear_warning,
            "running": self._hear_change,
            "interrupted": self._hear_change,
            "worker": self._hear_worker,
            "workers": self._hear_workers,
            "sizes": self._hear_sizes,
            "stopped": self._hear_stopped,
        }

    def hear(self, event: object) -> None:
        """Take in an event, whatever it is."""
        if not isinstance(event, Mapping):
            return
        self.last_seconds = max(self.last_seconds, seconds_of(event))
        kind = event.get("event")
        if isinstance(kind, str) and kind in self._hear:
            self._hear[kind](event)

    def step_seconds(self) -> float | None:
        """How long a step takes, by the last few; None before there is one."""
        return median(self._recent) if self._recent else None

    def marks(self) -> list[Mark]:
        """What happened, in its order."""
        return sorted(
            (mark for kept in self._marks.values() for mark in kept),
            key=lambda mark: (mark.seconds, mark.elapsed),
        )

    def nbytes(self) -> int:
        """Bytes of the numbers in all series."""
        return sum(series.nbytes for series in self._all())

    # --- what each kind tells ---------------------------------------------------------------------

    def _hear_started(self, event: Event) -> None:
        self.n_rows = number_in(event, "n_rows") or self.n_rows
        n_iter, start = number_in(event, "n_iter") or 0.0, number_in(event, "start") or 0.0
        self.n_features = number_in(event, "n_features") or self.n_features
        self._cut(key_of(start, n_iter))
        self._begins, self.has_stopped = True, False
        self._workers.hear(event)
        if n_iter > 0:
            self._mark(RESUMED, f"goes on after step {n_iter:,.0f}", event)

    def _hear_step(self, event: Event) -> None:
        step, elapsed = number_in(event, "step"), number_in(event, "elapsed")
        if step is None or elapsed is None or step < 0 or elapsed < 0:
            return
        key = key_of(number_in(event, "start") or 0.0, step)
        # Told again without a word, as after a scheduler that came back: the later one counts.
        self._cut(key - 1.0)
        gap = key - self._key if self._key >= 0 and key - self._key < A_START else 1.0
        rows = max(0.0, number_in(event, "rows") or 0.0)
        self._key, self._elapsed = key, max(self._elapsed, elapsed)
        self._passes += rows * gap / self.n_rows if self.n_rows else 0.0
        if self._begins:
            for series in self._all():
                series.interrupt()
            self._begins = False
        time = 1e3 * seconds_of(event)
        self._clock.add(key, self._elapsed, self._passes, time)
        self.latest = event
        if self.window is not None:
            self._is_in = self.window.holds(self._elapsed, time, self._passes)
            if not self._is_in:
                return
        self._add_cost(event, time)
        self._add_figures(event, rows)
        self._add_seconds(event)
        self._add_extra(event)

    def _add_cost(self, event: Event, time: float) -> None:
        cost = number_in(event, "cost")
        if cost is None:
            return
        start = number_in(event, "start")
        line = Line(None if start is None else int(start), event.get("sample") is not None)
        if line not in self.costs:
            self.costs[line] = Series(beside=2)
            starts = list(dict.fromkeys(known.start for known in self.costs))
            if len(starts) > MOST_STARTS:
                for other in [known for known in self.costs if known.start == starts[0]]:
                    del self.costs[other]
        self.costs[line].add(self._key, self._elapsed, cost, time, self._passes)
        clusters = number_in(_extra(event), "partitions")
        if clusters is not None and 1 <= clusters < A_START:
            self.by_partition[int(clusters)] = cost
            if len(self.by_partition) > MOST_PARTITIONS:
                self.by_partition = dict(sorted(self.by_partition.items())[::2])

    def _add_figures(self, event: Event, rows: float) -> None:
        changed = number_in(event, "n_changed")
        if changed is not None and rows > 0:
            self._add("n_changed", changed / rows)
        self._add("shift", number_in(event, "shift"))
        self._add("eta_s", number_in(event, "eta_s"))
        self._add("rows_per_second", number_in(event, "rows_per_second"))
        for name in ("state_bytes", "cache_bytes"):
            self._add(name, number_in(event, name))
        again = {name: number_in(event, name) or 0.0 for name in ("retries", "rebuilt")}
        for name in ("bytes", "copied", "evictions"):
            self._sum(name, number_in(event, name))
        for name, n in again.items():
            self._sum(name, n)
        words = {"retries": "handed out again", "rebuilt": "rebuilt"}
        told = [f"{count_of(int(n), 'chunk')} {words[name]}" for name, n in again.items() if n > 0]
        if told:
            kind = RETRY if again["retries"] > 0 else REBUILT
            self._mark(kind, f"step {self._key % A_START:,.0f}: {', '.join(told)}", event)

    def _add_seconds(self, event: Event) -> None:
        seconds = event.get("seconds")
        total = number_in(seconds, "total")
        if total is None or total <= 0:
            return
        self._recent.append(total)
        for kind in KINDS:
            spent = number_in(seconds, kind)
            if spent is not None and spent >= 0:
                self._sum(kind, spent)
                self._add(kind, spent / total)
        self._sum("total", total)
        busy = sum(max(0.0, number_in(seconds, kind) or 0.0) for kind in WORK) / total
        self.threads = min(max(self.threads, busy), MOST_THREADS)
        moved = number_in(event, "bytes")
        self._add("bytes_per_second", None if moved is None else moved / total)

    def _add_extra(self, event: Event) -> None:
        extra = _extra(event)
        for name in extra if isinstance(extra, Mapping) else ():
            if name in EXTRA:
                self._add(name, number_in(extra, name))
        batch = number_in(extra, "batch_rows")
        if batch is None:
            return
        if self.batches and self._key // A_START > self.batches[-1][0] // A_START:
            self.batches.clear()
        if not self.batches or batch > self.batches[-1][1]:
            self.batches.append((self._key, batch))

    def _hear_checkpoint(self, event: Event) -> None:
        n_iter, seconds = number_in(event, "n_iter"), number_in(event, "seconds")
        took = "" if seconds is None else f", written in {human_seconds(max(0.0, seconds))}"
        at = "" if n_iter is None else f" after step {n_iter:,.0f}"
        self._mark(CHECKPOINT, f"checkpoint{at}{took}", event)

    def _hear_warning(self, event: Event) -> None:
        self._mark(WARNING, str(event.get("message")), event)

    def _hear_change(self, event: Event) -> None:
        kind = str(event.get("event"))
        reason = event.get("reason")
        self._mark(kind, kind if reason is None else f"{kind}: {reason}", event)

    def _hear_worker(self, event: Event) -> None:
        chunks = number_in(event, "chunks")
        had = "" if chunks is None else f", {count_of(int(chunks), 'chunk')}"
        words = f"worker {event.get('address')} {event.get('change')}{had}"
        self._mark("worker", words, event)

    def _hear_workers(self, event: Event) -> None:
        self._workers.hear(event)
        if (speeds := self._workers.speeds) and self._is_in:
            self.speeds = {short_name(name): speed for name, speed in speeds.items()}
            self._add_speeds()

    def _add_speeds(self) -> None:
        """A point for each worker; of very many for quantiles."""
        if len(self.speeds) > MOST_WORKERS:
            ordered = sorted(self.speeds.values())
            for name, share in QUANTILES.items():
                self._add(name, ordered[round(share * (len(ordered) - 1))])
            return
        for name, speed in self.speeds.items():
            self._add(WORKER + name, speed, WORKER_BUCKETS)
        lines = [name for name in self.series if name.startswith(WORKER)]
        if len(lines) > MOST_WORKERS:
            # Workers that came again have other names: those that told nothing longest go.
            gone = [name for name in lines if name.removeprefix(WORKER) not in self.speeds]
            for name in gone[: len(lines) - MOST_WORKERS]:
                del self.series[name]

    def _hear_stopped(self, event: Event) -> None:
        self.has_stopped = True
        n_iter, start = number_in(event, "n_iter") or 0.0, number_in(event, "start") or 0.0
        if self.latest and key_of(start, n_iter) > self._key:
            # Of quick steps not all are told to whoever listens, but how they ended is.
            last = {name: self.latest.get(name) for name in ("rows", "sample")}
            self._hear_step({**last, **event, "step": n_iter})

    def _hear_sizes(self, event: Event) -> None:
        self.sizes = event

    # --- series -----------------------------------------------------------------------------------

    def _all(self) -> Iterator[Series]:
        yield self._clock
        yield from self.costs.values()
        yield from self.series.values()

    def _add(self, name: str, value: float | None, buckets: int | None = None) -> None:
        """Add a value at the last step; None is none."""
        if value is None:
            return
        if name not in self.series:
            self.series[name] = Series() if buckets is None else Series(buckets=buckets)
        self.series[name].add(self._key, self._elapsed, value)

    def _sum(self, name: str, value: float | None) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + (value or 0.0)

    def _cut(self, key: float) -> None:
        """Forget what lies beyond a step: it is told again."""
        if key >= self._key:
            return
        for series in self._all():
            series.cut(key)
        self.costs = {line: series for line, series in self.costs.items() if series}
        self.series = {name: series for name, series in self.series.items() if series}
        while self.batches and self.batches[-1][0] > key:
            self.batches.pop()
        last = self._clock.last()
        self._elapsed, self._passes = (0.0, 0.0) if last is None else (last[X], last[Y])
        self._key = -1.0 if last is None else key

    def _mark(self, kind: str, text: str, event: Event) -> None:
        kept = self._marks.setdefault(kind, deque(maxlen=MOST_MARKS))
        self.n_marks[kind] += 1
        words = printable(text[: 2 * MOST_TEXT])
        if len(words) > MOST_TEXT:
            words = f"{words[: MOST_TEXT - 1]}…"
        at = seconds_of(event)
        kept.append(Mark(self._key, self._elapsed, at, self._passes, kind, words))


def number_in(about: object, name: str) -> float | None:
    """A number of an event; None where there is none that is finite."""
    # The first of these are what nearly all are, and cost least to ask for; NaN is in no range.
    value = about.get(name) if type(about) is dict or isinstance(about, Mapping) else None
    if type(value) is float or type(value) is int:
        return float(value) if -MOST <= value <= MOST else None
    return float(value) if is_number(value) else None


def short_name(worker: object) -> str:
    """The address of a worker without its protocol, safe to print."""
    name = printable(str(worker)[:MOST_TEXT])
    return name.partition("://")[2] or name


def _extra(event: Event) -> object:
    return event.get("extra")
