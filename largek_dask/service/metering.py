"""A scheduler's jobs for Prometheus: figures that are ready, so that no lock is waited for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

from largek_dask import config
from largek_dask.driver.stopping import ENDS
from largek_dask.observe.metrics import JobFigures, JobsFigures
from largek_dask.service.known import STATES, KnownJob

__all__ = ["ENDED_SECONDS", "metered"]

ENDED_SECONDS = 600.0
"""How long a job that has ended is shown: a short one would be gone before a second scrape."""


def metered(jobs: Iterable[KnownJob], clock: Callable[[], float] = time.time) -> JobsFigures:
    """What is told of jobs: how many there are, and figures of those that run or ran just now.

    At most ``largek.observe.metrics-jobs`` of them: those that run before those that have ended,
    of which the latest come first.
    """
    since = clock() - ENDED_SECONDS
    # Jobs whose records cannot be read are not among these.
    states = Counter(dict.fromkeys(STATES[:-1], 0))
    running: list[KnownJob] = []
    ended: list[KnownJob] = []
    for job in jobs:
        states[state := job.state] += 1
        if job.running and state not in ENDS:
            running.append(job)
        elif state in ENDS and job.feed.ready.at >= since:
            ended.append(job)
    ended.sort(key=lambda job: job.feed.ready.at, reverse=True)
    shown = [*running, *ended][: int(config.get("observe.metrics-jobs"))]
    return JobsFigures(states, tuple(map(_figures, shown)))


def _figures(job: KnownJob) -> JobFigures:
    spec, ready = job.record.spec, job.feed.ready
    return JobFigures(
        job_id=job.record.id,
        name=spec.name or "",
        algorithm=spec.algorithm.name,
        n_clusters=spec.n_clusters,
        figures={"running": float(job.state not in ENDS), **ready.figures},
        seconds=ready.seconds,
    )
