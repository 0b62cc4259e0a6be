"""All jobs of one scheduler: which of them runs next, and what may be asked of them."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from largek_dask import config
from largek_dask.algorithms.base import KMeansProblem
from largek_dask.data.rows import Rows
from largek_dask.data.sources import open_rows
from largek_dask.driver.events import Event
from largek_dask.driver.fit import chosen
from largek_dask.driver.plan import check_problem, space_needed
from largek_dask.driver.provenance import versions
from largek_dask.driver.space import check_space
from largek_dask.errors import (
    ClusterError,
    JobNotFoundError,
    LargekError,
    ModelFormatError,
    NoModelError,
    OutputError,
    ParameterError,
    warnings_heard_by,
)
from largek_dask.model import Model, load_model
from largek_dask.service.credentials import (
    known_values,
    missing,
    options_of,
    output_folder,
    redactor,
)
from largek_dask.service.fitting import JOB_FILES, MODEL
from largek_dask.service.known import Job
from largek_dask.service.lease import STORE, Contender, check_job, claimed_for, reserve
from largek_dask.service.places import Place, place_of
from largek_dask.service.running import Keeper, Runner
from largek_dask.service.spec import JobSpec, check_asked
from largek_dask.service.store import ENDS, Record, Records, Result, checked_id

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Jobs"]

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
CHANGEABLE = ("max_iter", "tol", "max_time", "priority")
"""What may be different when a job that has ended is gone on with: nothing that changes bits."""
FEEDS = 50
"""Jobs that have ended whose events are kept in memory; those of others are read when asked for."""
END_SECONDS = 30.0
"""How long a job that has said its last word may take to put its things away."""
START_SECONDS = 60.0
"""How long to wait for a scheduler that is starting."""

Check = Callable[["Client", Rows, float], None]


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a job reads and writes."""

    url: str
    """Of the output, as its user calls it."""
    output: Place
    data: tuple[Place, ...]

    @classmethod
    def of(cls, spec: JobSpec) -> _Places:
        urls = (spec.data, spec.sample_weight)
        data = tuple(place_of(url) for url in urls if url is not None)
        return cls(spec.output, place_of(spec.output), data)


class Jobs:
    """The jobs of one scheduler. All methods may be called from any thread, and may block.

    Parameters
    ----------
    records : Records
    connect : callable
        Gives the client whose cluster computes; None as its value: threads of this process.
    tell : callable
        Called with every event of every job.
    owner : str
        Who claims the store and jobs: told to whoever comes second, so it says where this one is.

    Attributes
    ----------
    epoch : str
        Another one each time that the store is taken: events are numbered anew.
    """

    def __init__(
        self,
        records: Records,
        connect: Callable[[], Client | None],
        tell: Callable[[Event], None],
        owner: str,
    ) -> None:
        self._records = records
        self._connect = connect
        self._tell = tell
        self._owner = owner
        self._jobs: dict[str, Job] = {}
        self._places: dict[str, _Places] = {}
        """Of each job."""
        self._submitting: list[_Places] = []
        self._store = place_of(records.url)
        self._runners: set[Runner] = set()
        self._served: Counter[str] = Counter()
        """How many runs of each owner's have begun: who has had fewest comes first."""
        self._changed = threading.Condition(threading.RLock())
        self._closing = False
        self._unreadable: dict[str, str] = {}
        """Jobs whose records cannot be read at the moment, and why."""
        self._busy: dict[str, str] = {}
        """Jobs that one thread has for itself, and what it does with them."""
        self._contender: Contender | None = None
        self._keeper: Keeper | None = None
        """Of the lease of the store; None while another scheduler has it."""
        self._holder = ""
        """The scheduler that has the store, if it is not this one."""
        self.epoch = ""
        self._loaded = threading.Event()
        self._ending = threading.Event()
        self._queue = threading.Thread(target=self._run_queue, name="largek-queue", daemon=True)
        self._tender = threading.Thread(
            target=self._run_records, name="largek-records", daemon=True
        )

    # --- the queue --------------------------------------------------------------------------------

    def start(self) -> None:
        """Take the store, take up all jobs that have not ended, and run what is submitted."""
        self._queue.start()
        self._tender.start()

    def _run_queue(self) -> None:
        trouble = ""
        while not self._closing:
            try:
                self._turn()
                trouble = ""
            except Exception as error:
                # Whatever it is, it must not be the end of all jobs.
                if (reason := self._records.reason(error)) != trouble:
                    logger.warning("The jobs in %s have to wait: %s", self._records.url, reason)
                trouble = reason
            with self._changed:
                if not self._closing:
                    self._changed.wait(TICK_SECONDS)

    def _turn(self) -> None:
        if self._keeper is None:
            self._contend()
        if self._keeper is not None and not self._loaded.is_set():
            self._load()
        with self._changed:
            if self._loaded.is_set() and not self._closing:
                # Again, as the place of one that cannot begin now is another's.
                while jobs := self._next():
                    for job in jobs:
                        self._launch(job)

    def _contend(self) -> None:
        """Take the store, unless another scheduler has it."""
        if self._contender is None:
            patience = float(config.get("service.patience-seconds"))
            self._contender = Contender(self._records.folder, STORE, self._owner, patience)
        lease = self._contender.claim()
        if lease is None:
            self._is_held_by(self._contender.living)
            return
        records = self._records.under(lease)
        keeper = Keeper(lease, self._lost)
        with self._changed:
            if self._closing:
                lease.release()
                return
            self._contender, self._holder, self.epoch = None, "", uuid.uuid4().hex
            self._records, self._keeper = records, keeper
            keeper.start()

    def _is_held_by(self, owner: str) -> None:
        with self._changed:
            if owner and not self._holder:
                logger.warning("The jobs in %s are those of %s", self._records.url, owner)
            self._holder = owner
            self._changed.notify_all()

    def _lost(self) -> None:
        """Another scheduler has taken the store: nothing here is this one's any more."""
        with self._changed:
            self._keeper = None
            self._loaded.clear()
            for job in self._jobs.values():
                job.ask_to_stop("lost")
            self._jobs.clear()
            self._places.clear()
            self._unreadable.clear()
            self._changed.notify_all()

    def _load(self) -> None:
        records = self._records
        with warnings_heard_by(lambda message, _: logger.warning(message)):
            found, unreadable = records.all()
        places = {record.id: _Places.of(record.spec) for record in found}
        with self._changed:
            if self._keeper is None or self._records is not records:
                return
            for record in found:
                self._jobs[record.id] = Job(record, {}, self._tell, is_new=False)
            self._places.update(places)
            self._unreadable = unreadable
            self._loaded.set()
            self._changed.notify_all()

    # --- records that could not be written or read ------------------------------------------------

    def _run_records(self) -> None:
        while not self._ending.wait(float(config.get("service.beat-seconds"))):
            try:
                if self._loaded.is_set():
                    self._tend()
            except Exception as error:
                reason = self._records.reason(error)
                logger.warning("No look after records in %s: %s", self._records.url, reason)

    def _tend(self) -> None:
        """Write and read what could not be before."""
        for job in tuple(self._jobs.values()):
            if not job.is_kept:
                self._keep(job)
        records = self._records
        for job_id in tuple(self._unreadable):
            try:
                record = records.read(job_id)
            except JobNotFoundError:
                record = None
            except (ParameterError, OSError) as error:
                with self._changed:
                    if job_id in self._unreadable:
                        self._unreadable[job_id] = records.reason(error)
                continue
            places = None if record is None else _Places.of(record.spec)
            with self._changed:
                # Meanwhile the store may have gone to somebody else.
                if self._records is not records or self._unreadable.pop(job_id, None) is None:
                    return
                if record is not None and places is not None:
                    self._jobs[job_id] = Job(record, {}, self._tell, is_new=False)
                    self._places[job_id] = places
                    self._changed.notify_all()

    def _next(self) -> list[Job]:
        """Jobs to begin now."""
        now = time.monotonic()
        waiting = [
            job
            for job in self._jobs.values()
            if job.state in ("queued", "waiting")
            and now >= job.not_before
            and not job.running
            and not job.needs()
        ]
        # Ending a job takes no place of one that computes.
        chosen = [job for job in waiting if job.record.cancel]
        waiting = [job for job in waiting if not job.record.cancel]
        running = Counter(job.record.owner for job in self._jobs.values() if job.running)
        served = Counter(self._served)
        for _ in range(int(config.get("service.concurrent-jobs")) - running.total()):
            if not waiting:
                break
            first = min(
                waiting,
                key=lambda job: (
                    -job.record.spec.priority,
                    running[job.record.owner],
                    served[job.record.owner],
                    job.record.created,
                ),
            )
            waiting.remove(first)
            running[first.record.owner] += 1
            served[first.record.owner] += 1
            chosen.append(first)
        return chosen

    def _launch(self, job: Job) -> None:
        if not job.tries:
            self._served[job.record.owner] += 1
        job.begin()
        runner = Runner(job, self._records, self._owner, self._connect, lambda: self._over(runner))
        self._runners.add(runner)
        try:
            runner.start()
        except Exception as error:
            # Such as no thread to be had: others may have more luck, and this one next time.
            self._runners.discard(runner)
            job.running = False
            job.not_before = time.monotonic() + float(config.get("service.beat-seconds"))
            logger.warning("Job %s cannot begin now: %s", job.record.id, error)

    def _over(self, runner: Runner) -> None:
        with self._changed:
            self._runners.discard(runner)
            self._changed.notify_all()
            ended = [job for job in self._jobs.values() if job.state in ENDS and job.feed.is_loaded]
            for job in ended[:-FEEDS]:
                job.feed.unload()

    def workers_worth(self, seconds: float) -> int:
        """Workers that the running jobs have use for, if a step is to take so many seconds."""
        # Called on the scheduler's event loop: it must not wait for who writes under the lock.
        return sum(job.feed.worth(seconds) for job in tuple(self._jobs.values()) if job.running)

    def ids(self) -> frozenset[str]:
        """Of all jobs that there are; never waits."""
        return frozenset((*tuple(self._jobs), *tuple(self._unreadable)))

    def close(self, seconds: float) -> list[str]:
        """Let every job write its checkpoint and stop; a later scheduler goes on with it.

        Returns
        -------
        list of str
            Jobs that were still at it after so many seconds.
        """
        self._ending.set()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            runners = list(self._runners)
            for job in self._jobs.values():
                if job.running:
                    job.ask_to_stop("shutdown")
        until = time.monotonic() + seconds
        for runner in runners:
            runner.join(max(0.0, until - time.monotonic()))
        for thread in (self._queue, self._tender):
            if thread.is_alive():
                thread.join(max(0.0, until - time.monotonic()))
        if self._keeper is not None:
            self._keeper.stop()
        return [runner.name for runner in runners if runner.is_alive()]

    # --- what a client may ask --------------------------------------------------------------------

    def wait_until_ready(self) -> None:
        """Wait until this scheduler has its jobs, as one does that has just been started.

        Raises
        ------
        ClusterError
            Another one has them, or they cannot be read.
        """
        ready, url = self._loaded.is_set, self._records.url
        with self._changed:
            self._changed.wait_for(lambda: ready() or self._holder, START_SECONDS)
            if ready():
                return
            if not self._holder:
                raise ClusterError(f"the jobs in {url} cannot be read at the moment.")
            patience = float(config.get("service.patience-seconds"))
            raise ClusterError(
                f"the jobs in {url} are those of {self._holder}: connect to that scheduler. (This "
                f"one takes over when the other has been silent for {patience:g} s.)"
            )

    def _job(self, job_id: str) -> Job:
        checked_id(job_id)
        self.wait_until_ready()
        with self._changed:
            if job_id in self._unreadable:
                raise ClusterError(
                    f"the record of job {job_id} cannot be read at the moment; it is tried again "
                    f"and again: {self._unreadable[job_id]}"
                )
            if job_id not in self._jobs:
                raise JobNotFoundError(
                    f"there is no job {job_id}; the jobs there are: "
                    f"{', '.join(list(self._jobs)[-5:]) or 'none'}."
                )
            return self._jobs[job_id]

    def submit(
        self, document: str, secrets: Mapping[str, Any], owner: str, check: Check | None = None
    ) -> str:
        """Keep a new job, after all that can be known to go wrong has been looked at.

        Parameters
        ----------
        document : str
            The JSON of a ``JobSpec``.
        secrets : mapping
            Values of its storage options that are only in memory.
        owner : str
            Who submits it.
        check : callable, optional
            Asks the workers whether they can take part.

        Returns
        -------
        str
            Its id.

        Raises
        ------
        LargekError
            It could not be done; nothing has been written.
        """
        check_asked(owner=owner, secrets=secrets)
        spec = JobSpec.parse(document)
        if absent := missing(spec, secrets):
            raise ParameterError(f"storage_options has no value for {', '.join(absent)}.")
        options = options_of(spec, secrets)
        places = _Places.of(spec)
        with self._reserved(places):
            try:
                self._check(spec, options, check)
                record = self._create(spec, options, owner)
            except Exception as error:
                raise _without_secrets(error, redactor(options)) from None
            with self._changed:
                job = self._jobs[record.id] = Job(record, secrets, self._tell, is_new=True)
                self._places[record.id] = places
                self._changed.notify_all()
        job.feed({"event": "queued", "run": record.run, "owner": owner})
        return record.id

    @contextlib.contextmanager
    def _reserved(self, places: _Places) -> Iterator[None]:
        """No other job is submitted to the same output meanwhile.

        Raises
        ------
        OutputError
            There is one already, or it is no place for an output.
        """
        self.wait_until_ready()
        with self._changed:
            self._check_free(places)
            self._submitting.append(places)
        try:
            yield
        finally:
            with self._changed:
                self._submitting.remove(places)

    def _create(self, spec: JobSpec, options: dict[str, Any], owner: str) -> Record:
        """Keep a new job, and make its output its own.

        The record comes first: of a crash between both remains a job that goes on, and not a
        folder that nobody can have.
        """
        record = self._records.create(spec, owner, time.time())
        try:
            reserve(output_folder(spec, options), record.id, self._owner)
        except BaseException:
            self._records.remove(record.id)
            raise
        return record

    def _check(self, spec: JobSpec, options: dict[str, Any], check: Check | None) -> None:
        """Data, numbers, memory, output and workers."""
        client = self._connect()
        rows = open_rows(spec.data, sample_weight=spec.sample_weight, storage_options=options)
        problem = KMeansProblem(spec.n_clusters, spec.init, spec.empty_clusters)
        check_problem(
            rows, problem, n_init=spec.n_init, seed=spec.seed, n_threads=None, client=client
        )
        folder = output_folder(spec, options)
        folder.check_writable()
        if names := folder.names():
            if (job_id := claimed_for(folder)) is not None:
                raise OutputError(f"{folder.url} is the output of job {job_id}.")
            raise OutputError(
                f"{folder.url} is not empty ({names[0]!r} lies there); nothing was changed. "
                "Choose another output, or go on with its job by submit(resume=id)."
            )
        choice = chosen(spec.algorithm.make(), rows, spec.n_clusters, spec.init, spec.n_init)
        needed = space_needed(
            rows, spec.n_clusters, choice.algorithm, n_init=choice.n_init, labels=spec.labels
        )
        check_space(folder, needed, "model, labels and checkpoints")
        if check is not None and client is not None:
            check(client, rows, float(config.get("service.check-seconds")))

    def _check_free(self, wanted: _Places) -> None:
        """Refuse an output that is in the way of something else, or it in that one's."""
        output, url = wanted.output, wanted.url
        if output.overlaps(self._store):
            raise OutputError(f"{url} is where the scheduler keeps its jobs: {self._records.url}.")
        if any(output.overlaps(data) for data in wanted.data):
            raise OutputError(f"{url} is in the job's own data: choose a folder of its own.")
        if any(output.overlaps(other.output) for other in self._submitting):
            raise OutputError(f"{url} is the output of a job that is just being submitted.")
        for job_id, other in self._places.items():
            if output.overlaps(other.output):
                raise OutputError(f"{url} overlaps {other.url}, the output of job {job_id}.")
            ended = self._jobs[job_id].state in ENDS
            if not ended and any(output.is_within(data) for data in other.data):
                raise OutputError(f"{url} is in the data of job {job_id}, which has not ended.")

    def resume(self, job_id: str, changes: Mapping[str, Any], secrets: Mapping[str, Any]) -> str:
        """Go on with a job that has ended, by other stop rules if these are given.

        Raises
        ------
        ParameterError
            It has not ended, or something else is to be changed.
        """
        check_asked(secrets=secrets, changes=changes)
        job = self._job(job_id)
        for name in changes:
            if name not in CHANGEABLE:
                raise ParameterError(
                    f"{name} of a job cannot be changed, only {', '.join(CHANGEABLE)}: submit a "
                    "new job for that."
                )
        with self._alone(job, "resumed", "it has not ended yet"):
            job.secrets.update(secrets)
            spec = JobSpec.parse({**job.record.spec.dump(), **changes})
            self._recall(job)
            run, ended = job.record.run + 1, job.record.result
            has_model = ended is not None and ended.digest is not None
            job.waiting = None
            job.go_on()
            job.change(
                self._records.update,
                spec=spec,
                run=run,
                cancel=False,
                result=None,
                before=ended if has_model else None,
                failure=None,
            )
        job.feed({"event": "queued", "run": run, "owner": job.record.owner})
        return job_id

    @contextlib.contextmanager
    def _alone(self, job: Job, what: str, otherwise: str) -> Iterator[None]:
        """Have a job that has ended for oneself, without keeping others from theirs.

        Raises
        ------
        ParameterError
            It has not ended, or somebody else has it.
        """
        job_id = job.record.id
        with self._changed:
            # Its thread has to have ended too, which gives its lease back last.
            if job.state in ENDS:
                self._changed.wait_for(lambda: not job.running, END_SECONDS)
            if doing := self._busy.get(job_id):
                raise ParameterError(f"job {job_id} is just being {doing}.")
            if self._jobs.get(job_id) is not job:
                raise JobNotFoundError(f"there is no job {job_id} any more.")
            if job.state not in ENDS or job.running:
                raise ParameterError(f"job {job_id} is {job.state}: {otherwise}.")
            self._busy[job_id] = what
        try:
            yield
        finally:
            with self._changed:
                del self._busy[job_id]
                self._changed.notify_all()

    def supply(self, job_id: str, secrets: Mapping[str, Any]) -> list[str]:
        """Values of storage options for a job that waits for them; those that it still needs."""
        check_asked(secrets=secrets)
        job = self._job(job_id)
        with self._changed:
            unknown = sorted(set(secrets) - set(job.record.spec.in_memory))
            if unknown:
                raise ParameterError(f"job {job_id} has no storage option {unknown[0]!r}.")
            job.secrets.update(secrets)
            job.go_on()
            self._changed.notify_all()
            return job.needs()

    def status(self, job_id: str) -> dict[str, Any]:
        """See ``service.client.Job.status``."""
        checked_id(job_id)
        self.wait_until_ready()
        reason = self._unreadable.get(job_id)
        return self._job(job_id).status() if reason is None else _unreadable(job_id, reason)

    def all(self) -> list[dict[str, Any]]:
        """The status of every job, the oldest first; those that cannot be read are the last."""
        self.wait_until_ready()
        with self._changed:
            jobs = sorted(self._jobs.values(), key=lambda job: job.record.created)
            unreadable = [_unreadable(*about) for about in sorted(self._unreadable.items())]
        return [*(job.status() for job in jobs), *unreadable]

    def events(self, job_id: str, n: int, most: int) -> list[dict[str, Any]]:
        """Events from number ``n`` on."""
        job = self._job(job_id)
        self._recall(job)
        return job.feed.since(n, most)

    def _recall(self, job: Job) -> None:
        """Events of a time before this scheduler's, if its files can be reached."""
        # What is waited for is not asked again by everybody who looks.
        if not job.feed.is_loaded and job.reason is None:
            folder = output_folder(job.record.spec, options_of(job.record.spec, job.secrets))
            is_own = claimed_for(folder) in (None, job.record.id)
            job.recall(folder) if is_own else job.feed.load([])

    def cancel(self, job_id: str) -> str:
        """Ask a job to end, also after a restart; its state now."""
        job = self._job(job_id)
        with self._changed:
            if job.state in ENDS:
                return job.state
            ended = None
            if job.needs() and not job.running:
                # Where its output is cannot be reached: that it has ended is known here alone.
                ended = Result(job=job_id, run=job.record.run, token=0, state="cancelled")
            # (How it ended may be known since a moment ago: that is not to be forgotten.)
            job.change_now(cancel=True, **({} if ended is None else {"result": ended}))
            job.go_on()
            if job.running:
                job.ask_to_stop("cancel")
            self._changed.notify_all()
        # It ends now, whether or not the store can be written at the moment.
        self._keep(job)
        kind = "cancelling" if ended is None else "cancelled"
        job.feed({"event": kind, "run": job.record.run})
        return job.state

    def _keep(self, job: Job) -> None:
        """Keep the record of a job; where that fails it is tried again."""
        try:
            job.keep(self._records.update)
        except (LargekError, OSError) as error:
            kind = type(error).__name__
            logger.warning("The record of %s cannot be written yet: %s", job.record.id, kind)

    def delete(self, job_id: str) -> None:
        """Remove a job that has ended, and all that it has written.

        Raises
        ------
        ParameterError
            It has not ended (a job that waits for credentials may be cancelled), or the values
            of storage options are needed to remove its files.
        """
        job = self._job(job_id)
        with self._alone(job, "deleted", "cancel it first"):
            options = options_of(job.record.spec, job.secrets)
            folder = output_folder(job.record.spec, options).guarded(self._records.check)
            # A job that has failed because its folder is another's leaves that alone.
            if claimed_for(folder) in (None, job_id):
                for name in JOB_FILES:
                    folder.remove(name)
            self._records.remove(job_id)
            with self._changed:
                self._jobs.pop(job_id, None)
                self._places.pop(job_id, None)
        job.feed({"event": "deleted", "run": job.record.run})

    def redactor(self, secrets: Any) -> Callable[[Any], Any]:
        """A function that leaves out all secrets of all jobs, and these, of what is told."""
        with self._changed:
            jobs = list(self._jobs.values())
        return redactor([secrets, *(known_values(job.record.spec, job.secrets) for job in jobs)])

    def model(self, job_id: str) -> Model:
        """The model of a job: the final one, or the best so far.

        Raises
        ------
        NoModelError
            There is none yet.
        """
        job = self._job(job_id)
        snapshot, spec = job.snapshot, job.record.spec
        if snapshot is not None:
            return Model(
                arrays=snapshot.model(),
                normalize=spec.normalize,
                on_bad_rows=spec.on_bad_rows,
                history=tuple(snapshot.steps()),
                provenance={
                    "job": job_id,
                    "n_iter": snapshot.record["step"],
                    "stop_reason": "running",
                    "versions": versions(),
                },
            )
        options = options_of(spec, job.secrets)
        folder = output_folder(spec, options)
        try:
            check_job(folder, job_id)
        except ParameterError as error:
            raise NoModelError(f"job {job_id} has no model: {error}", "cancelled") from None
        try:
            model = load_model(folder.sub(MODEL))
        except ModelFormatError as error:
            if folder.exists(MODEL) and job.state == "finished":
                raise
            raise NoModelError(
                f"job {job_id} is {job.state} and has no centres yet.", "cancelled"
            ) from error
        result = job.record.result
        if result is not None and result.digest not in (None, model.digest()):
            raise OutputError(
                f"{folder.url}/{MODEL} is not the model that job {job_id} has written "
                f"(digest {model.digest()}, not {result.digest})."
            )
        return model


def _unreadable(job_id: str, reason: str) -> dict[str, Any]:
    """The status of a job whose record cannot be read."""
    unknown = ("created", "owner", "data", "output", "algorithm", "n_clusters", "max_iter")
    return {
        "id": job_id,
        "name": None,
        "state": "unreadable",
        "note": f"its record cannot be read: {reason}",
        "reason": None,
        "needs": [],
        "n_events": 0,
        **dict.fromkeys(unknown),
    }


def _without_secrets(error: Exception, redact: Callable[[Any], Any]) -> Exception:
    """The error with nothing in its text that must not be read."""
    text, told = str(error), redact(str(error))
    if told == text and not isinstance(error, OSError):
        return error
    kind = type(error) if isinstance(error, LargekError) else OutputError
    try:
        return kind(told)
    except TypeError:
        return ParameterError(told)
