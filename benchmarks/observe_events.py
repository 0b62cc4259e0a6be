"""What events cost on disk and in memory, and figures for Prometheus: of simulated days."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from largek_dask.driver.event_log import JsonLines
from largek_dask.driver.sizes import Sizes, sizes_of
from largek_dask.driver.storage import Folder
from largek_dask.driver.words import short_number
from largek_dask.driver.worker_columns import WorkerColumns, pause_between
from largek_dask.passes.telemetry import PassReport

__all__ = ["MEASURES", "TARGETS", "Day", "Sent", "uploads_of"]

TARGETS = {
    "events_64": ("events of a simulated day of 10,000 steps, 64 workers", "MB", 20.0),
    "events_1024": ("the same, 1,024 workers", "MB", 100.0),
    "uploads_64": ("uploads of a byte of it to an object store, without the open part", "", 2.0),
    "uploads_1024": ("the same, 1,024 workers", "", 2.0),
    "feed_mb": ("memory of the events of a job of 10,000 steps, 64 workers", "MB", 4.0),
    "feeds_mb": ("the same of 50 jobs together", "MB", 64.0),
    "metrics_ms": ("`/metrics` with 50 jobs: CPU time on the event loop", "ms", 5.0),
    "metrics_kb": ("its answer", "kB", 60.0),
}
"""What is measured, its unit, and what it is not to exceed."""
DAY_SECONDS = 86_400.0
STEPS = 10_000
ROWS, CLUSTERS, CHUNKS = 80_000_000, 100_000, 12_288
JOBS = 50


class Day:
    """Events of a job that takes a day, on a clock of its own.

    Parameters
    ----------
    workers : int
    steps : int
    seconds : float
        How long the day is.
    """

    def __init__(self, workers: int, steps: int = STEPS, seconds: float = DAY_SECONDS) -> None:
        self.now = 0.0
        self._steps, self._pause = steps, seconds / steps
        self._rng = np.random.default_rng(0)
        names = [f"tcp://10.0.{n // 250}.{n % 250}:{40_000 + 7 * n}" for n in range(workers)]
        self._reports = {name: PassReport() for name in names}
        self._worked_at = 0.0

    def clock(self) -> float:
        """Seconds since it began."""
        return self.now

    def events(self) -> Iterator[dict[str, Any]]:
        """All events, each at its time."""
        columns = WorkerColumns(self._reports, (), self.clock)
        sizes = Sizes(self.clock)
        # Of so large a number once: how it is told is what counts, and when.
        told_of_sizes = sizes_of(self._rng.lognormal(6.0, 1.0, CLUSTERS))
        yield self._event("started", n_rows=ROWS, n_features=128, n_chunks=CHUNKS,
                          n_workers=len(self._reports), n_iter=0)  # fmt: skip
        for step in range(1, self._steps + 1):
            self.now = step * self._pause
            yield self._step(step)
            self._work()
            if told := columns.due():
                yield self._event("workers", **told)
            if sizes.due(lambda: np.ones(1)):
                yield self._event("sizes", **told_of_sizes)
            if step % 4 == 0:
                yield self._event("checkpoint", n_iter=step, url="s3://bucket/run/checkpoints",
                                  seconds=float(self._rng.uniform(1, 3)))  # fmt: skip

    def _event(self, kind: str, **values: Any) -> dict[str, Any]:
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now)
        return {"event": kind, "time": at.isoformat(timespec="milliseconds"), **values}

    def _work(self) -> None:
        """What every worker has done, no two of them the same: once it is time to tell of it."""
        seconds, workers = self.now - self._worked_at, len(self._reports)
        if self._worked_at and seconds < pause_between(workers):
            return
        self._worked_at = self.now
        shares = self._rng.uniform(0.8, 1.2, (workers, 3)).tolist()
        steps = seconds / self._pause
        for report, (rows, busy, size) in zip(self._reports.values(), shares, strict=True):
            report.rows += int(rows * steps * ROWS / workers)
            report.chunks += int(steps * CHUNKS / workers)
            report.compute += busy * seconds * 7
            report.read += busy * seconds * 0.3
            report.wait += (1.2 - busy) * seconds
            report.bytes_read += int(rows * steps * ROWS * 512 / workers)
            report.state_bytes = int(size * 1e9)
            report.cache_bytes = int(size * 4e8)

    def _step(self, step: int) -> dict[str, Any]:
        cost, *rest = self._rng.uniform(0.9, 1.1, 7).tolist()
        kinds = ("total", "compute", "read", "wait", "reduce", "driver")
        seconds = {kind: short_number(self._pause * x) for kind, x in zip(kinds, rest, strict=True)}
        return self._event(
            "step", step=step, cost=cost * 1e9, rows=ROWS, n_changed=int(1e6 * cost),
            shift=cost * 1e-3, converged=False,
            extra={"distances": cost * 0.1, "batch_rows": float(ROWS)},
            seconds={**seconds, "compile": 0}, bytes=int(cost * 4e10), copied=0, retries=0,
            rebuilt=0, evictions=0, state_bytes=int(cost * 1e9), cache_bytes=int(cost * 1e9),
            sample=None, rows_per_second=short_number(cost * 9e6), elapsed=round(self.now, 6),
            eta_s=short_number(cost * 4e4),
        )  # fmt: skip


# --- files ----------------------------------------------------------------------------------------


class Sent(Folder):
    """A folder of an object store that notes what is sent to it.

    Attributes
    ----------
    sent : dict
        Sizes of all that was sent under each name, in their order.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sent: dict[str, list[int]] = {}

    def sub(self, name: str) -> Sent:
        """A folder inside this one, of the same notes."""
        inner = object.__new__(Sent)
        inner.__dict__.update(super().sub(name).__dict__)
        return inner

    def publish(self, name: str, data: bytes) -> None:
        """Send a file."""
        self.sent.setdefault(name, []).append(len(data))
        super().publish(name, data)


def uploads_of(sent: dict[str, list[int]]) -> float:
    """How often the bytes of parts were sent that are closed, the open part left out.

    A part is open until the next one is begun; while it is, it is sent anew as it grows. What is
    counted of it is how often it was sent as the whole that it is in the end.
    """
    whole = [sum(size == sizes[-1] for size in sizes) for sizes in list(sent.values())[:-1]]
    return float(max(whole))


def files() -> dict[str, float]:
    """Bytes of all parts on an object store at the end of a day, and how often they were sent."""
    found = {}
    for workers in (64, 1_024):
        day, folder = Day(workers), Sent(f"memory://observe-{workers}")
        folder.remove("")
        log = JsonLines(folder, clock=day.clock)
        for event in day.events():
            log(event)
        log.close()
        parts = {name: sizes for name, sizes in folder.sent.items() if name.endswith(".jsonl")}
        n_bytes = sum(sizes[-1] for sizes in parts.values())
        assert len(parts) > 50
        assert n_bytes == sum(len(folder.read(f"events/{name}")) for name in parts)
        found[f"events_{workers}"] = n_bytes / 1e6
        found[f"uploads_{workers}"] = uploads_of(parts)
        found[f"parts_{workers}"] = float(len(parts))
        found[f"sent_{workers}"] = sum(map(sum, parts.values())) / 1e6
        folder.remove("")
    return found


# --- memory ---------------------------------------------------------------------------------------


@contextmanager
def _every_step_told() -> Iterator[None]:
    """Steps of a day would all be told: those made here come too fast for that."""
    from largek_dask.service import feed

    before, feed.STEP_SECONDS = feed.STEP_SECONDS, 0.0
    try:
        yield
    finally:
        feed.STEP_SECONDS = before


def _held_by(events: list[dict[str, Any]], jobs: int) -> float:
    """Most megabytes that the feeds of jobs held which are told these events side by side."""
    from largek_dask.service.feed import Feed, Shelf

    gc.collect()
    tracemalloc.start()
    shelf, most, n_told = Shelf(), 0, len(events)
    feeds = [Feed(f"lk-{n:010x}", lambda event: None, True, shelf) for n in range(jobs)]
    for n, event in enumerate(events):
        for feed in feeds:
            feed(event)
        if n % 50 == 0 or n + 1 == n_told:
            most = max(most, tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    kept = [len(feed.since(0, n_told)) for feed in feeds]
    assert sum(kept) < jobs * n_told, "they were told more than they may keep"
    return most / 1e6


def memory() -> dict[str, float]:
    """Memory of feeds as Python counts it, at the end of a day, of more than they may keep."""
    day = list(Day(64).events())
    with _every_step_told():
        return {"feed_mb": _held_by(day[-4_000:], 1), "feeds_mb": _held_by(day[-2_000:], JOBS)}


# --- Prometheus -----------------------------------------------------------------------------------


def _jobs_that_run() -> list[Any]:
    """Jobs of a scheduler in the middle of their work."""
    from largek_dask.service.known import KnownJob
    from largek_dask.service.places import Places
    from largek_dask.service.spec import JobSpec
    from largek_dask.service.store import Record

    spec = JobSpec.parse(
        {"data": "s3://bucket/rows.zarr", "output": "s3://bucket/run", "n_clusters": CLUSTERS,
         "algorithm": {"name": "nmbatch"}, "name": "vectors of the night run"}
    )  # fmt: skip
    # Few steps of many seconds: what is told of a job are sums, and those of a day are long.
    events = list(Day(64, steps=50).events())
    jobs = []
    with _every_step_told():
        for n in range(JOBS):
            record = Record(f"lk-{n:010x}", spec, "me", 0.0)
            job = KnownJob(record, Places.of(spec), {}, lambda event: None, is_new=True)
            job.running = True
            for event in events:
                job.feed(event)
            jobs.append(job)
    return jobs


def prometheus() -> dict[str, float]:
    """Time and size of an answer to Prometheus."""
    import prometheus_client

    from largek_dask.observe import metrics
    from largek_dask.service.metering import metered

    jobs = _jobs_that_run()
    metrics.watch_jobs(lambda: metered(jobs))
    collector = metrics._collector()
    assert collector is not None, "the extra metrics is not installed"
    seconds = []
    for _ in range(100):
        # Of this thread, and the least: what others take on a busy machine is none of it.
        began = time.thread_time()
        text = prometheus_client.generate_latest(collector)
        seconds.append(time.thread_time() - began)
    assert text.count(b"largek_job_info{") == JOBS
    return {"metrics_ms": 1e3 * min(seconds), "metrics_kb": len(text) / 1e3}


MEASURES: dict[str, Callable[[], dict[str, float]]] = {
    "files": files,
    "memory": memory,
    "prometheus": prometheus,
}
