"""Prometheus metrics of jobs, served at ``/metrics`` on the scheduler.

Metrics are collected on the scheduler's event loop, so this module must not wait for locks. It
requires ``prometheus-client`` (extra ``metrics``).
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from largek_dask.driver.formatting import printable
from largek_dask.driver.stopping import ENDS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from largek_dask.service.job_state import JobState

MOST_NAME = 64
MOST_JOBS, ENDED_SECONDS = 100, 600.0
"""Maximum number of jobs to export, and time for which ended jobs are exported, in seconds."""
# Names are exported with the prefix largek_job_, for example largek_job_cost.
JOB_METRICS: dict[str, tuple[str, str]] = {
    "ended": ("gauge", "1 if the job has ended; otherwise absent."),
    "failed": ("gauge", "1 if the job has failed; otherwise absent."),
    "before_first_step_seconds": (
        "gauge",
        "Time since the start of the current run; absent after its first step.",
    ),
    "cost": ("gauge", "Objective after the last step."),
    "steps": ("counter", "Number of steps, including repeated steps."),
    "rows": ("counter", "Number of rows processed by steps."),
    "bytes": ("counter", "Number of bytes read or moved."),
    "retries": ("counter", "Number of chunks that were retried."),
    "rebuilt": ("counter", "Number of chunks whose row state was rebuilt."),
    "evictions": ("counter", "Number of chunks whose row state was evicted for lack of memory."),
    "state_bytes": ("gauge", "Size of the row state on workers, in bytes."),
    "eta_seconds": ("gauge", "Upper bound of the time left; absent if unknown."),
    "last_event_timestamp_seconds": ("gauge", "Unix time of the last event."),
    "workers": ("gauge", "Number of workers in use; 0 if the scheduler computes."),
}
"""Type and description of each job metric. Prometheus appends ``_total`` to counters."""
SECONDS = "Seconds of work by kind, summed over threads; the kind total is wall time."


class JobsCollector:
    """Prometheus collector of the jobs that ``jobs`` returns."""

    newest: JobsCollector | None = None
    """The registered collector, which belongs to the newest scheduler of this process."""

    def __init__(
        self, jobs: Callable[[], Iterable[JobState]], clock: Callable[[], float] = time.time
    ) -> None:
        self._jobs = jobs
        self._clock = clock

    def register(self) -> None:
        """Register this collector in place of any other collector of jobs."""
        with contextlib.suppress(ImportError):
            from prometheus_client import REGISTRY

            if JobsCollector.newest is not None:
                JobsCollector.newest.close()
            REGISTRY.register(self)
            JobsCollector.newest = self

    def close(self) -> None:
        if JobsCollector.newest is self:
            from prometheus_client import REGISTRY

            REGISTRY.unregister(self)
            JobsCollector.newest = None

    def describe(self) -> Iterable[Metric]:
        """Return an empty list, so that registration does not collect metrics."""
        return ()

    def collect(self) -> Iterator[Metric]:
        from largek_dask.service.job_state import STATES  # not on workers

        jobs, now = list(self._jobs()), self._clock()
        counts = dict.fromkeys(STATES, 0) | Counter(job.state for job in jobs)
        states = _family("largek_jobs", "gauge", "Jobs by state.", ("state",))
        for state, n in counts.items():
            states.add_metric((state,), n)
        yield states
        about = _family("largek_job_info", "gauge", "Description of a job, as labels; always 1.",
                        ("job_id", "name", "algorithm", "n_clusters"))  # fmt: skip
        seconds = _family("largek_job_seconds", "counter", SECONDS, ("job_id", "kind"))
        families = {
            name: _family(f"largek_job_{name}", kind, says, ("job_id",))
            for name, (kind, says) in JOB_METRICS.items()
        }
        for job in shown(jobs, now):
            job_id, spec = job.record.id, job.record.spec
            name = printable((spec.name or "")[:MOST_NAME])
            about.add_metric((job_id, name, spec.algorithm.name, str(spec.n_clusters)), 1)
            for name, value in _figures(job, now).items():
                families[name].add_metric((job_id,), value)
            for kind, value in job.feed.metrics.seconds.items():
                seconds.add_metric((job_id, kind), value)
        yield from (about, *families.values(), seconds)


def _family(name: str, kind: str, says: str, labels: tuple[str, ...]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    return family(name, says, labels=labels)


def shown(jobs: Iterable[JobState], now: float) -> list[JobState]:
    """Return running jobs, then recently ended jobs, each with the latest first."""
    latest = sorted(jobs, key=lambda job: job.feed.metrics.at, reverse=True)
    running = [job for job in latest if job.running and job.state not in ENDS]
    since = now - ENDED_SECONDS
    ended = [job for job in latest if job.state in ENDS and job.feed.metrics.at >= since]
    return [*running, *ended][:MOST_JOBS]


def _figures(job: JobState, now: float) -> dict[str, float]:
    figures, state, began = dict(job.feed.metrics.figures), job.state, job.began
    if state in ENDS:
        figures["ended"] = 1.0
    elif began is not None:
        figures["before_first_step_seconds"] = max(0.0, round(now - began, 1))
    if state == "failed":
        figures["failed"] = 1.0
    return figures
