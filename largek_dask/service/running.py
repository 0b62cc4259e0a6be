"""One run of one job, in a thread of its own on the scheduler."""

from __future__ import annotations

import contextlib
import logging
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from largek_dask import config
from largek_dask.data.sources import open_rows
from largek_dask.driver.events import Event, JsonLines, plain
from largek_dask.driver.run import Snapshot
from largek_dask.driver.stopping import StopRules
from largek_dask.driver.storage import Folder
from largek_dask.errors import LargekError, LostJobError, NoModelError, warnings_heard_by
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
LONGEST_TRACEBACK = 1 << 16
MOST_UNREACHABLE = 20
"""Attempts, a beat apart, to reach a job's output before the job fails."""


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
        """Why it waits."""
        self.not_before = 0.0
        """Not to be tried again before this time (``time.monotonic``)."""
        self.unreachable = 0
        """Attempts in a row in which its output could not be reached."""
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
        """One of queued, waiting-for-credentials, running, and the states of a result."""
        if self.record.result is not None:
            return self.record.result.state
        if self.running:
            return "running"
        return "waiting-for-credentials" if self.needs() else "queued"

    def needs(self) -> list[str]:
        """Storage options that a client has to supply before it can run."""
        return missing(self.record.spec, self.secrets)

    def ask_to_stop(self, why: Why) -> None:
        """End the run at the next chunk; the first reason counts."""
        if self._why is None:
            self._why = why
        self._stop.set()

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
            "note": self.note,
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
        """Whatever goes wrong becomes the job's result."""
        job = self._job
        try:
            options = options_of(job.record.spec, job.secrets)
            self._redact = redactor(options)
            self._attempt(output_folder(job.record.spec, options), options)
        except Exception as error:
            job.unreachable += 1
            if isinstance(error, OSError) and job.unreachable < MOST_UNREACHABLE:
                # A network, a file server: what it holds is worth waiting for.
                self._wait(self._redact(f"its output cannot be reached: {error}"))
            else:
                # Without a claim nothing can be published where the output would be.
                self._keep(self._failure(error, 0))
        finally:
            job.snapshot = None
            job.running = False
            self._done()

    # --- telling ----------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
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
            self._wait("another scheduler has it, or had it a moment ago")
            return
        job.contender, job.unreachable = None, 0
        keeper = Keeper(lease, lambda: job.ask_to_stop("lost"))
        keeper.start()
        try:
            self._hold(folder.guarded(lease.check), lease, options)
        except LostJobError:
            job.ask_to_stop("lost")
        finally:
            keeper.stop()
        if job.stopped_for == "lost" and job.record.result is None:
            self._wait("another scheduler has taken it over")

    def _wait(self, why: str) -> None:
        self._job.note = why
        self._job.not_before = time.monotonic() + float(config.get("service.beat-seconds"))

    def _hold(self, folder: Folder, lease: Lease, options: Mapping[str, Any]) -> None:
        """Everything that needs the lease."""
        try:
            log = JsonLines(folder)
        except Exception as error:
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
            return Result(job=job.record.id, run=job.record.run, token=lease.token,
                          state="cancelled")  # fmt: skip
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
            return Result(job=job.record.id, run=job.record.run, token=lease.token,
                          state="cancelled", stop_reason="cancelled")  # fmt: skip
        except Exception as error:
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
            self._keep(result if result.state == "failed" else self._failure(error, result.token))
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
