"""The jobs of one scheduler, as the page reads them; every method may block."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from largek_dask.driver.formatting import printable
from largek_dask.driver.job_view import JobView
from largek_dask.errors import ParameterError
from largek_dask.service.jobs import Jobs

__all__ = ["JobsSource"]

READERS = 2
"""Threads that read events from folders: a store that does not answer holds up one of them."""
MOST_READ = 64
"""Jobs whose events are being read, or could not be; the least recently asked for goes first."""
RETRY_SECONDS = 30.0
"""Time until a folder that could not be read is read again."""
MOST_NUMBERS = 10_000_000
"""Numbers of a model's centres up to which the scheduler makes its report."""


class JobsSource:
    """Read jobs for the page.

    The view of a job is that of its feed. Where that lacks earlier events, as after a restart of
    the scheduler and of jobs that ended long ago, a thread reads them from the job's folder.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._readers = ThreadPoolExecutor(READERS, "largek-page-reader")
        self._reading: dict[str, tuple[float, Future[None]]] = {}

    def close(self) -> None:
        """Read no more folders."""
        self._readers.shutdown(wait=False, cancel_futures=True)

    def rows(self) -> list[dict[str, Any]]:
        """Return what the list shows of each job, the oldest first."""
        return self._jobs.listed()

    def view(self, job_id: str) -> tuple[JobView, str]:
        """Return a copy of a job's view, and what it lacks in a sentence; empty if nothing."""
        status = self._jobs.status(job_id)
        view, lack = self._view(job_id, status)
        view.set_status(status)
        return view, lack

    def cancel(self, job_id: str, who: str) -> str:
        """Ask a job to end, and return its state."""
        return self._jobs.cancel(job_id, who)

    def report(self, job_id: str) -> str:
        """Return the report of a job's model as HTML."""
        from largek_dask.plots.report import make_report

        output = printable(self._jobs.status(job_id).get("output"))
        model = self._jobs.model(job_id)
        if model.n_clusters * model.n_features > MOST_NUMBERS:
            raise ParameterError(
                f"the model of job {job_id} has more than {MOST_NUMBERS:,} numbers: make its page "
                f"where you are, with `largek report {output}`."
            )
        return make_report(model).html

    def _view(self, job_id: str, status: Mapping[str, Any]) -> tuple[JobView, str]:
        if status.get("needs"):
            # Its folder cannot be reached now.
            return JobView(), ""
        feed = self._jobs.feed(job_id)
        lack = "" if feed.is_loaded else self._read(job_id)
        return feed.copy_view(), lack

    def _read(self, job_id: str) -> str:
        """Have the earlier events of a job read; return what is missing until then."""
        now = time.monotonic()
        begun, reading = self._reading.pop(job_id, (now, None))
        error = reading.exception() if reading is not None and reading.done() else None
        if reading is None or (reading.done() and (error is None or now - begun > RETRY_SECONDS)):
            begun, reading = now, self._readers.submit(self._jobs.recall, job_id)
        self._reading[job_id] = begun, reading
        while len(self._reading) > MOST_READ:
            self._reading.pop(next(iter(self._reading)))[1].cancel()
        if error is not None:
            return f"Its earlier events cannot be read: {error}"
        return "Its earlier events are being read; charts follow."
