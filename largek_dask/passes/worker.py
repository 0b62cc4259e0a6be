"""Code on a Dask worker: a plugin with one engine per job, and the tasks that use it."""

from __future__ import annotations

import contextlib
import logging
import math
import pickle
import platform
import shutil
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numba
from distributed import get_worker
from distributed.core import clean_exception, error_message
from distributed.diagnostics.plugin import WorkerPlugin

from largek_dask.context import working_for
from largek_dask.data.rows import Rows
from largek_dask.errors import CancelledFit, DataError
from largek_dask.passes.broadcast import BroadcastRelay
from largek_dask.passes.engine import Engine, Ticket
from largek_dask.passes.local import state_budget
from largek_dask.passes.placement import room_of, unranges
from largek_dask.passes.rowstate import process_memory
from largek_dask.passes.spec import PassSpec, total_of
from largek_dask.passes.telemetry import PassReport, nbytes
from largek_dask.redaction import Redactor, hide_in_logs
from largek_dask.version import __version__

logger = logging.getLogger(__name__)

LEAST_SCRATCH = 256_000_000
"""Minimum free bytes in a worker's temporary folder; below this, the worker logs a warning."""
IDLE_SECONDS = 600.0
"""Idle time in seconds after which a job is dropped when another job begins."""


@dataclass(frozen=True, slots=True)
class WorkSpec:
    """Description of a job, sent to each worker once."""

    id: str
    rows: bytes = field(repr=False)
    """Pickled ``Rows``, which contain the location of the data but no data. They are bytes because
    a location may contain secrets and Dask logs the arguments of calls."""
    memory_limit: int | None
    cache_bytes: int
    service_job: str | None = None
    """Id of the service's job that this job belongs to, if any."""
    declared: int = 0
    """Bytes of row state that are reserved for this job."""


@dataclass(frozen=True, slots=True)
class Payload:
    """Description of a pass, broadcast to all workers."""

    job: str
    number: int
    """Number of the pass in the job; a share of a later pass ends the shares of earlier passes."""
    spec: PassSpec


@dataclass(frozen=True, slots=True)
class Share:
    """Chunks of a pass that one worker computes."""

    id: str
    owner: str
    """Address of the worker that owns the chunks."""
    parts: tuple[tuple[int, int], ...]
    park_bytes: int
    """Size in bytes above which a total stays on the worker until it is collected."""
    slice_seconds: float
    again: int = 0
    """Number of chunks that are retried after a failure."""


@dataclass(frozen=True, slots=True)
class PackedError:
    """An error returned to the driver as a value.

    Dask logs errors raised by tasks, and errors of file system drivers may contain secrets.
    """

    error: bytes = field(repr=False)
    traceback: Any = field(repr=False)

    @classmethod
    def of(cls, error: Exception) -> PackedError:
        """Pack the error that is being handled."""
        message = error_message(error)
        traceback = message["traceback"]
        return cls(message["exception"].data, None if traceback is None else traceback.data)

    def unpacked(self) -> Exception:
        """Return the error, with its traceback."""
        _, error, traceback = clean_exception(exception=self.error, traceback=self.traceback)
        return error.with_traceback(traceback)  # type: ignore[no-any-return]


@dataclass(slots=True)
class ShareResult:
    """Result of a share."""

    worker: str
    share: str
    finished: bool = False
    unknown: bool = False
    """True if the worker does not know the job."""
    needs_replay: bool = False
    parked: bool = False
    error: PackedError | None = None
    total: Any = None
    size: int = 0
    """Bytes of the total."""
    done: int = 0
    """Number of finished chunks of the share."""
    report: PassReport = field(default_factory=PassReport)


@dataclass(frozen=True, slots=True)
class Sealed:
    """Wrapper of a value that is scattered as one object; Dask would unpack a list or tuple."""

    value: Any


class LostTotalError(RuntimeError):
    """A worker does not have a requested total; the share is computed again."""


class _Job:
    """One job's engine on this worker, and its shares of the current pass."""

    def __init__(self, engine: Engine, spec: WorkSpec, state_limit: int) -> None:
        self.engine = engine
        self.service_job = spec.service_job
        options = getattr(engine.rows, "storage_options", None)
        # Keep a reference as long as the job exists, because the log keeps none.
        self.redact = Redactor(options)
        hide_in_logs(self.redact)
        self.state_limit = state_limit
        """Bytes of row state that the job may keep if no other job is on this worker."""
        self.cache_limit = spec.cache_bytes
        self.lock = threading.Lock()
        self.tickets: dict[str, Ticket] = {}
        self.parked: dict[str, Any] = {}
        self.number = 0
        self.wanted: float = 0
        """Number of the latest known pass; infinity when the job is over."""
        self.used = time.monotonic()

    def begin(self, number: int) -> None:
        """Begin a pass by forgetting the shares of earlier passes."""
        if number != self.number:
            self.number = number
            self.tickets.clear()
            self.parked.clear()
        self.used = time.monotonic()

    def end(self) -> None:
        """Stop running shares, end the threads and drop all state."""
        self.wanted = math.inf
        self.engine.close()


class WorkPlugin(WorkerPlugin):  # type: ignore[misc]  # distributed has no types
    """The jobs of one worker; the first ``ClusterPasses`` of a cluster registers this plugin."""

    name = f"largek-passes-{__version__}"
    idempotent = True

    def setup(self, worker: Any) -> None:
        """Set up the plugin on a worker, even if the worker joins later."""
        self.worker = worker
        self.jobs: dict[str, _Job] = {}
        self.lock = threading.Lock()
        self.worked = PassReport()
        """Cost of all slices so far, including slices of finished jobs."""
        BroadcastRelay(worker)

    def teardown(self, worker: Any) -> None:
        """End all jobs."""
        with self.lock:
            jobs = list(self.jobs.values())
            self.jobs.clear()
        for job in jobs:
            job.end()

    def admit(self, spec: WorkSpec) -> None:
        """Create the engine of a job unless it exists."""
        rows: Rows = pickle.loads(spec.rows)
        memory = self.worker.memory_manager.memory_limit or process_memory()
        budget = state_budget(spec.memory_limit, memory)
        with self.lock:
            if spec.id in self.jobs:
                return
            now = time.monotonic()
            idle = [k for k, job in self.jobs.items() if now - job.used > IDLE_SECONDS]
            dropped = [self.jobs.pop(k) for k in idle]
            engine = Engine(
                rows,
                self.worker.state.nthreads,
                lambda: max(min(budget, spec.declared), self._room("state", spec.id, budget)),
                lambda: self._room("cache", spec.id, spec.cache_bytes),
            )
            self.jobs[spec.id] = _Job(engine, spec, budget)
        for job in dropped:
            job.end()

    def _room(self, kind: Literal["state", "cache"], job_id: str, alone: int) -> int:
        """Return the bytes that a job may keep; ``alone`` is its limit without other jobs."""
        limits, wanted = {}, {job_id: 0}
        for name, job in self.jobs.copy().items():
            limits[name], wanted[name] = (
                (job.state_limit, job.engine.store.wanted)
                if kind == "state"
                else (job.cache_limit, job.engine.cache.wanted)
            )
        return room_of(job_id, limits | {job_id: alone}, wanted)

    def count(self, done: PassReport) -> None:
        """Add the costs of a slice."""
        with self.lock:
            worked = replace(self.worked)
            worked.add(done)
            # Replace the object as a whole, so that it can be read without a lock.
            self.worked = worked

    def drop(self, job_id: str) -> None:
        """Forget a job; its running share ends at the next chunk."""
        with self.lock:
            job = self.jobs.pop(job_id, None)
        if job is not None:
            job.wanted = math.inf
            # Do not block the worker's event loop while the engine waits for its threads.
            threading.Thread(target=job.end, daemon=True).start()


def _plugin() -> WorkPlugin:
    plugin: WorkPlugin = get_worker().plugins[WorkPlugin.name]
    return plugin


def work(share: Share, payload: Payload, sealed_replay: Sealed | None = None) -> ShareResult:
    """Compute a share for one slice of time; the last slice returns the total."""
    replay = None if sealed_replay is None else sealed_replay.value
    plugin = _plugin()
    out = ShareResult(plugin.worker.address, share.id)
    job = plugin.jobs.get(payload.job)
    if job is None:
        out.unknown = True
        return out
    try:
        with working_for(job.service_job):
            _advance(job, share, payload, replay, out, plugin)
    except Exception as error:
        return ShareResult(out.worker, share.id, error=PackedError.of(error))
    return out


def _advance(
    job: _Job,
    share: Share,
    payload: Payload,
    replay: tuple[tuple[Any, ...], ...] | None,
    out: ShareResult,
    plugin: WorkPlugin,
) -> None:
    """Compute chunks of a share, and write the progress to ``out``."""
    until = time.monotonic() + share.slice_seconds
    # Set this before locking, so that a share of a cancelled pass ends at its next chunk.
    job.wanted = max(job.wanted, payload.number)

    def stop() -> BaseException | None:
        return CancelledFit("the pass is over") if job.wanted > payload.number else None

    with job.lock:
        if (error := stop()) is not None:
            raise error
        job.begin(payload.number)
        ticket = job.tickets.get(share.id)
        if ticket is None:
            # A worker must not change its own retained totals for a share that it does not own.
            ticket = job.engine.open(
                payload.spec, unranges(share.parts), replay, retain=out.worker == share.owner
            )
            job.tickets[share.id] = ticket
            plugin.count(PassReport(retries=share.again))
        elif replay is not None and ticket.waiting:
            job.engine.supply(ticket, replay)
        before = replace(ticket.report)
        try:
            over = job.engine.advance(ticket, stop, until)
        except BaseException:
            job.tickets.pop(share.id, None)
            raise
        finally:
            plugin.count(_since(before, ticket.report))
        out.needs_replay = over and bool(ticket.waiting)
        out.done = len(ticket.done)
        if ticket.finished:
            out.finished = True
            total = job.engine.collect(ticket)
            del job.tickets[share.id]
            out.report = ticket.report
            out.size = nbytes(total)
            out.parked = out.size > share.park_bytes
            if out.parked:
                job.parked[share.id] = total
            else:
                out.total = total


def _since(before: PassReport, now: PassReport) -> PassReport:
    """Return the difference of two reports, limited to values that are reported per worker."""
    kinds = ("rows", "bytes_read", "compute", "read", "wait")
    return PassReport(**{kind: getattr(now, kind) - getattr(before, kind) for kind in kinds})


def collect_total(share_id: str, payload: Payload) -> Any:
    """Return the total of a share that stayed on this worker."""
    job = _plugin().jobs.get(payload.job)
    if job is None or share_id not in job.parked:
        raise LostTotalError(f"the total of share {share_id} is not on this worker")
    return job.parked[share_id]


def combine_totals(payload: Payload, *totals: Any) -> Any:
    """Combine totals into a new total without changing the given totals, which Dask keeps."""
    return total_of(payload.spec, [t.value if isinstance(t, Sealed) else t for t in totals])


def versions() -> dict[str, str]:
    """Return the versions that must agree between this process and every worker."""
    return {
        "largek_dask": __version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "numba": numba.__version__,
    }


def admit(
    spec: WorkSpec, shape: tuple[int, int], dask_worker: Any = None
) -> str | RuntimeError | None:
    """Return the reason why this worker cannot open the data; None if it can.

    Errors are returned, not raised, because Dask logs all arguments of a call that raises.
    """
    try:
        plugin = dask_worker.plugins.get(WorkPlugin.name)
        if plugin is None:
            return RuntimeError("it has not been prepared yet")
        plugin.admit(spec)
        found = plugin.jobs[spec.id].engine.rows.shape
        if tuple(found) != tuple(shape):
            raise DataError(f"the data have shape {found} instead of {shape}")
        with working_for(spec.service_job):
            _warn_of_scratch(dask_worker.local_directory)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _warn_of_scratch(folder: str) -> None:
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(folder).free
        if free < LEAST_SCRATCH:
            logger.warning(
                "%.0f MB free for scratch in %s: Dask cannot spill there, and compiled kernels may "
                "not be saved; free some, or start this worker with another --local-directory",
                free / 1e6,
                folder,
            )


def drop_job(job_id: str, dask_worker: Any = None) -> None:
    """Forget a job on this worker."""
    plugin = dask_worker.plugins.get(WorkPlugin.name)
    if plugin is not None:
        plugin.drop(job_id)


def take_total(job_id: str, share_id: str, dask_worker: Any = None) -> Any:
    """Return the total of a share, or None, from a worker that takes no tasks."""
    job = dask_worker.plugins[WorkPlugin.name].jobs.get(job_id)
    return None if job is None else job.parked.get(share_id)
