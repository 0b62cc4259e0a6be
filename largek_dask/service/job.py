"""Control and watch a job from the client."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from distributed.utils import silence_logging_cmgr

from largek_dask.algorithms.objective import INERTIA, Objective, objective_in, value_in
from largek_dask.driver.events import Event, is_number, step_words
from largek_dask.driver.formatting import human_seconds, printable
from largek_dask.driver.job_view import JobView
from largek_dask.driver.stopping import ENDS, parse_duration
from largek_dask.errors import (
    CancelledJobError,
    JobNotFoundError,
    SchedulerAwayError,
    without_causes,
)
from largek_dask.model import Model
from largek_dask.plots.job_text import (
    card,
    compiling_text,
    facts,
    figure,
    figures_in,
    precise,
    whole,
)
from largek_dask.plots.plot_collection import Plot, plot_of
from largek_dask.service.serialization import error_of, model_of

if TYPE_CHECKING:
    from largek_dask.service.client import Service

LEAST_PAUSE, MOST_PAUSE, GROWTH = 0.05, 1.0, 1.5
"""Minimum and maximum interval between polls of a job, in seconds, and growth factor per poll
without new events."""
STATUS_SECONDS = 1.0
"""Minimum interval between status requests for a watched job, in seconds."""
STEP_SECONDS = 10.0
"""Minimum interval between printed steps, in seconds."""
QUIET = ("step", "sizes")
"""Kinds of frequent events, which are not all printed."""


class Job:
    """A job on a scheduler, returned by :meth:`Service.submit` and :meth:`Service.job`.

    Attributes
    ----------
    id : str
    """

    def __init__(self, service: Service, job_id: str) -> None:
        self._service = service
        self.id = job_id

    def status(self) -> dict[str, Any]:
        """Return the current status of the job.

        Returns
        -------
        dict
            These fields are always present: ``state`` (queued, waiting, running, finished, failed
            or cancelled), ``reason`` for waiting (storage, workers, memory, credentials or
            version), ``note`` (the reason as text), ``needs`` (storage options to supply), the
            submitted fields (``mixture`` only for a mixture; ``workers_asked`` only if workers were
            selected), and ``versions`` of this package that have computed the job.

            Further fields are present once the job has run on this scheduler: ``n_rows``; ``step``;
            with several starts, ``start`` (from 0) and ``starts``; ``cost``; for a mixture,
            ``energy``; ``rows_per_second``; ``elapsed`` and ``eta_s`` in seconds; the sums over all
            steps ``rows``, ``bytes``, ``retries``, ``rebuilt``, ``evictions`` and ``seconds`` by
            kind; the current ``state_bytes`` and ``cache_bytes``; the addresses of ``workers``; the
            ``progress`` of the pass (chunks ``done`` of ``n_chunks``; None in a short pass); the
            cluster ``sizes``; and ``last_event``, the time of the last event (UTC).

            After the end of the job: ``result``, and the end time ``ended`` (UTC).
        """
        return self._status()

    def _status(self, within: float | None = None) -> dict[str, Any]:
        found: dict[str, Any] = self._service.ask_with_retry(
            "status", within=within, job_id=self.id
        )
        return found

    @property
    def state(self) -> str:
        """State of the job, as in :meth:`status`."""
        return str(self.status()["state"])

    def done(self) -> bool:
        """Return whether the job has ended, successfully or not."""
        return self.state in ENDS

    def events(self, *, follow: bool = True) -> Iterator[dict[str, Any]]:
        """Yield all events so far, then new events until the job has ended.

        Parameters
        ----------
        follow : bool
            False to yield only the events so far.

        Yields
        ------
        dict
            An event: ``event`` (its kind), ``time`` (UTC), and the fields of this kind. The kinds
            are those of ``largek_dask.driver.events``, and queued, running, waiting, labels,
            interrupted, cancelling, finished, failed and cancelled.
        """
        return (event for event in self._news(follow) if event is not None)

    def _news(self, follow: bool) -> Iterator[dict[str, Any] | None]:
        """Yield all events, and None after each pause without an event."""
        epoch: str | None = None
        n, pause = 0, LEAST_PAUSE
        seen: set[int] = set()
        # A new scheduler renumbers events from 0, so skip events that were already yielded.
        while True:
            found = self._service.ask_with_retry("news", job_id=self.id, n=n)
            if found["epoch"] != epoch:
                epoch = found["epoch"]
                if n > 0:
                    n = 0
                    continue
            for event in found["events"]:
                n = event["n"] + 1
                content = hash(json.dumps({**event, "n": 0}, sort_keys=True))
                if content not in seen:
                    seen.add(content)
                    yield event
            if found["events"]:
                pause = LEAST_PAUSE
                continue
            if found["is_over"] or not follow:
                return
            time.sleep(pause)
            pause = min(GROWTH * pause, MOST_PAUSE)
            yield None

    def watch(self, stream: TextIO | None = None) -> str:
        """Print all events so far, then new events until the job has ended.

        Ctrl-C ends this method but not the job.

        Parameters
        ----------
        stream : text stream, optional
            Standard output by default.

        Returns
        -------
        str
            "finished", "failed" or "cancelled".

        Raises
        ------
        SchedulerAwayError
            The scheduler has been unreachable for longer than ``away`` of :func:`connect`; the job
            continues when the scheduler is back.
        """
        view, asked_at = JobView(self._status()), time.monotonic()
        show = EventPrinter(view, stream)
        try:
            # Hide Dask's log messages, which would interrupt the output.
            with silence_logging_cmgr(logging.CRITICAL):
                for event in self._news(follow=True):
                    if event is not None:
                        view.update(event)
                    if time.monotonic() - asked_at >= STATUS_SECONDS:
                        view.set_status(self._status())
                        asked_at = time.monotonic()
                    show(event)
                view.set_status(self._status())
        except KeyboardInterrupt as error:
            error.add_note(f"Job {self.id} continues; cancel() ends it.")
            raise
        return view.state

    def plot(self) -> Plot:
        """Return charts of all events so far: see :class:`Plot`.

        Notebooks display the charts; use ``plot().figure().savefig("job.png")`` to save them as an
        image.
        """
        return plot_of(self.id, self.status(), self.events(follow=False))

    def logs(self) -> list[str]:
        """Return all events so far as lines with time (UTC), kind and text.

        Each warning or error is followed by indented lines with its traceback and the last warnings
        logged by its process. For complete worker logs, use ``client.get_worker_logs()``.
        """
        objective = objective_in(self.status())
        return [
            line
            for event in self.events(follow=False)
            for line in (line_of(event, objective), *origin_of(event))
        ]

    @without_causes
    def wait(self, timeout: float | str | None = None) -> str:
        """Wait until the job has ended, and return its state.

        Raises
        ------
        TimeoutError
            The job has not ended in time, or the scheduler did not answer; the job continues.
        SchedulerAwayError
            The scheduler has been unreachable for longer than ``away`` of :func:`connect`.
        """
        until = None if timeout is None else time.monotonic() + parse_duration(timeout, "timeout")
        pause = LEAST_PAUSE
        while (state := self._state_by(until)) not in ENDS:
            left = pause if until is None else min(pause, until - time.monotonic())
            if left <= 0:
                raise TimeoutError(
                    f"job {self.id} is still {state} after the timeout; the job continues."
                )
            time.sleep(left)
            pause = min(GROWTH * pause, MOST_PAUSE)
        return state

    def _state_by(self, until: float | None) -> str:
        """Return the state; retry until the monotonic time ``until`` if there is no answer."""
        left = None if until is None else max(0.0, until - time.monotonic())
        try:
            return str(self._status(left)["state"])
        except SchedulerAwayError as error:
            if until is None or time.monotonic() < until:
                raise
            raise TimeoutError(
                f"the scheduler did not send the status of job {self.id} in time: {error}"
            ) from None

    @without_causes
    def result(self, timeout: float | str | None = None) -> Model:
        """Wait for the job's model.

        Raises
        ------
        TimeoutError
            The job has not ended in time, and continues.
        CancelledJobError
            The job was cancelled; :meth:`model` may return the best model so far.
        Exception
            The error that made the job fail, with the tracebacks of scheduler and worker.
        """
        state = self.wait(timeout)
        if state == "cancelled":
            raise CancelledJobError(
                f"job {self.id} was cancelled: use model() for the best model so far, if there is "
                "one, or submit(resume=...) to resume the job."
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
            There is no model yet.
        """
        return model_of(self._service.ask_with_retry("model", job_id=self.id))

    def cancel(self) -> None:
        """Request the job to end; its best model so far is kept."""
        self._service.ask_with_retry("cancel", job_id=self.id)

    def supply(self, storage_options: Mapping[str, Any]) -> list[str]:
        """Supply storage options that are kept in memory only; return the names still missing."""
        found: list[str] = self._service.ask_with_retry(
            "supply", job_id=self.id, secrets=dict(storage_options)
        )
        return found

    def delete(self, *, outputs: bool = False) -> bool:
        """Delete the record, checkpoints and events of a job that has ended.

        Parameters
        ----------
        outputs : bool
            Whether to delete its model, labels and predictions as well.

        Returns
        -------
        bool
            False if the job was already deleted.

        Raises
        ------
        ParameterError
            The job has not ended, or values of storage options are needed to delete it.
        """
        try:
            self._service.ask("delete", job_id=self.id, outputs=bool(outputs))
        except JobNotFoundError:
            return False
        return True

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def _repr_html_(self) -> str:
        return card(JobView(self._service.ask("status", job_id=self.id)))


# --- events as lines of text ---------------------------------------------------------------------


def line_of(event: Event, objective: Objective = INERTIA) -> str:
    """Format an event as one line with time (UTC), kind and text."""
    when = str(event.get("time") or "")[:23].replace("T", " ")
    kind = str(event.get("event"))
    if kind == "step":
        text = step_words(event, objective)
    else:
        text = _TEXTS.get(kind, _fields)(event)
    return printable(f"{when:<23}  {kind:<11} {text}").rstrip()


def origin_of(event: Event) -> list[str]:
    """Return the traceback of an event and the last warnings of its process, as indented lines."""
    found = str(event.get("traceback") or "").splitlines()
    log = event.get("log")
    if isinstance(log, list) and log:
        process = event.get("worker") or event.get("address") or "the scheduler"
        found += [f"last warnings of {process}:", *map(str, log)]
    return [f"    {printable(line)}".rstrip() for text in found for line in text.splitlines()]


def _fields(event: Event) -> str:
    known = ("event", "time", "n", "job")
    values = {name: value for name, value in event.items() if name not in known}
    return ", ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in values.items()
        if is_number(value) or isinstance(value, str)
    )


def _end_line(event: Event) -> str:
    if event.get("error"):
        return f"{event['error']}: {event.get('message')}"
    objective, value = value_in(event)
    texts = [
        f"{event.get('stop_reason')} after {figure(event.get('n_iter'), whole)} steps",
        f"{objective.words} {figure(value, precise)}",
        *(f"{name} {text}" for name, text in figures_in(event)),
        f"digest {event.get('digest')}",
    ]
    return ", ".join(texts)


_TEXTS: dict[str, Callable[[Event], str]] = {
    "waiting": lambda e: f"for {e.get('reason')}: {e.get('message')}",
    "compiling": compiling_text,
    "stopped": lambda e: (
        f"{e.get('reason')} after {figure(e.get('n_iter'), whole)} steps, "
        f"{figure(e.get('elapsed'), human_seconds)}"
    ),
    "warning": lambda e: f"{e.get('message')} ({e.get('topic')})",
    **dict.fromkeys(("finished", "failed", "cancelled"), _end_line),
}


class EventPrinter:
    """Print a job's events as lines, with at most one step per ``STEP_SECONDS``."""

    def __init__(
        self,
        view: JobView,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view, self._clock = view, clock
        self._stream = sys.stdout if stream is None else stream
        self._stepped_at = -STEP_SECONDS
        self._step: Event | None = None
        self._waits = ""

    def __call__(self, event: Event | None) -> None:
        """Print an event; None means a pause without events."""
        kind = None if event is None else event.get("event")
        if kind == "step":
            self._step = event
            if self._clock() - self._stepped_at < STEP_SECONDS:
                return
        if self._step is not None and event is not None:
            self._write(line_of(self._step, self._view.objective))
            self._step, self._stepped_at = None, self._clock()
        if event is not None and kind not in QUIET:
            self._write(line_of(event, self._view.objective))
        waits = "; ".join(text for name, text in facts(self._view) if name == "waits")
        if waits != self._waits and waits:
            self._write(f"{self._view.state}: {waits}")
        self._waits = waits

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()
