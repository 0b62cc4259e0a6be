"""Operations on the jobs of a scheduler: submit, list, cancel, delete."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from largek_dask import config
from largek_dask.driver.checkpoint import check_output_folder
from largek_dask.driver.fit import prepare_fit
from largek_dask.driver.formatting import printable
from largek_dask.driver.job_view import JobView
from largek_dask.driver.plan import FitMemory, fit_memory, space_needed
from largek_dask.driver.stopping import ENDS
from largek_dask.errors import (
    LargekError,
    ModelFormatError,
    NoModelError,
    NotEnoughMemoryError,
    OutputError,
    ParameterError,
)
from largek_dask.model import Model, load_model
from largek_dask.passes.admission import check_workers
from largek_dask.passes.worker_selection import use_selection
from largek_dask.redaction import Redactor
from largek_dask.service.job_state import STATES, JobState
from largek_dask.service.lease import StoreLease, check_job, claimed_for, reserve
from largek_dask.service.queue import (
    Queue,
    SchedulerWorker,
    WorkerPool,
    why_never_fits,
    worker_memory,
)
from largek_dask.service.runner import model_so_far
from largek_dask.service.spec import JobSpec, missing, options_of, output_folder
from largek_dask.service.store import MODEL, Records, checked_id
from largek_dask.version import __version__

if TYPE_CHECKING:
    from distributed import Client

CHANGEABLE = ("max_iter", "tol", "max_time", "workers")
"""Fields that may change when a job is resumed, because steps do not depend on them."""

PREDICTION_BYTES = 24
"""Approximate size of the prediction of a row without its id, before compression."""
MOST_EVENTS = 1_000
READERS = 2
"""Number of threads that read events for the page; a store that hangs can block a thread."""
MOST_NUMBERS = 10_000_000
"""Maximum number of coordinates in a model for a report by the scheduler."""


class Jobs(Queue):
    """The jobs of one scheduler, with the operations that clients can call; these may block.

    ``connect`` returns the client of the cluster that computes, or None to compute in threads of
    this process. ``workers`` returns the workers of the cluster, or None if unknown. ``owner`` is
    the name and location of this scheduler, written into claims. ``scheduler_file`` returns the
    content of ``scheduler.json`` under a claim number.
    """

    def __init__(
        self,
        records: Records,
        connect: Callable[[], Client | None],
        owner: str,
        scheduler_file: Callable[[int], Mapping[str, Any]] | None = None,
        workers: Callable[[], Collection[SchedulerWorker] | None] = lambda: None,
    ) -> None:
        changed = threading.Condition(threading.RLock())
        store_lease = StoreLease(records, owner, changed)
        super().__init__(store_lease, changed, owner, connect, workers, scheduler_file)
        self._readers = ThreadPoolExecutor(READERS, "largek-page-reader")
        self._reading: dict[str, Future[None]] = {}

    def close(self, seconds: float) -> list[str]:
        """Let all jobs write checkpoints and stop, so that a later scheduler can resume them.

        Returns the names of jobs that have not stopped after ``seconds``.
        """
        self._readers.shutdown(wait=False, cancel_futures=True)
        return super().close(seconds)

    def workers_wanted(self, seconds: float) -> int:
        """Return the number of workers needed for steps that take about ``seconds``.

        The number includes workers for running jobs, and for jobs that wait only for workers.
        """
        # Do not lock: this method runs on the scheduler's event loop.
        return sum(_usable_workers(job, seconds) for job in self.jobs())

    # --- operations of clients --------------------------------------------------------------------

    def hello(self) -> dict[str, str]:
        """Wait until this scheduler has loaded its jobs; return its version and store."""
        self.wait_until_ready()
        return {"version": __version__, "store": self._store_lease.records.url}

    def submit(self, document: str, secrets: Mapping[str, Any], owner: str) -> str:
        """Check and store a new job, and return its id; if this fails, nothing is written.

        ``document`` is the JSON of a ``JobSpec``; ``secrets`` are the values of its storage options
        that are kept in memory only.
        """
        spec, secrets = JobSpec.parse(document), dict(secrets)
        if absent := missing(spec, secrets):
            raise ParameterError(
                f"values of these storage_options are missing: {', '.join(absent)}; supply them."
            )
        options, owner = options_of(spec, secrets), printable(owner)[:200]
        self.wait_until_ready()
        try:
            with use_selection(None if spec.workers is None else spec.workers.pick()):
                takes = self.check(spec, options)
            records = self._store_lease.records
            record = records.create(spec, owner, time.time(), takes)
            try:
                # Store the record before the claim, so that a crash leaves no orphaned claim.
                reserve(output_folder(spec, options), record.id, self._owner)
            except BaseException:
                records.remove(record.id)
                raise
        except Exception as error:
            raise _without_secrets(error, Redactor(options)) from None
        job = JobState(record, secrets, True)
        # Emit "queued" before the job can start, so that this is the first event.
        job.emit({"event": "queued", "run": record.run, "owner": owner})
        self.add(job, records)
        return record.id

    def resume(
        self,
        job_id: str,
        changes: Mapping[str, Any],
        secrets: Mapping[str, Any],
        accept_version: bool = False,
    ) -> str:
        """Resume a job that has ended, optionally with other stop rules.

        ``changes`` may contain the fields in ``CHANGEABLE``. With ``accept_version``, this version
        may continue a job that another version computed.
        """
        job = self.find(job_id)
        for name in changes:
            if name not in CHANGEABLE:
                raise ParameterError(
                    f"{name} of a job cannot be changed, only {', '.join(CHANGEABLE)}; submit a "
                    "new job instead."
                )
        with self.exclusively(job, "resumed", "wait until it has ended"):
            job.supply(dict(secrets))
            spec = JobSpec.parse({**job.record.spec.dump(), **changes})
            self._recall(job)
            run, versions = job.record.run + 1, job.record.versions
            job.waiting = None
            job.reset_retries()
            if accept_version and versions[-1:] not in ((), (__version__,)):
                versions = (*versions, __version__)
            job.change(
                self._store_lease.records.update,
                spec=spec,
                run=run,
                versions=versions,
                cancel=False,
                result=None,
                ended=None,
            )
            # The job can start only after this thread releases it.
            job.emit({"event": "queued", "run": run, "owner": job.record.owner})
        return job_id

    def supply(self, job_id: str, secrets: Mapping[str, Any]) -> list[str]:
        """Set storage options of a waiting job; return the names that are still missing."""
        job = self.find(job_id)
        with self.changed:
            job.supply(secrets)
            job.reset_retries()
            self.changed.notify_all()
            return job.needs()

    def status(self, job_id: str) -> dict[str, Any]:
        checked_id(job_id)
        return self.find(job_id).status()

    def listed(
        self,
        state: Collection[str] = STATES,
        older_than: float | None = None,
        limit: int | None = None,
    ) -> list[dict[str, Any]]:
        """List jobs as rows, oldest first.

        If given, ``state`` selects jobs in one of these states, ``older_than`` selects jobs that
        ended at least this many seconds ago, and ``limit`` selects the newest of the remaining
        jobs.
        """
        self.wait_until_ready()
        before = math.inf if older_than is None else time.time() - older_than
        jobs = [
            job
            for job in self.jobs()
            if job.state in state
            and (older_than is None or (job.state in ENDS and job.ended <= before))
        ]
        jobs.sort(key=lambda job: (job.record.created, job.record.id))
        first = 0 if limit is None else max(0, len(jobs) - limit)
        return [job.row() for job in jobs[first:]]

    def events(self, job_id: str, n: int, most: int) -> list[dict[str, Any]]:
        job = self.find(job_id)
        self._recall(job)
        return job.feed.since(n, most)

    def news(self, job_id: str, n: int) -> dict[str, Any]:
        """Return the events that start at number ``n``, and whether more may follow.

        ``epoch`` identifies the period in which this scheduler holds the store. In a new epoch,
        events are numbered from 0 again.
        """
        job = self.find(job_id)
        # The thread of the job may still emit events after the job has ended.
        is_over = job.state in ENDS and not job.running
        events = self.events(job_id, n, MOST_EVENTS)
        return {"epoch": self._store_lease.epoch, "events": events, "is_over": is_over}

    def _recall(self, job: JobState) -> None:
        # If the job waits for storage, requests of viewers must not retry reading the storage.
        if not job.feed.is_loaded and job.reason in (None, "workers", "memory"):
            folder = job.folder()
            is_own = claimed_for(folder) in (None, job.record.id)
            job.load_events(folder) if is_own else job.feed.load([])
            self.unload_feeds([job])

    def cancel(self, job_id: str, who: str | None = None) -> str:
        """Request a job to end, even across a restart of the scheduler; return the job's state.

        ``who`` is the origin of the request recorded in the event; None for requests of clients.
        """
        job = self.find(job_id)
        with self.changed:
            if job.state in ENDS:
                return job.state
            job.change_unsaved(cancel=True)
            # This event reports the request; another event follows at the end of the job.
            origin = {} if who is None else {"who": who}
            job.emit({"event": "cancelling", "run": job.record.run, **origin})
            job.reset_retries()
            if job.running:
                job.ask_to_stop("cancel")
            state = job.state
            self.changed.notify_all()
        # The job is cancelled even if this write fails.
        self.save(job)
        return state

    # --- the page ---------------------------------------------------------------------------------

    def view(self, job_id: str) -> tuple[JobView, str]:
        """Return a copy of a job's view, and a message about missing events, which may be empty.

        After a restart of the scheduler, and for jobs that ended long ago, events are not in
        memory. A thread then loads the events from the job's folder.
        """
        job = self.find(job_id)
        status = job.status()
        # Without its storage options, the folder cannot be reached.
        lack = "" if job.feed.is_loaded or status["needs"] else self._read(job)
        view = job.feed.copy_view()
        view.set_status(status)
        return view, lack

    def _read(self, job: JobState) -> str:
        """Start loading a job's earlier events; return the reason why they are missing."""
        reading = self._reading.get(job.record.id)
        if reading is None:
            self._reading[job.record.id] = self._readers.submit(self._recall, job)
        elif reading.done():
            # Allow the next viewer to start another read.
            del self._reading[job.record.id]
            if (error := reading.exception()) is not None:
                text = job.redact(f"{type(error).__name__}: {error}")
                return f"Earlier events of this job cannot be read: {text}"
        return "Earlier events of this job are being read; charts will follow."

    def report(self, job_id: str) -> str:
        from largek_dask.plots.report import make_report

        model = self.model(job_id)
        if model.n_clusters * model.n_features > MOST_NUMBERS:
            output = printable(self.find(job_id).record.spec.output)
            raise ParameterError(
                f"the model of job {job_id} has more than {MOST_NUMBERS:,} coordinates: make the "
                f"report on your machine with `largek report {output}`."
            )
        return make_report(model).html

    def redactor(self, secrets: Any) -> Redactor:
        return Redactor.joined([Redactor(secrets), *(job.redact for job in self.jobs())])

    def model(self, job_id: str) -> Model:
        """Return the final model of a job or its best model so far, or raise NoModelError."""
        job = self.find(job_id)
        folder = job.folder()
        try:
            check_job(folder, job_id)
        except ParameterError as error:
            raise NoModelError(f"job {job_id} has no model: {error}", "cancelled") from None
        if job.record.result is None and (found := model_so_far(folder, "running")) is not None:
            return found[0]
        try:
            model = load_model(folder.sub(MODEL))
        except ModelFormatError as error:
            # The model is incomplete, or was removed manually or by an interrupted deletion.
            if job.record.result is not None and job.record.result.digest is not None:
                raise ModelFormatError(
                    f"{error} Use submit(resume={job_id!r}) to compute the model again."
                ) from None
            raise NoModelError(
                f"job {job_id} is {job.state} and has no model yet: wait for its first checkpoint.",
                "cancelled",
            ) from error
        result = job.record.result
        if result is not None and result.digest not in (None, model.digest()):
            raise OutputError(
                f"{folder.url}/{MODEL} is not the model that job {job_id} wrote: its digest "
                f"is {model.digest()}, not {result.digest}."
            )
        return model

    # --- checks of a submit -----------------------------------------------------------------------

    def check(self, spec: JobSpec, options: dict[str, Any]) -> FitMemory:
        """Check data, parameters, memory, output and workers; return the memory of the fit."""
        client = self._connect()
        # Do not count missing chunks here: the job counts and reports them.
        rows = spec.open_rows(options, count_missing=False)
        asked = spec.fit_options()
        rows, choice, footprint = prepare_fit(rows, asked, n_threads=None, client=client)
        workers = self._workers()
        takes = fit_memory(rows, spec.n_clusters, footprint)
        memory = worker_memory(spec, takes, None if workers is None else WorkerPool(workers))
        if (why := why_never_fits(memory)) is not None:
            raise NotEnoughMemoryError(
                f"the job can never run on these workers: {why}. Use fewer clusters, a smaller "
                "memory_limit, fewer threads per worker or more memory per worker."
            )
        folder = output_folder(spec, options)
        folder.check_writable()
        if (job_id := claimed_for(folder)) is not None:
            raise OutputError(f"{folder.url} is the output of job {job_id}: choose another output.")
        advice = "Choose another output, or resume its job with submit(resume=id)."
        check_output_folder(folder, advice, may_be_begun=False)
        needed = space_needed(
            rows, spec.n_clusters, footprint, n_init=choice.n_init, labels=spec.labels
        )
        needed += PREDICTION_BYTES * rows.n_rows * spec.has_predictions
        folder.check_space(needed, "model, labels and checkpoints")
        if client is not None:
            check_workers(client, rows, float(config.get("service.check-seconds")))
        return takes


def _usable_workers(job: JobState, seconds: float) -> int:
    asked = job.record.spec.workers
    if job.running:
        worth = job.feed.worth(seconds)
        return worth if asked is None else asked.pick().count(max(worth, asked.min))
    waits = job.shortage is not None and job.reason == "workers"
    return asked.min if waits and asked is not None else 0


def _without_secrets(error: Exception, redact: Callable[[Any], Any]) -> Exception:
    text, redacted = str(error), redact(str(error))
    if redacted == text and not isinstance(error, OSError):
        return error
    kind = type(error) if isinstance(error, LargekError) else OutputError
    try:
        return kind(redacted)
    except TypeError:
        return ParameterError(redacted)
