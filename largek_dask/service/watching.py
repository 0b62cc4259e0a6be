"""Jobs of a scheduler for its page, asked from threads of the web server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from largek_dask.driver.events import Event
from largek_dask.service.job_state import JobState
from largek_dask.service.jobs import Jobs
from largek_dask.service.store import Record

__all__ = ["JobsSource", "memory_of"]


NOT_LISTED = frozenset({"workers", "seconds", "sizes", "progress"})
"""Fields of a status that grow with workers or clusters, and that no list of jobs shows."""
RESULTS = ("result", "failure")
TEXTS = frozenset({"message", "traceback"})
"""What a result holds that may be long."""


class JobsSource:
    """The jobs of one scheduler, as ``observe.desk.Source`` asks for them.

    Parameters
    ----------
    jobs : Jobs
    memory : callable, optional
        Gives ``used`` and ``limit`` (bytes, or None) of each worker of the cluster, by address.
    """

    def __init__(
        self, jobs: Jobs, memory: Callable[[], Mapping[str, Mapping[str, Any]]] | None = None
    ) -> None:
        self._jobs = jobs
        self._memory = memory
        self._ended: dict[str, tuple[Record, dict[str, Any]]] = {}
        """Statuses of jobs that have ended, and the records that they are of: there may be very
        many, and nothing changes in them. Without what no list shows, which may be large."""

    def jobs(self) -> Sequence[dict[str, Any]]:
        """The status of every job."""
        found = self._jobs.all(self._status)
        if len(self._ended) > len(found):
            there = {str(status["id"]) for status in found}
            self._ended = {name: kept for name, kept in self._ended.items() if name in there}
        return found

    def _status(self, job: JobState) -> dict[str, Any]:
        record = job.record
        if record.result is None or job.running:
            self._ended.pop(record.id, None)
            return job.status()
        kept = self._ended.get(record.id)
        if kept is None or kept[0] is not record:
            kept = self._ended[record.id] = record, _for_a_list(job.status())
        return kept[1]

    def status(self, job_id: str) -> dict[str, Any]:
        """That of one; while it runs with ``memory`` of its workers."""
        status = self._jobs.status(job_id)
        if self._memory is None or status.get("state") != "running":
            return status
        known, mine = self._memory(), status.get("workers") or {}
        return {**status, "memory": {name: known[name] for name in mine if name in known}}

    def events(self, job_id: str, n: int, most: int) -> Sequence[Event]:
        """Events that are in memory; no file is read."""
        return self._jobs.remembered(job_id, n, most)

    def history(self, job_id: str) -> Iterable[Event]:
        """All events in the job's folder."""
        return self._jobs.history(job_id)

    def cancel(self, job_id: str, who: str) -> str:
        """Ask a job to end."""
        return self._jobs.cancel(job_id, who)


def _for_a_list(status: Mapping[str, Any]) -> dict[str, Any]:
    """The status of a job that has ended, without what only its own page shows."""
    kept = {name: value for name, value in status.items() if name not in NOT_LISTED}
    for name in RESULTS:
        if isinstance(result := kept.get(name), Mapping):
            kept[name] = {key: value for key, value in result.items() if key not in TEXTS}
    return kept


def memory_of(scheduler: Any) -> dict[str, dict[str, Any]]:
    """What the workers of a scheduler hold, and may hold, in bytes: as they said last.

    It is asked from threads: the copy of the table of workers is one step of the interpreter.
    """
    return {
        worker.address: {
            "used": worker.metrics.get("memory"),
            "limit": worker.memory_limit or None,
        }
        for worker in tuple(dict.values(scheduler.workers))
    }
