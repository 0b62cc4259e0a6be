"""Run a job in a thread of the scheduler, and write model and labels into its folder."""

from __future__ import annotations

import contextlib
import json
import logging
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from largek_dask import config
from largek_dask.context import working_for
from largek_dask.data.columns import without_equal_names
from largek_dask.data.storage_errors import trouble
from largek_dask.driver.checkpoint import description_in, scaling_in
from largek_dask.driver.event_log import JsonLines
from largek_dask.driver.events import FORMAT, Event, plain
from largek_dask.driver.fit import FitResult, fit, open_passes
from largek_dask.driver.starts import SavedStart, best_saved, keep_last_checkpoints
from largek_dask.driver.stopping import End
from largek_dask.driver.storage import DamagedError, Folder, is_torn
from largek_dask.errors import (
    CancelledFit,
    LargekError,
    LostJobError,
    MissingOptionError,
    ModelFormatError,
    NoModelError,
    RecoveryWarning,
    VersionMismatchError,
    handle_warnings,
    warn,
    worker_of,
)
from largek_dask.fault_injection import at
from largek_dask.model import Model, load_model
from largek_dask.passes.worker_selection import use_selection
from largek_dask.redaction import hide_in_logs
from largek_dask.service.job_state import JobState, Reason
from largek_dask.service.lease import Claimant, Lease, LeaseRenewer, check_job
from largek_dask.service.process_log import last_warnings
from largek_dask.service.spec import options_of, output_folder
from largek_dask.service.store import (
    LABELS,
    MODEL,
    PREDICTIONS,
    UNFINISHED_LABELS,
    Records,
    Result,
    labels_in,
    predictions_in,
    read_result,
    write_result,
)
from largek_dask.version import __version__

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.data.rows import Rows
    from largek_dask.driver.options import FitOptions

logger = logging.getLogger(__name__)

LONGEST_TRACEBACK = 1 << 16


class Runner(threading.Thread):
    """Thread that claims a job, runs the job to its end, and publishes the result.

    The caller must call ``job.begin()`` first. ``done`` is always called when the thread ends.
    """

    def __init__(
        self,
        job: JobState,
        records: Records,
        owner: str,
        connect: Callable[[], Client | None],
        done: Callable[[], None],
    ) -> None:
        super().__init__(name=f"largek-{job.record.id}", daemon=True)
        self.job = job
        self._records = records
        self._owner = owner
        self._connect = connect
        self._done = done
        self._redact = job.redact
        hide_in_logs(self._redact)
        self._failed_on: str | None = None
        """Address of the worker on which the run failed; None if unknown."""
        self._sinks: list[Callable[[Event], object]] = [self._feed]

    def run(self) -> None:
        """Run the job; after an error, postpone or end it."""
        job = self.job
        with working_for(job.record.id):
            try:
                options = options_of(job.record.spec, job.secrets)
                with handle_warnings(self._on_warning):
                    self._attempt(output_folder(job.record.spec, options), options)
            except Exception as error:
                self._postpone(error)
            finally:
                job.running = False
                self._done()

    # --- temporary errors -------------------------------------------------------------------------

    def _reason_to_wait(self, error: Exception, was_there: bool = False) -> Reason | None:
        """Return the reason for which to wait after an error; None if waiting would not help.

        ``was_there`` is True if a file that is missing now is known to have existed.
        """
        has_run = was_there or self.job.has_run
        if isinstance(error, MissingOptionError):
            return "credentials" if has_run else None
        if isinstance(error, VersionMismatchError):
            return "version" if has_run else None
        kind = trouble(error)
        return "storage" if kind == "away" or (kind == "lacking" and has_run) else None

    def _postpone(self, error: Exception) -> None:
        """Postpone the job, or end the job if it cannot succeed or has waited too long.

        If the job ends, only the scheduler's record contains the result, because the output cannot
        be written.
        """
        job = self.job
        # The output existed when the job was submitted, so wait if it is missing.
        reason = self._reason_to_wait(error, was_there=True)
        if reason is None:
            self._keep(self._failure(error, 0))
        elif job.record.cancel:
            self._keep(self._result(0, "cancelled"))
        else:
            is_new = job.waiting is None or job.waiting.reason != reason
            waited = job.postpone(reason, self._redact(str(error)))
            if waited > 3600 * float(config.get("service.retry-hours")):
                error.add_note(f"It was retried for {waited / 3600:.1f} hours.")
                self._keep(self._failure(error, 0))
            elif is_new and job.feed.is_loaded:
                self._emit("waiting", reason=reason, message=str(error))

    def _result(self, token: int, state: End, model: Model | None = None, **about: Any) -> Result:
        record = self.job.record
        if model is not None:
            about |= {"digest": model.digest(), "figures": plain(model.fit_figures()) or None}
        return Result(job=record.id, run=record.run, token=token, state=state, **about)

    # --- events -----------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        redacted = self._redact(_with_log(event))
        self.job.update_waiting(redacted)
        self.job.feed(redacted)

    def _emit(self, kind: str, **values: Any) -> None:
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        event = {"event": kind, "time": stamp, "run": self.job.record.run, **values}
        for sink in self._sinks:
            sink(event)

    def _on_warning(self, message: str, category: type[Warning]) -> None:
        self._emit("warning", topic=category.__name__, message=message)

    # --- one attempt ------------------------------------------------------------------------------

    def _attempt(self, folder: Folder, options: Mapping[str, Any]) -> None:
        job = self.job
        if job.lease is not None:
            # Release the lease of an earlier attempt, to avoid waiting for its timeout.
            job.lease.release()
        check_job(folder, job.record.id)
        job.load_events(folder)
        result = read_result(folder, job.record.id, job.record.run)
        if result is not None:
            # The job has ended on another scheduler, or before this scheduler could record it.
            self._keep(result)
            return
        if job.claimant is None:
            patience = float(config.get("service.patience-seconds"))
            former_owners = self._records.former_owners
            job.claimant = Claimant(folder, job.record.id, self._owner, patience, former_owners)
        with at("claim"):
            lease = job.claimant.claim()
        if lease is None:
            self._leave("another scheduler holds this job, or held it a moment ago")
            return
        job.claimant, job.lease = None, lease
        renewer = LeaseRenewer(lease, lambda: job.ask_to_stop("lost"))
        renewer.start()
        try:
            self._run_under_lease(folder.guarded(lease.check), lease, options)
        except LostJobError:
            job.ask_to_stop("lost")
        finally:
            renewer.stop()
        if job.stopped_for == "lost" and job.record.result is None:
            self._leave("another scheduler has taken over this job")

    def _leave(self, why: str) -> None:
        self.job.note, self.job.waiting = why, None
        self.job.not_before = time.monotonic() + float(config.get("service.beat-seconds"))

    def _run_under_lease(self, folder: Folder, lease: Lease, options: Mapping[str, Any]) -> None:
        try:
            log = JsonLines(folder)
        except Exception as error:
            if self._reason_to_wait(error) is not None:
                raise
            self._publish(folder, self._failure(error, lease.token))
            return
        self._sinks.append(self._writer(log))
        try:
            if not self.job.record.versions:
                self.job.change_unsaved(versions=(__version__,))
                self.job.save(self._records.update)
            taken = {} if lease.taken_from is None else {"taken_from": lease.taken_from}
            about = {"format": FORMAT, "version": __version__, "token": lease.token, **taken}
            self._emit("running", owner=self._owner, **about)
            result = self._outcome(folder, lease, options)
            if result is None:
                self._emit("interrupted", reason=self.job.stopped_for)
            else:
                keep_last_checkpoints(folder)
                self._publish(folder, result)
        finally:
            self._sinks.pop()
            try:
                log.close()
            except (LargekError, OSError) as error:
                text = self._redact(str(error))
                logger.warning("Not all events could be written to %s: %s", folder.url, text)

    def _writer(self, log: JsonLines) -> Callable[[Event], None]:
        """Return a sink that writes events; write errors are logged and do not end the job."""
        failed = False

        def write(event: Event) -> None:
            nonlocal failed
            # First write events that were emitted while no run was writing.
            for each in (*self.job.unwritten(), event):
                try:
                    log(self._redact(_with_log(each)))
                except LostJobError:
                    raise
                except Exception as error:
                    if not failed:
                        failed = True
                        text = self._redact(str(error))
                        self._feed({"event": "warning", "topic": "log", "message": text})
                        logger.warning("Events cannot be written to %s: %s", log, text)

        return write

    def _outcome(self, folder: Folder, lease: Lease, options: Mapping[str, Any]) -> Result | None:
        """Run the fit and return its result; None if the fit continues later."""
        job = self.job
        if job.record.cancel:
            return self._result_of_checkpoint(folder, lease)
        if (versions := job.record.versions)[-1] != __version__:
            error = VersionMismatchError(
                f"the job was computed by largek_dask {versions[-1]}, and this is {__version__}: "
                "results may differ slightly if the job continues; to accept this, use "
                "submit(resume=id, accept_version=True)"
            )
            return self._failure(error, lease.token)
        try:
            return self._fit(folder, lease, options)
        except LostJobError:
            raise
        except NoModelError as error:
            if error.reason == "max_time":
                # An earlier run may have written a checkpoint with a model.
                found = self._result_of_checkpoint(folder, lease, "finished", error.reason)
                return self._failure(error, lease.token) if found.digest is None else found
            return (
                self._result_of_checkpoint(folder, lease) if job.stopped_for == "cancel" else None
            )
        except Exception as error:
            if self._reason_to_wait(error) is not None:
                if job.stopped_for == "cancel":
                    return self._result_of_checkpoint(folder, lease)
                raise
            # Do not report an error that is due to the loss of the lease.
            lease.check()
            return self._failure(error, lease.token)

    def _result_of_checkpoint(
        self, folder: Folder, lease: Lease, state: End = "cancelled", stop_reason: str = "cancelled"
    ) -> Result:
        """Return a result with the model of the last checkpoint, or None without a checkpoint."""
        result = self._result(lease.token, state, stop_reason=stop_reason)
        try:
            found = model_of_checkpoint(folder, stop_reason)
        except LostJobError:
            raise
        except Exception as error:
            if self._reason_to_wait(error) is not None:
                raise
            message = f"the last checkpoint cannot be converted to a model: {error}"
            self._on_warning(message, RecoveryWarning)
            return result
        if found is None:
            return result
        model, saved = found
        return self._result(
            lease.token,
            state,
            model,
            stop_reason=stop_reason,
            labels=labels_in(folder),
            predictions=predictions_in(folder),
            n_iter=saved.n_iter,
            seconds=saved.seconds,
            **saved.objective.describe(value=plain(saved.value)),
        )

    def _fit(self, folder: Folder, lease: Lease, options: Mapping[str, Any]) -> Result | None:
        job, spec = self.job, self.job.record.spec
        rows = without_equal_names(spec.open_rows(options))
        pick = None if spec.workers is None else spec.workers.pick()
        with use_selection(
            pick, 0 if job.reserved_memory is None else job.reserved_memory.row_state
        ):
            model, fitted = fit_into(
                folder,
                rows,
                spec.fit_options(),
                labels=spec.labels,
                client=self._connect(),
                events=list(self._sinks),
                log=False,
                cancelled=job.is_stopped,
                suspended=lambda: job.stopped_for == "shutdown",
            )
            reason: str = fitted.stop_reason
            if spec.has_predictions and reason != "cancelled" and not predictions_in(folder):
                try:
                    self._predict(folder, rows, model)
                except CancelledFit:
                    reason = "cancelled"
        if reason == "cancelled" and job.stopped_for != "cancel":
            return None
        return self._result(
            lease.token,
            "cancelled" if reason == "cancelled" else "finished",
            model,
            stop_reason=reason,
            labels=folder.exists(LABELS),
            predictions=predictions_in(folder),
            n_iter=fitted.n_iter,
            seconds=fitted.seconds,
            **fitted.objective.describe(value=plain(fitted.value)),
        )

    def _predict(self, folder: Folder, rows: Rows, model: Model) -> None:
        spec, emit = self.job.record.spec, self._emit
        folder.remove(PREDICTIONS)
        table = model._table(folder.sub(PREDICTIONS), spec.include, spec.partition_by)
        with open_passes(
            model._open(rows),
            client=self._connect(),
            memory_limit=spec.fit_options().memory_bytes,
            normalize=model.normalize,
            on_bad_rows=model.on_bad_rows,
            cancelled=self.job.is_stopped,
            log=lambda topic, text, **about: emit("warning", topic=topic, message=text, **about),
            on_event=emit,
        ) as passes:
            table.write(passes, lambda n: emit("labels", rows=n, n_rows=rows.n_rows))

    # --- the end ----------------------------------------------------------------------------------

    def _failure(self, error: Exception, token: int) -> Result:
        text = "".join(traceback.format_exception(error))[-LONGEST_TRACEBACK:]
        record, self._failed_on = self.job.record, worker_of(error)
        # Indent the text, so that it cannot forge a line of the log.
        shown = textwrap.indent(self._redact(text), "    ", lambda line: True)
        logger.warning("Job %s failed:\n%s", record.id, shown)
        return self._result(
            token,
            "failed",
            error=type(error).__name__,
            message=self._redact(str(error))[:LONGEST_TRACEBACK],
            traceback=self._redact(text),
        )

    def _publish(self, folder: Folder, result: Result) -> None:
        """Write the result to the output folder, unless the folder already contains a result."""
        try:
            with at("publish"):
                result = write_result(folder, result)
        except LostJobError:
            raise
        except Exception as error:
            if result.state == "finished":
                if self._reason_to_wait(error) is not None:
                    raise
                result = self._failure(error, result.token)
        self._keep(result)

    def _keep(self, result: Result) -> None:
        job = self.job
        job.change_unsaved(result=result, ended=time.time())
        job.save(self._records.update)
        shown = result.model_dump(mode="json", exclude={"format", "job", "run"})
        if result.state != "failed":
            del shown["traceback"]
        elif self._failed_on is not None:
            shown["worker"] = self._failed_on
        self._emit(shown.pop("state"), **shown)


def _with_log(event: Event) -> Event:
    """Add the last warnings of the process to an event if it is a warning or an error."""
    kind, worker = event["event"], event.get("worker")
    if kind == "worker" and event.get("change") == "left":
        worker = event["address"]
    elif kind != "failed" and (kind != "warning" or worker is None):
        return event
    lines = last_warnings(worker)
    return {**event, "log": lines} if lines else event


def model_in(folder: Folder) -> Model | None:
    """Return the model in a job's folder; None if there is no complete model."""
    try:
        return load_model(folder.sub(MODEL))
    except ModelFormatError:
        return None


def _remove_unusable_labels(folder: Folder) -> None:
    """Remove labels that no fit can continue: torn labels, and incomplete labels of a model."""
    torn = of_model = False
    try:
        record = folder.read(UNFINISHED_LABELS)
        torn = is_torn(record)
        # Ignore other defects, because the fit that continues the labels reports them.
        with contextlib.suppress(RecursionError, KeyError, TypeError):
            of_model = not torn and "model" in json.loads(record)["owner"]
    except FileNotFoundError:
        torn = folder.exists(LABELS)
    except DamagedError:
        torn = True
    if torn:
        warn(
            f"{folder.url}/{LABELS} is incomplete, as after a power failure: the labels are "
            "written again.",
            RecoveryWarning,
        )
    if torn or of_model:
        for name in (LABELS, UNFINISHED_LABELS):
            folder.remove(name)


def fit_into(
    folder: Folder,
    rows: Rows,
    options: FitOptions,
    *,
    labels: bool,
    client: Client | None = None,
    n_threads: int | None = None,
    **more: Any,
) -> tuple[Model, FitResult]:
    """Fit, and write model and labels, continuing an earlier run in the same folder.

    Labels of an earlier run are kept until they are known to be outdated. After a cancellation, no
    labels are written. For the other arguments and errors, see :func:`largek_dask.driver.fit.fit`.
    """
    before = model_in(folder)
    labelled = labels_in(folder)
    if not labelled:
        _remove_unusable_labels(folder)
    out = folder.sub(LABELS)
    result = fit(
        rows,
        options,
        client=client,
        n_threads=n_threads,
        checkpoint=folder,
        labels=out if labels and not labelled else False,
        **more,
    )
    model = Model.of(result)
    changed = before is None or before.digest() != model.digest()
    # Remove labels first, because a folder must never contain labels of another model.
    if changed:
        folder.remove(PREDICTIONS)
    if labelled and changed:
        folder.remove(LABELS)
        if labels and result.stop_reason != "cancelled":
            model.predict(rows, out=out, client=client, n_threads=n_threads)
    if changed or (before is not None and before.provenance.get("n_iter") != result.n_iter):
        _save(model, folder, before)
    return model, result


def model_of_checkpoint(folder: Folder, stop_reason: str) -> tuple[Model, SavedStart] | None:
    """Write the model of the last checkpoint; call this if the fit will not continue.

    Returns the model and the checkpoint; None without a checkpoint. Rows and workers are not
    needed. The final model of an earlier run is kept if it has at least the same number of steps.
    ``stop_reason`` is recorded in the model's provenance.
    """
    found = model_so_far(folder, stop_reason)
    if found is None:
        return None
    model, saved = found
    before = model_in(folder)
    if before is not None:
        known = before.provenance
        is_as_far = known.get("start", 0) == saved.stream and known.get("n_iter", 0) >= saved.n_iter
        if is_as_far and known.get("stop_reason") != "cancelled":
            return before, saved
    changed = before is None or before.digest() != model.digest()
    if changed:
        folder.remove(PREDICTIONS)
    if changed and labels_in(folder):
        folder.remove(LABELS)
    if changed or (before is not None and before.provenance.get("stop_reason") != stop_reason):
        _save(model, folder, before)
    return model, saved


def model_so_far(folder: Folder, stop_reason: str | None = None) -> tuple[Model, SavedStart] | None:
    """Return the model of the last checkpoint, and this checkpoint; None without a checkpoint.

    Unlike :func:`model_of_checkpoint`, this function writes nothing.
    """
    about = description_in(folder)
    saved = best_saved(folder)
    if about is None or saved is None:
        return None
    data = dict(about["data"])
    names, _ = data.pop("feature_names", None), data.pop("stamps", None)
    provenance = {
        "parameters": about["job"],
        "data": data,
        "versions": about["versions"],
        "n_iter": saved.n_iter,
        **({} if stop_reason is None else {"stop_reason": stop_reason}),
        saved.objective.name: saved.value,
        "start": saved.stream,
        "seconds": saved.seconds,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    asked = about["job"]
    model = Model(  # type: ignore[abstract]
        saved.arrays,
        asked["normalize"],
        asked["on_bad_rows"],
        saved.history,
        provenance,
        None if names is None else tuple(names),
        scaling_in(about),
    )
    return model, saved


def _save(model: Model, folder: Folder, before: Model | None) -> None:
    if before is None:
        # Remove an incomplete model that a killed run of this job may have left.
        folder.remove(MODEL)
    model.save(folder.sub(MODEL), overwrite=True)
