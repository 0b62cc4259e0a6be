"""A job as its user sees it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TextIO

from distributed.utils import silence_logging_cmgr

from largek_dask.algorithms.objective import objective_in
from largek_dask.driver.job_view import JobView
from largek_dask.driver.stopping import ENDS, parse_duration
from largek_dask.errors import (
    CancelledJobError,
    JobNotFoundError,
    SchedulerAwayError,
    without_causes,
)
from largek_dask.model import Model
from largek_dask.plots.cards import card, in_notebook, notebook
from largek_dask.plots.plot_collection import Plot, plot_of
from largek_dask.service.serialization import error_of, model_of
from largek_dask.service.terminal import Lines, line_of, origin_of

if TYPE_CHECKING:
    from largek_dask.service.client import Service

__all__ = ["Job"]

LEAST_PAUSE, MOST_PAUSE, GROWTH = 0.05, 1.0, 1.5
"""Seconds between questions about a job: of which nothing is new, longer each time."""
STATUS_SECONDS = 1.0
"""Least time between two looks at the status of a job that is being watched."""


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
        """Return what is known of the job now.

        Returns
        -------
        dict
            ``state`` (queued, waiting, running, finished, failed, cancelled), ``reason`` (what it
            waits for: storage, workers, memory, credentials, version), ``note`` (the same as text),
            ``needs`` (storage options to be supplied), what was submitted (of a mixture also
            ``mixture``, its covariances; ``workers_asked``, where it says which ones), ``versions``
            of this package that have computed it, and while and after it runs on this scheduler:
            ``n_rows``, ``step`` (of several starts of ``start``, from 0, of ``starts``), ``cost``
            (of a mixture also ``energy``),
            ``rows_per_second``, ``elapsed`` and ``eta_s`` (seconds), sums over its steps (``rows``,
            ``bytes``, ``retries``, ``rebuilt``, ``evictions``, ``seconds`` by kind),
            ``state_bytes`` and ``cache_bytes`` held now, addresses of its ``workers``,
            ``progress`` of the pass that runs (chunks ``done`` of ``n_chunks``; None where it is
            short), ``sizes`` of clusters, ``last_event`` (time of the last sign, UTC), and in the
            end ``result`` and ``ended`` (when, UTC).
        """
        return self._status()

    def _status(self, within: float | None = None) -> dict[str, Any]:
        found: dict[str, Any] = self._service.ask_again("status", within=within, job_id=self.id)
        return found

    @property
    def state(self) -> str:
        """State of the job: see :meth:`status`."""
        return str(self.status()["state"])

    def done(self) -> bool:
        """Return whether it has ended, successfully or not."""
        return self.state in ENDS

    def events(self, *, follow: bool = True) -> Iterator[dict[str, Any]]:
        """Yield all events so far, then each as it comes, until the job has ended.

        Parameters
        ----------
        follow : bool
            False: only those so far.

        Yields
        ------
        dict
            ``event`` (its kind), ``time`` (UTC), and what its kind adds: see
            ``largek_dask.driver.events``, and queued, running, waiting, labels, interrupted,
            accepted, cancelling, finished, failed, cancelled.
        """
        return (event for event in self._news(follow) if event is not None)

    def _news(self, follow: bool) -> Iterator[dict[str, Any] | None]:
        """Yield all events, and None after each pause in which there was none."""
        epoch: str | None = None
        n, pause = 0, LEAST_PAUSE
        seen: set[int] = set()
        # Another scheduler numbers events from the start, and repeats the earlier ones.
        repeats = False
        while True:
            found = self._service.ask_again("news", job_id=self.id, n=n)
            if found["epoch"] != epoch:
                epoch, repeats = found["epoch"], repeats or n > 0
                if n > 0:
                    n = 0
                    continue
            for event in found["events"]:
                n = event["n"] + 1
                content = hash(json.dumps({**event, "n": 0}, sort_keys=True))
                if not (repeats and content in seen):
                    yield event
                seen.add(content)
            if found["events"]:
                pause = LEAST_PAUSE
                continue
            if found["is_over"] or not follow:
                return
            time.sleep(pause)
            pause = min(GROWTH * pause, MOST_PAUSE)
            yield None

    def watch(self, stream: TextIO | None = None) -> str:
        """Show the job until it has ended: what it has told so far, then what comes.

        In a notebook a card that is updated, elsewhere lines of text. Ctrl-C ends the watching; the
        job goes on.

        Parameters
        ----------
        stream : text stream, optional
            Where to show it; standard output by default, or the notebook.

        Returns
        -------
        str
            How it ended: "finished", "failed" or "cancelled".

        Raises
        ------
        SchedulerAwayError
            The scheduler has been away for longer than the service waits (``away`` of
            :func:`connect`); the job goes on when it is back.
        """
        view, asked_at = JobView(self._status()), time.monotonic()
        is_card = stream is None and in_notebook()
        shown = notebook(view) if is_card else nullcontext(Lines(view, stream))
        try:
            # A scheduler that is away shows in the view; Dask's own log would tear it apart.
            with silence_logging_cmgr(logging.CRITICAL), shown as show:
                for event in self._news(follow=True):
                    if event is not None:
                        view.update(event)
                    if time.monotonic() - asked_at >= STATUS_SECONDS:
                        view.set_status(self._status())
                        asked_at = time.monotonic()
                    show(event)
                view.set_status(self._status())
        except KeyboardInterrupt as error:
            error.add_note(f"Job {self.id} goes on; its cancel() ends it.")
            raise
        return view.state

    def plot(self) -> Plot:
        """Return all events so far as charts: see :class:`Plot`.

        A notebook shows them; ``plot().save("job.html")`` writes a page that can be zoomed,
        ``.png`` and ``.svg`` a picture.
        """
        events = self.events(follow=False)
        return plot_of(self.id, self.status(), events)

    def logs(self) -> list[str]:
        """Return all events so far as lines of text: time (UTC), kind and text.

        Below warnings and errors, indented, is where they come from: the traceback, and the last
        warnings in the log of the process. ``client.get_worker_logs()`` has all lines of workers.
        """
        objective = objective_in(self.status())
        return [
            line
            for event in self.events(follow=False)
            for line in (line_of(event, objective), *origin_of(event))
        ]

    @without_causes
    def wait(self, timeout: float | str | None = None) -> str:
        """Wait until the job has ended; how it did.

        Raises
        ------
        TimeoutError
            It has not, as far as the scheduler could be asked.
        SchedulerAwayError
            The scheduler has been away for longer than the service waits.
        """
        until = None if timeout is None else time.monotonic() + parse_duration(timeout, "timeout")
        pause = LEAST_PAUSE
        while (state := self._state_by(until)) not in ENDS:
            left = pause if until is None else min(pause, until - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"job {self.id} is {state}; it goes on.")
            time.sleep(left)
            pause = min(GROWTH * pause, MOST_PAUSE)
        return state

    def _state_by(self, until: float | None) -> str:
        """Return the state; wait for a scheduler that is away until then (``time.monotonic``)."""
        left = None if until is None else max(0.0, until - time.monotonic())
        try:
            return str(self._status(left)["state"])
        except SchedulerAwayError as error:
            if until is None or time.monotonic() < until:
                raise
            raise TimeoutError(f"job {self.id} cannot be seen: {error}") from None

    @without_causes
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
            raise CancelledJobError(
                f"job {self.id} was cancelled: model() is the best so far, if there is one; "
                "submit(resume=...) goes on."
            )
        status = self.status()
        if state == "failed":
            result = status["result"]
            raise error_of(result["error"], result["message"], result["traceback"])
        return self.model()

    @without_causes
    def model(self) -> Model:
        """Return the best model so far.

        Raises
        ------
        NoModelError
            There is none yet.
        """
        return model_of(self._service.ask_again("model", job_id=self.id))

    def cancel(self) -> None:
        """Ask the job to end; its best model so far stays."""
        self._service.ask_again("cancel", job_id=self.id)

    def supply(self, storage_options: Mapping[str, Any]) -> list[str]:
        """Give values of storage options that were only in memory; the names still missing."""
        found: list[str] = self._service.ask_again(
            "supply", job_id=self.id, secrets=dict(storage_options)
        )
        return found

    def delete(self, *, outputs: bool = False) -> int | None:
        """Delete a job that has ended: its record, checkpoints and events.

        Parameters
        ----------
        outputs : bool
            Whether its model and labels are deleted as well; otherwise they stay where they are.

        Returns
        -------
        int or None
            Bytes of its files; None if it is gone already.

        Raises
        ------
        ParameterError
            It has not ended, or the values of storage options are needed for it.
        """
        try:
            found: int = self._service.ask("delete", job_id=self.id, outputs=bool(outputs))
        except JobNotFoundError:
            return None
        return found

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def _repr_html_(self) -> str:
        view, n = JobView({"id": self.id}), 0
        while found := self._service.ask("news", job_id=self.id, n=n)["events"]:
            view.update_all(found)
            n = found[-1]["n"] + 1
        view.set_status(self._service.ask("status", job_id=self.id))
        return card(view)
