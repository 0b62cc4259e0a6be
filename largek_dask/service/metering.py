"""A scheduler's jobs for Prometheus: figures that are ready, so that no lock is waited for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from largek_dask import config
from largek_dask.driver.stopping import ENDS
from largek_dask.observe.metrics import JobFigures, JobsFigures
from largek_dask.service.job_state import STATES, JobState

__all__ = ["ENDED_SECONDS", "metered"]

ENDED_SECONDS = 600.0
"""How long a job that has ended is shown: a short one would be gone before a second scrape."""


def metered(
    jobs: Iterable[JobState],
    store: Mapping[str, float],
    clock: Callable[[], float] = time.time,
) -> JobsFigures:
    """What is told of jobs: how many there are, and figures of those that run or ran just now.

    At most ``largek.observe.metrics-jobs`` of them: those that run before those that have ended,
    of which the latest come first.
    """
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
    return JobsFigures(states, tuple(_figures(job, now) for job in shown), store)


def _figures(job: JobState, now: float) -> JobFigures:
    spec, ready, state, began = job.record.spec, job.feed.ready, job.state, job.began
    figures = dict(ready.figures)
    if state in ENDS:
        figures["ended"] = 1.0
    elif began is not None:
        figures["before_first_step_seconds"] = max(0.0, round(now - began, 1))
    if state == "failed":
        figures["failed"] = 1.0
    return JobFigures(
        job_id=job.record.id,
        name=spec.name or "",
        algorithm=spec.algorithm.name,
        n_clusters=spec.n_clusters,
        figures=figures,
        seconds=ready.seconds,
    )
