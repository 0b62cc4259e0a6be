"""One job, as its user sees it."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from largek_dask.driver.stopping import parse_duration
from largek_dask.errors import CancelledJobError
from largek_dask.model import Model
from largek_dask.service.store import ENDS
from largek_dask.service.wire import error_of, model_of

if TYPE_CHECKING:
    from largek_dask.service.client import Service

__all__ = ["Job"]

POLL_SECONDS = 2.0
"""Events that are pushed may be lost with a connection: so often it is asked for them."""
LAST = ("finished", "failed", "cancelled", "deleted")
"""Events after which nothing follows."""


class Job:
    """A job on a scheduler; made by :meth:`Service.submit` and :meth:`Service.job`.

    Attributes
    ----------
    id : str
    """

    def __init__(self, service: Service, job_id: str) -> None:
        self._service = service
        self.id = job_id

    def status(self) -> dict[str, Any]:
        """What is known of the job now.

        Returns
        -------
        dict
            ``state`` (queued, waiting-for-credentials, running, finished, failed, cancelled),
            ``note`` (why it waits), ``needs`` (storage options to be supplied), what was
            submitted, and while and after it runs on this scheduler: ``step``, ``cost``,
            ``rows_per_second``, ``elapsed`` and ``eta_s`` (seconds), sums over its steps
            (``rows``, ``bytes``, ``retries``, ``rebuilt``, ``evictions``, ``seconds`` by kind),
            ``state_bytes`` and ``cache_bytes`` held now, the same figures by worker
            (``workers``), and in the end ``result``.
        """
        found: dict[str, Any] = self._service.ask_again("status", id=self.id)
        return found

    @property
    def state(self) -> str:
        """See :meth:`status`."""
        return str(self.status()["state"])

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.state in ENDS

    def events(self, *, follow: bool = True) -> Iterator[dict[str, Any]]:
        """All events so far, then each as it comes, until the job has ended.

        Parameters
        ----------
        follow : bool
            False: only those so far.

        Yields
        ------
        dict
            ``event`` (its kind), ``time`` (UTC), and what its kind adds: see
            ``largek_dask.driver.events``, and queued, running, interrupted, cancelling,
            finished, failed, cancelled.
        """
        epoch, n, seen = None, 0, ""
        with self._service.following(self.id) as news:
            while True:
                found = self._service.ask_again("events", id=self.id, n=n)
                if found["epoch"] != epoch:
                    # Another scheduler numbers them anew; what was seen before is passed over.
                    if epoch is not None and n > 0:
                        epoch, n = found["epoch"], 0
                        continue
                    epoch = found["epoch"]
                last = None
                for event in found["events"]:
                    n, last = event["n"] + 1, event["event"]
                    if event.get("time", "~") > seen:
                        yield event
                        seen = event.get("time", seen)
                if found["events"]:
                    if last in LAST and self._is_over(n):
                        return
                    continue
                if not follow or self._is_over(n):
                    return
                with contextlib.suppress(queue.Empty):
                    news.get(timeout=POLL_SECONDS)

    def _is_over(self, n: int) -> bool:
        """Whether no event follows number ``n - 1``."""
        status = self.status()
        return status["state"] in ENDS and status["n_events"] <= n

    def wait(self, timeout: float | str | None = None) -> str:
        """Wait until the job has ended; how it did.

        Raises
        ------
        TimeoutError
        """
        until = None if timeout is None else time.monotonic() + parse_duration(timeout, "timeout")
        with self._service.following(self.id) as news:
            while (state := self.state) not in ENDS:
                left = POLL_SECONDS
                if until is not None:
                    left = min(left, until - time.monotonic())
                    if left <= 0:
                        raise TimeoutError(f"job {self.id} is {state}; it goes on.")
                with contextlib.suppress(queue.Empty):
                    while news.get(timeout=left)["event"] not in LAST:
                        left = min(left, 0.1)
        return state

    def result(self, timeout: float | str | None = None) -> Model:
        """Wait for the job's model.

        Raises
        ------
        TimeoutError
            The job goes on.
        CancelledJobError
            It was cancelled; :meth:`model` may have a best one so far.
        Exception
            What it failed with, with the scheduler's and the worker's traceback.
        """
        state = self.wait(timeout)
        if state == "cancelled":
            raise CancelledJobError(f"job {self.id} was cancelled.")
        if state == "failed":
            result = self.status()["result"]
            raise error_of(result["error"], result["message"], result["traceback"])
        return self.model()

    def model(self) -> Model:
        """The best model so far.

        Raises
        ------
        NoModelError
            There is none yet.
        """
        return model_of(self._service.ask_again("model", id=self.id))

    def cancel(self) -> None:
        """Ask the job to end; its best model so far stays."""
        self._service.ask_again("cancel", id=self.id)

    def supply(self, storage_options: Mapping[str, Any]) -> list[str]:
        """Give values of storage options that were only in memory; the names still missing."""
        found: list[str] = self._service.ask_again(
            "supply", id=self.id, secrets=dict(storage_options)
        )
        return found

    def delete(self) -> None:
        """Remove a job that has ended, with all that it has written."""
        self._service.ask("delete", id=self.id)

    def __repr__(self) -> str:
        return f"<Job {self.id}>"
