"""One run of one job, in a thread of its own on the scheduler."""

from __future__ import annotations

import contextlib
import logging
import math
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from largek_dask import config
from largek_dask.data.patience import trouble
from largek_dask.data.sources import open_rows
from largek_dask.driver.events import Event, JsonLines, plain
from largek_dask.driver.run import Snapshot
from largek_dask.driver.stopping import StopRules
from largek_dask.driver.storage import Folder
from largek_dask.errors import (
    LargekError,
    LostJobError,
    MissingOptionError,
    NoModelError,
    VersionMismatchError,
    warnings_heard_by,
)
from largek_dask.points import at
from largek_dask.service.credentials import missing, options_of, output_folder, redactor
from largek_dask.service.feed import Feed
from largek_dask.service.fitting import LABELS, fit_into
from largek_dask.service.lease import Contender, Lease, check_job
from largek_dask.service.store import Record, Records, Result, read_result, write_result

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Job", "Keeper", "Runner"]

logger = logging.getLogger(__name__)

Why = Literal["cancel", "shutdown", "lost"]
Reason = Literal["storage", "workers", "credentials", "version"]
"""What a job can wait for."""
LONGEST_TRACEBACK = 1 << 16
WAITS: dict[str, Reason] = {"waiting": "workers", "storage": "storage"}
"""Topics of warnings by which a running fit says that it waits, and for what."""
GOES_ON = ("workers", "retry", "back")
"""Topics of warnings that a fit gives which does not wait."""


class Waiting(NamedTuple):
    """What a job waits for, and what is known of it."""

    reason: Reason
    text: str


class Job:
    """A job as this scheduler knows it.

    Parameters
    ----------
    record : Record
    secrets : mapping
        Values of storage options that are nowhere but in memory.
    tell : callable
        Called with every event.
    is_new : bool
        No other scheduler has ever had it.
    """

    def __init__(
        self,
        record: Record,
        secrets: Mapping[str, Any],
        tell: Callable[[Event], None],
        is_new: bool,
    ) -> None:
        self.record = record
        self.is_kept = True
        """Whether the record is in the store as it is here."""
        self.secrets = dict(secrets)
        self.feed = Feed(record.id, tell, is_new)
        self.running = False
        self.note = ""
        """Who has it, where that is not this scheduler."""
        self.waiting: Waiting | None = None
        self.not_before = 0.0
        """Not to be tried again before this time (``time.monotonic``)."""
        self.tries = 0
        """Attempts in a row that ended in waiting and have not come farther than those before."""
        self.waits_since = 0.0
        """Since the first of them (``time.monotonic``)."""
        self._farthest: tuple[float, ...] = ()
        self.has_run = not is_new
        """What it needs was there once: if that is gone, it is worth waiting for."""
        self.lease: Lease | None = None
        """The last one, which could perhaps not be given back."""
        self.snapshot: Snapshot | None = None
        """The last step, while it runs."""
        self.contender: Contender | None = None
        self._stop = threading.Event()
        self._why: Why | None = None
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        """Nothing slow is done under it."""

    def change(self, keep: Callable[[Record], object], **changes: Any) -> None:
        """Keep the record with other fields, and then take them, one change after the other.

        Raises
        ------
        OutputError
            It could not be kept; nothing has changed.
        """
        with self._writing:
            keep(changed := replace(self.record, **changes))
            with self._lock:
                self.record = replace(self.record, **changes)
                self.is_kept = self.record == changed

    def change_now(self, **changes: Any) -> None:
        """Change fields of the record at once; :meth:`keep` has to follow."""
        with self._lock:
            self.record, self.is_kept = replace(self.record, **changes), False

    def keep(self, keep: Callable[[Record], object]) -> None:
        """Keep the record as it is now, if that has not been done.

        Raises
        ------
        OutputError
            It could not be kept; to be tried again.
        """
        with self._writing:
            while not self.is_kept:
                keep(record := self.record)
                with self._lock:
                    # What has changed meanwhile is written as well.
                    self.is_kept = record is self.record

    def recall(self, folder: Folder) -> None:
        """Take up the events of earlier schedulers, from the file in the job's folder."""
        if not self.feed.is_loaded:
            try:
                known = JsonLines.read(folder)
            except FileNotFoundError:
                known = []
            self.feed.load(known)

    @property
    def state(self) -> str:
        """One of queued, waiting, running, and the states of a result."""
        if self.record.result is not None:
            return self.record.result.state
        if self.reason is not None:
            return "waiting"
        return "running" if self.running else "queued"

    @property
    def reason(self) -> Reason | None:
        """What it waits for, if it does."""
        if self.record.result is not None:
            return None
        if not self.running and self.needs():
            return "credentials"
        waiting = self.waiting
        return None if waiting is None else waiting.reason

    def needs(self) -> list[str]:
        """Storage options that a client has to supply before it can run."""
        return missing(self.record.spec, self.secrets)

    def ask_to_stop(self, why: Why) -> None:
        """End the run at the next chunk; the first reason counts."""
        if self._why is None:
            self._why = why
        self._stop.set()

    def heed(self, event: Event) -> None:
        """Take up what an event of a run tells of whether it waits."""
        kind, topic = event["event"], event.get("topic")
        if kind == "warning" and topic in WAITS:
            self.waiting = Waiting(WAITS[topic], str(event["message"]))
        elif kind in ("started", "step", "labels") or (kind == "warning" and topic in GOES_ON):
            self.has_run = True
            self.waiting = None
        at: tuple[float, ...] = ()
        if kind == "step":
            at = (float(event.get("start", 0)), float(event["step"]))
        elif kind == "labels":
            at = (*self._farthest[:1], math.inf, float(event["rows"]))
        if at > self._farthest:
            # What is only done again is no progress, or a job could try for ever.
            self._farthest, self.tries = at, 0

    def wait_for(self, reason: Reason, text: str) -> float:
        """Put it aside for a while, the longer the more often it has been; seconds so far."""
        now = time.monotonic()
        if not self.tries:
            self.waits_since = now
        pause = float(config.get("service.beat-seconds")) * 2.0**self.tries
        longest = float(config.get("service.retry-seconds"))
        self.not_before = now + min(pause, longest)
        self.tries += 1
        self.waiting = Waiting(reason, text)
        return now - self.waits_since

    def go_on(self) -> None:
        """Forget how often it has been tried: something has been done about what it waits for."""
        self.tries, self.not_before = 0, 0.0

    def begin(self) -> None:
        """Forget what an earlier attempt was stopped for."""
        self._why = None
        self._stop.clear()
        self.running, self.note = True, ""

    @property
    def stopped_for(self) -> Why | None:
        """Why the run was asked to end."""
        return self._why

    def is_stopped(self) -> bool:
        """Whether the run was asked to end."""
        return self._stop.is_set()

    def status(self) -> dict[str, Any]:
        """Everything known, as plain values."""
        record, result = self.record, self.record.result
        about = {
            "id": record.id,
            "name": record.spec.name,
            "state": self.state,
            "reason": self.reason,
            "note": self.note if self.waiting is None else self.waiting.text,
            "needs": self.needs() if result is None else [],
            "owner": record.owner,
            "created": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds"),
            "run": record.run,
            "priority": record.spec.priority,
            "data": record.spec.data,
            "output": record.spec.output,
            "algorithm": record.spec.algorithm.name,
            "n_clusters": record.spec.n_clusters,
            "max_iter": record.spec.max_iter,
            **self.feed.figures(),
        }
        if result is not None:
            about["result"] = result.model_dump(mode="json")
        return about


class Keeper(threading.Thread):
    """Shows again and again that a lease is still held; says once that it is lost."""

    def __init__(self, lease: Lease, lost: Callable[[], None]) -> None:
        super().__init__(name=f"largek-keeper-{lease.token}", daemon=True)
        self._lease = lease
        self._lost = lost
        self._over = threading.Event()

    def run(self) -> None:
        """Until the run is over, or the lease is lost."""
        while not self._over.wait(float(config.get("service.beat-seconds"))):
            try:
                with at("renewal"):
                    self._lease.renew()
            except LostJobError:
                self._lost()
                return
            except Exception as error:
                # The store does not answer: before each write it is looked whether the job has
                # been lost meanwhile, so that going on does no harm. (What a driver says may hold
                # secrets: its words stay here.)
                kind = type(error).__name__
                logger.warning("The lease of %s was not renewed: %s", self._lease.folder.url, kind)

    def stop(self) -> None:
        """End, and let anybody claim the job."""
        self._over.set()
        self.join()
        with contextlib.suppress(LargekError, OSError):
            self._lease.release()


class Runner(threading.Thread):
    """Claims a job, runs it to its end, publishes how it ended.

    Parameters
    ----------
    job : Job
        ``job.begin()`` has been called.
    records : Records
        Where it is kept.
    owner : str
        This scheduler's name, for the claim.
    connect : callable
        Gives the client whose cluster computes, or None for threads of this process.
    done : callable
        Called at the very end, whatever has happened.
    """

    def __init__(
        self,
        job: Job,
        records: Records,
        owner: str,
        connect: Callable[[], Client | None],
        done: Callable[[], None],
    ) -> None:
        super().__init__(name=f"largek-{job.record.id}", daemon=True)
        self._job = job
        self._records = records
        self._owner = owner
        self._connect = connect
        self._done = done
        self._redact: Callable[[Any], Any] = lambda value: value
        self._sinks: list[Callable[[Event], object]] = [self._feed]

    def run(self) -> None:
        """Whatever goes wrong becomes the job's result, unless it may pass."""
        job = self._job
        try:
            options = options_of(job.record.spec, job.secrets)
            self._redact = redactor(options)
            self._attempt(output_folder(job.record.spec, options), options)
        except Exception as error:
            self._put_aside(error)
        finally:
            job.snapshot = None
            job.running = False
            self._done()

    # --- waiting ----------------------------------------------------------------------------------

    def _reason_to_wait(self, error: Exception, was_there: bool = False) -> Reason | None:
        """What is wrong that may pass; None: nothing.

        Parameters
        ----------
        error : Exception
        was_there : bool
            What it is about is known to have been there, also of a job that has not run before.
        """
        has_run = was_there or self._job.has_run
        if isinstance(error, MissingOptionError):
            return "credentials" if has_run else None
        if isinstance(error, VersionMismatchError):
            return "version" if has_run else None
        kind = trouble(error)
        return "storage" if kind == "away" or (kind == "lacking" and has_run) else None

    def _put_aside(self, error: Exception) -> None:
        """Have the job tried again later; one that cannot, or has been for long, ends here.

        Its result is in the scheduler's records alone then: nothing can be published where its
        output would be.
        """
        job = self._job
        # What comes here is about its output, which was written to when it was submitted.
        reason = self._reason_to_wait(error, was_there=True)
        if reason is None:
            self._keep(self._failure(error, 0))
        elif job.record.cancel:
            self._keep(self._cancelled(0))
        else:
            is_new = job.waiting is None or job.waiting.reason != reason
            waited = job.wait_for(reason, self._redact(str(error)))
            if waited > 3600 * float(config.get("service.retry-hours")):
                error.add_note(f"It was tried again for {waited / 3600:.1f} hours.")
                self._keep(self._failure(error, 0))
            elif is_new and job.feed.is_loaded:
                self._emit("waiting", reason=reason, message=str(error))

    def _cancelled(self, token: int, stop_reason: str | None = None) -> Result:
        record = self._job.record
        return Result(job=record.id, run=record.run, token=token, state="cancelled",
                      stop_reason=stop_reason)  # fmt: skip

    # --- telling ----------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        self._job.heed(event)
        self._job.feed(self._redact(event))

    def _emit(self, kind: str, **values: Any) -> None:
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        event = {"event": kind, "time": stamp, "run": self._job.record.run, **values}
        for sink in self._sinks:
            sink(event)

    def _hear(self, message: str, category: type[Warning]) -> None:
        self._emit("warning", topic=category.__name__, message=message)

    # --- one attempt ------------------------------------------------------------------------------

    def _attempt(self, folder: Folder, options: Mapping[str, Any]) -> None:
        job = self._job
        if job.lease is not None:
            # Where nobody else has it, it need not be waited for.
            job.lease.release()
        check_job(folder, job.record.id)
        job.recall(folder)
        standing = read_result(folder, job.record.id, job.record.run)
        if standing is not None:
            # It ended while this scheduler was away, or elsewhere.
            self._keep(standing)
            return
        if job.contender is None:
            patience = float(config.get("service.patience-seconds"))
            gone = self._records.gone
            job.contender = Contender(folder, job.record.id, self._owner, patience, gone)
        with at("claim"):
            lease = job.contender.claim()
        if lease is None:
            self._leave("another scheduler has it, or had it a moment ago")
            return
        job.contender, job.lease = None, lease
        keeper = Keeper(lease, lambda: job.ask_to_stop("lost"))
        keeper.start()
        try:
            self._hold(folder.guarded(lease.check), lease, options)
        except LostJobError:
            job.ask_to_stop("lost")
        finally:
            keeper.stop()
        if job.stopped_for == "lost" and job.record.result is None:
            self._leave("another scheduler has taken it over")

    def _leave(self, why: str) -> None:
        self._job.note, self._job.waiting = why, None
        self._job.not_before = time.monotonic() + float(config.get("service.beat-seconds"))

    def _hold(self, folder: Folder, lease: Lease, options: Mapping[str, Any]) -> None:
        """Everything that needs the lease."""
        try:
            log = JsonLines(folder)
        except Exception as error:
            if self._reason_to_wait(error) is not None:
                raise
            self._publish(folder, self._failure(error, lease.token))
            return
        self._sinks.append(self._writer(log))
        try:
            self._emit("running", token=lease.token, owner=self._owner)
            result = self._ended(folder, lease, options)
            if result is None:
                self._emit("interrupted", reason=self._job.stopped_for)
            else:
                self._publish(folder, result)
        finally:
            self._sinks.pop()
            try:
                log.close()
            except (LargekError, OSError) as error:
                logger.warning("Not all events of %s are in its folder: %s", folder.url, error)

    def _writer(self, log: JsonLines) -> Callable[[Event], None]:
        """Writes events; a job is worth more than its log, so that a failure ends nothing."""
        failed = False

        def write(event: Event) -> None:
            nonlocal failed
            try:
                log(self._redact(event))
            except LostJobError:
                raise
            except Exception as error:
                if not failed:
                    failed = True
                    self._feed({"event": "warning", "topic": "log", "message": str(error)})
                    logger.warning("Events cannot be written to %s: %s", log, error)

        return write

    def _ended(self, folder: Folder, lease: Lease, options: Mapping[str, Any]) -> Result | None:
        """How the run ended; None where it has not, and somebody is to go on with it."""
        job = self._job
        if job.record.cancel:
            return self._cancelled(lease.token)
        try:
            with warnings_heard_by(self._hear):
                return self._fitted(folder, lease, options)
        except LostJobError:
            raise
        except NoModelError as error:
            if error.reason != "cancelled":
                return self._failure(error, lease.token)
            if job.stopped_for != "cancel":
                return None
            return self._cancelled(lease.token, "cancelled")
        except Exception as error:
            if self._reason_to_wait(error) is not None:
                raise
            # Having lost the job may show itself in any way: nothing more is said of it then.
            lease.check()
            return self._failure(error, lease.token)

    def _fitted(self, folder: Folder, lease: Lease, options: Mapping[str, Any]) -> Result | None:
        job, spec = self._job, self._job.record.spec
        rows = open_rows(spec.data, sample_weight=spec.sample_weight, storage_options=dict(options))
        model, fitted = fit_into(
            folder,
            rows,
            algorithm=spec.algorithm.make(),
            n_clusters=spec.n_clusters,
            seed=spec.seed,
            init=spec.init,
            n_init=spec.n_init,
            stop=StopRules(spec.max_iter, spec.tol, spec.max_time),
            empty_clusters=spec.empty_clusters,
            normalize=spec.normalize,
            on_bad_rows=spec.on_bad_rows,
            labels=spec.labels,
            client=self._connect(),
            memory_limit=spec.memory_limit,
            events=list(self._sinks),
            log=False,
            callbacks=(self._remember,),
            cancelled=job.is_stopped,
        )
        if fitted.stop_reason == "cancelled" and job.stopped_for != "cancel":
            return None
        cancelled = fitted.stop_reason == "cancelled"
        return Result(
            job=job.record.id,
            run=job.record.run,
            token=lease.token,
            state="cancelled" if cancelled else "finished",
            digest=model.digest(),
            labels=folder.exists(LABELS),
            n_iter=fitted.n_iter,
            stop_reason=fitted.stop_reason,
            inertia=plain(fitted.inertia),
            seconds=fitted.seconds,
        )

    def _remember(self, snapshot: Snapshot) -> None:
        self._job.snapshot = snapshot

    # --- the end ----------------------------------------------------------------------------------

    def _failure(self, error: Exception, token: int) -> Result:
        text = "".join(traceback.format_exception(error))[-LONGEST_TRACEBACK:]
        record = self._job.record
        # Indented, so that no line of somebody's text passes for a line of the log.
        shown = textwrap.indent(self._redact(text), "    ", lambda line: True)
        logger.warning("Job %s failed:\n%s", record.id, shown)
        return Result(
            job=record.id,
            run=record.run,
            token=token,
            state="failed",
            error=type(error).__name__,
            message=self._redact(str(error))[:LONGEST_TRACEBACK],
            traceback=self._redact(text),
        )

    def _publish(self, folder: Folder, result: Result) -> None:
        """Say where the output is how it ended; what was said before stands."""
        try:
            with at("publish"):
                standing = write_result(folder, result)
        except LostJobError:
            raise
        except Exception as error:
            if result.state == "finished" and self._reason_to_wait(error) is not None:
                raise
            is_told = result.state in ("failed", "cancelled")
            self._keep(result if is_told else self._failure(error, result.token))
            return
        self._keep(standing)

    def _keep(self, result: Result) -> None:
        """Note in the scheduler's own records how it ended."""
        job = self._job
        # From here on the model is the one that was written.
        job.snapshot = None
        job.change_now(result=result)
        try:
            job.keep(self._records.update)
        except Exception as error:
            # It is tried again; a scheduler that comes back finds the result where the output is.
            kind = type(error).__name__
            logger.warning("The record of %s cannot be written: %s", job.record.id, kind)
        shown = result.model_dump(mode="json", exclude={"format", "job", "run", "traceback"})
        self._emit(shown.pop("state"), **shown)
