"""Figures of jobs for Prometheus, on the page ``/metrics`` of the scheduler.

One collector per process, for the newest scheduler. It is called on its event loop, so it blocks on
no lock. Without ``prometheus-client`` (extra ``metrics``) there is none.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from largek_dask import config
from largek_dask.driver.formatting import printable
from largek_dask.driver.stopping import ENDS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from largek_dask.service.job_state import JobState

__all__ = [
    "ENDED_SECONDS",
    "JOB_METRICS",
    "STORE_METRICS",
    "JobsFigures",
    "forget",
    "metered",
    "watch_jobs",
]

MOST_NAME = 64
JOB_METRICS: dict[str, tuple[str, str]] = {
    "ended": ("gauge", "1 when the job has ended; absent before."),
    "failed": ("gauge", "1 when the job has failed; absent otherwise."),
    "before_first_step_seconds": (
        "gauge",
        "How long the run in progress has made no step; absent after its first one.",
    ),
    "cost": ("gauge", "The objective after the last step."),
    "steps": ("counter", "Steps, those made again included."),
    "rows": ("counter", "Rows that steps went through."),
    "bytes": ("counter", "Bytes read or moved."),
    "retries": ("counter", "Chunks handed out again."),
    "rebuilt": ("counter", "Chunks whose row state was rebuilt."),
    "evictions": ("counter", "Times that row state did not fit."),
    "state_bytes": ("gauge", "Row state held by workers."),
    "eta_seconds": ("gauge", "Time left, at most; absent where unknown."),
    "last_event_timestamp_seconds": ("gauge", "When the last sign was."),
    "workers": ("gauge", "Workers; 0 if the scheduler computes."),
}
"""Figures of a job: kind and what they say. Those of a counter end in ``_total``."""
STORE_METRICS: dict[str, tuple[str, str]] = {
    "free_bytes": ("gauge", "Free bytes of the disk of the store; absent if that is not local."),
    "size_bytes": ("gauge", "All bytes of that disk."),
}
SECONDS = "Seconds of work by kind, summed over threads; total is on the wall."


class JobsFigures(NamedTuple):
    """Figures of the jobs of a scheduler."""

    states: Mapping[str, int]
    jobs: list[JobState]
    """Those that run or have ended a short time ago."""
    store: Mapping[str, float]
    """By names of :data:`STORE_METRICS`, as far as they are known."""
    at: float


class _Collector:
    """Collector of Prometheus' registry."""

    def __init__(self) -> None:
        self.jobs: Callable[[], JobsFigures] | None = None

    def describe(self) -> Iterable[Metric]:
        """Return nothing: otherwise all figures would be collected to be registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield all figures, as they are now."""
        # Read once: it may go meanwhile.
        if (jobs := self.jobs) is not None:
            yield from _of_jobs(jobs())


_registered: _Collector | None = None


def _collector() -> _Collector | None:
    """Return the collector of this process; None without Prometheus."""
    global _registered
    if _registered is None:
        try:
            from prometheus_client import REGISTRY
        except ImportError:
            return None
        collector = _Collector()
        REGISTRY.register(collector)
        _registered = collector
    return _registered


def watch_jobs(ask: Callable[[], JobsFigures]) -> None:
    """Show the jobs of a scheduler from now on; ``ask`` is called on an event loop."""
    if (collector := _collector()) is not None:
        collector.jobs = ask


def forget(ask: Callable[[], Any]) -> None:
    """Show what was watched by ``ask`` no longer; a newer one stays."""
    if _registered is not None and _registered.jobs == ask:
        _registered.jobs = None


def _of_jobs(found: JobsFigures) -> Iterator[Metric]:
    states = _family("largek_jobs", "gauge", "Jobs by state.", ("state",))
    for state, n in found.states.items():
        states.add_metric((state,), n)
    yield states
    for name, (kind, says) in STORE_METRICS.items():
        family = _family(f"largek_store_{name}", kind, says, ())
        if name in found.store:
            family.add_metric((), found.store[name])
        yield family
    about = _family("largek_job_info", "gauge", "What a job is: 1.",
                    ("job_id", "name", "algorithm", "n_clusters"))  # fmt: skip
    for job in found.jobs:
        spec = job.record.spec
        name = printable((spec.name or "")[:MOST_NAME])
        about.add_metric((job.record.id, name, spec.algorithm.name, str(spec.n_clusters)), 1)
    yield about
    figures = {job.record.id: _figures(job, found.at) for job in found.jobs}
    for name, (kind, says) in JOB_METRICS.items():
        family = _family(f"largek_job_{name}", kind, says, ("job_id",))
        for job_id, known in figures.items():
            if name in known:
                family.add_metric((job_id,), known[name])
        yield family
    seconds = _family("largek_job_seconds", "counter", SECONDS, ("job_id", "kind"))
    for job in found.jobs:
        for kind, value in job.feed.ready.seconds.items():
            seconds.add_metric((job.record.id, kind), value)
    yield seconds


def _family(name: str, kind: str, says: str, labels: tuple[str, ...]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    return family(name, says, labels=labels)


ENDED_SECONDS = 600.0
"""How long a job that has ended is shown: a short one would be gone before a second scrape."""


def metered(
    jobs: Iterable[JobState],
    store: Mapping[str, float],
    clock: Callable[[], float] = time.time,
) -> JobsFigures:
    """Return the number of jobs by state, and figures of those that run or ended just now.

    At most ``largek.observe.metrics-jobs`` of them: those that run before those that have ended,
    of which the latest come first.
    """
    from largek_dask.service.job_state import STATES  # not on workers

    now = clock()
    since = now - ENDED_SECONDS
    # Jobs whose records cannot be read are not among these.
    states = Counter(dict.fromkeys(STATES[:-1], 0))
    running: list[JobState] = []
    ended: list[JobState] = []
    for job in jobs:
        states[state := job.state] += 1
        if job.running and state not in ENDS:
            running.append(job)
        elif state in ENDS and job.feed.ready.at >= since:
            ended.append(job)
    ended.sort(key=lambda job: job.feed.ready.at, reverse=True)
    shown = [*running, *ended][: int(config.get("observe.metrics-jobs"))]
    return JobsFigures(states, shown, store, now)


def _figures(job: JobState, now: float) -> dict[str, float]:
    """Return the figures of a job, by names of :data:`JOB_METRICS`, as far as they are known."""
    figures, state, began = dict(job.feed.ready.figures), job.state, job.began
    if state in ENDS:
        figures["ended"] = 1.0
    elif began is not None:
        figures["before_first_step_seconds"] = max(0.0, round(now - began, 1))
    if state == "failed":
        figures["failed"] = 1.0
    return figures
