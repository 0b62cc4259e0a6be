"""Submit jobs to a scheduler and find them again."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from distributed import Client
from distributed.client import ClosedClientError

from largek_dask.algorithms.choices import EFFORTS
from largek_dask.algorithms.names import (
    ALGORITHMS,
    MIXTURES,
    OTHER_ALGORITHMS,
    algorithm_of,
    check_effort,
)
from largek_dask.driver.formatting import human_seconds, printable
from largek_dask.driver.options import check_choice, is_integer, parse_memory
from largek_dask.driver.stopping import parse_duration
from largek_dask.errors import (
    ClusterError,
    ClusterWarning,
    JobNotFoundError,
    LargekError,
    OtherSchedulerError,
    ParameterError,
    SchedulerAwayError,
    VersionMismatchWarning,
    warn,
    without_causes,
)
from largek_dask.observe.cards import card_of_jobs
from largek_dask.passes.network import require_open
from largek_dask.retry import retry
from largek_dask.service.job import Job
from largek_dask.service.job_state import ACTIVE
from largek_dask.service.job_table import moment_of
from largek_dask.service.plugin import HANDLER, TOPIC, JobsPlugin
from largek_dask.service.scheduler_file import Finder, connect_to, new_client
from largek_dask.service.serialization import error_of
from largek_dask.service.spec import AlgorithmSpec, JobSpec, check_secrets, hide
from largek_dask.service.store import checked_id
from largek_dask.version import __version__

__all__ = ["JobList", "Service", "connect", "this_user"]

logger = logging.getLogger(__name__)

WITHOUT_JOBS_SECONDS = 60.0
"""How long a scheduler may answer that it has no jobs: while it starts, or for ever."""
PAUSE_SECONDS = 0.5
TELL_SECONDS = 10.0
"""Whoever waits for so long for a scheduler that is away is told so."""
RECONNECT_SECONDS = 5.0
SILENT_SECONDS = 10.0
"""Without an answer for so long a scheduler is away, and is asked again, where a file says that it
is meanwhile; the next time it has twice as long, as an answer may be long."""
SIGN_SECONDS = 2.0
"""What may take long, and must not be asked twice, is waited for while the scheduler gives signs of
life: after so long it is asked for one, and has SILENT_SECONDS for that."""
QUESTIONS = frozenset({"", "hello", "jobs", "status", "events"})
"""Operations that are asked once and change nothing."""
MODEL_SECONDS = 60.0
"""A model may be so large that this is how long it takes."""


@without_causes
def connect(
    scheduler: str | os.PathLike[str] | Client,
    *,
    store: str | None = None,
    timeout: float | str = "10s",
    away: float | str = "15m",
    storage_options: Mapping[str, Any] | None = None,
) -> Service:
    """Connect to a scheduler that runs clustering jobs.

    Parameters
    ----------
    scheduler : str, path or distributed.Client
        ``"tcp://host:8786"``; or the path or URL of the ``scheduler.json`` that a scheduler keeps
        in its store, such as ``"/shared/jobs/scheduler.json"``, which is read again whenever the
        connection is lost, as the address may be another one then; or a client, which stays open
        when the service is closed.
    store : str, optional
        Where the scheduler has no largek service yet: give it one that keeps its jobs under this
        URL, which the scheduler has to reach.
    timeout : float or str
        For the connection: seconds, or such as "10s".
    away : float or str
        How long a scheduler that has been connected may be away, or silent, before that is an
        error: seconds, or such as "90s", "15m", "2h". After ten seconds a warning is logged.
    storage_options : mapping, optional
        For the URL of a ``scheduler.json``.

    Returns
    -------
    Service

    Raises
    ------
    ClusterError
        Nothing answers there, the scheduler has no largek service, or there is no such file.
    ParameterError
        The client is asynchronous, or the file is none of a scheduler.

    Warns
    -----
    VersionMismatchWarning
        The scheduler has another version of this package.
    """
    seconds = parse_duration(away, "away")
    if isinstance(scheduler, Client):
        if scheduler.asynchronous:
            raise ParameterError("connect needs a client made with asynchronous=False.")
        return Service(scheduler, None, store, seconds)
    finder = Finder(scheduler, storage_options)
    client = connect_to(finder, timeout)
    try:
        return Service(client, finder, store, seconds)
    except BaseException:
        client.close()
        raise


class Service:
    """The jobs of a scheduler; made by :func:`connect`."""

    def __init__(
        self, client: Client, finder: Finder | None, store: str | None, away: float
    ) -> None:
        self.client = client
        self._finder = finder
        """Given: the client is this object's own."""
        self._away_seconds = away
        self._followers: dict[str, list[queue.SimpleQueue[dict[str, Any]]]] = {}
        self._lock = threading.Lock()
        self._closed = False
        require_open(client)
        self._where: str = client.scheduler.address
        self._greet(store)

    def _greet(self, store: str | None) -> None:
        try:
            if store is not None:
                self.client.sync(self._sign_of_life)
                # Where there is a service already, Dask keeps that one.
                self.client.register_plugin(JobsPlugin(store))
            hello = _content(self._answer("hello", {}))
        except _NoServiceError:
            raise ClusterError(
                f"the scheduler at {self._where} has no largek service: "
                "start it with `dask scheduler --preload largek_dask.service.preload`, or "
                "give connect() a store, the URL of a folder where jobs are to be kept."
            ) from None
        except (OSError, _GoingAwayError, _SilentError) as error:
            raise self._away(error) from None
        self.store: str = hello["store"]
        self._starts_workers = bool(hello.get("starts_workers"))
        self.version: str = hello["version"]
        if hello["version"] != __version__:
            warn(
                f"the scheduler has largek_dask {hello['version']} and this process "
                f"{__version__}: install the same version, as jobs of one may be refused by the "
                "other.",
                VersionMismatchWarning,
            )

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect; jobs go on."""
        self._closed = True
        if self._finder is not None:
            self.client.close()

    # --- asking -----------------------------------------------------------------------------------

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Ask the scheduler once.

        Raises
        ------
        SchedulerAwayError
            It cannot be reached, or gives no sign of life for ten seconds.
        ClusterError
            This service or its client has been closed.
        LargekError
            What it answers.
        """
        self._check_open()
        try:
            self._keep_connected()
            found = self._answer(operation, arguments)
        except (OSError, _NoAnswerError) as error:
            raise self._away(error) from None
        return _content(found)

    def _check_open(self) -> None:
        """Raise where nobody can be asked any more, however long one waits."""
        if self._closed:
            raise ClusterError(
                f"this service of {self._where} has been closed, its jobs go on: connect() again."
            )
        if self._finder is None:
            require_open(self.client)

    def _keep_connected(self, in_doubt: bool = False) -> None:
        """Connect again where the client is this object's own and has lost its scheduler.

        Parameters
        ----------
        in_doubt : bool
            Whoever is connected has not answered, or has no jobs: perhaps another one has them.

        Raises
        ------
        OSError, LargekError
            Nobody could be reached.
        """
        finder = self._finder
        if finder is None:
            return
        if self.client.status != "running" or (in_doubt and finder.has_moved()):
            self._reconnect(finder)

    def _answer(
        self, operation: str, arguments: Mapping[str, Any], seconds: float | None = None
    ) -> Mapping[str, Any]:
        """What the scheduler says, also that it cannot do it; whatever is raised says nothing.

        It has so many seconds for it; without a number as long as it gives signs of life.
        """
        handler = getattr(self.client.scheduler, HANDLER)
        found = self.client.sync(
            handler if seconds is not None else self._heard_out,
            operation=operation,
            arguments=json.dumps(arguments, default=_plain),
            callback_timeout=seconds,
        )
        if isinstance(found, Mapping) and "away" in found:
            raise _GoingAwayError(found["away"])
        if not isinstance(found, Mapping) or not {"answer", "arrays", "error"} & set(found):
            raise _NoServiceError
        return found

    async def _heard_out(self, **question: str) -> Any:
        """What the scheduler answers, however long it takes, unless it is frozen meanwhile."""
        asking = asyncio.ensure_future(getattr(self.client.scheduler, HANDLER)(**question))
        try:
            while not (await asyncio.wait({asking}, timeout=SIGN_SECONDS))[0]:
                await self._sign_of_life(question["operation"])
            return await asking
        finally:
            asking.cancel()

    async def _sign_of_life(self, operation: str = "") -> None:
        """Have the event loop of the scheduler answer, which no work of the service holds up."""
        asking = self.client.scheduler.identity(n_workers=0)
        try:
            await asyncio.wait_for(asking, SILENT_SECONDS)
        except TimeoutError as error:
            raise _SilentError(operation) from error

    def ask_again(self, operation: str, *, within: float | None = None, **arguments: Any) -> Any:
        """Ask what is safe to ask twice, retrying it while the scheduler is away.

        An answer ends it, also one that refuses. The wait is logged once, as a warning.

        Parameters
        ----------
        operation : str
        within : float, optional
            Maximum seconds to wait, if less than the service's ``away``.
        arguments
            Of the operation.

        Raises
        ------
        SchedulerAwayError
            No answer came for as long as that.
        LargekError
            What it answers.
        """
        begun = time.monotonic()
        in_doubt = False
        silent = MODEL_SECONDS if operation == "model" else SILENT_SECONDS
        longest = min(self._away_seconds, math.inf if within is None else within)
        moves = self._finder is not None and self._finder.is_file

        def ask() -> Mapping[str, Any]:
            nonlocal in_doubt, silent
            self._check_open()
            try:
                self._keep_connected(in_doubt)
                # Of one that is stopped, or lives on without its store, nothing else would be seen.
                left = max(longest - (time.monotonic() - begun), SILENT_SECONDS)
                found = self._answer(operation, arguments, min(silent, left))
                if not moves or found.get("error") != OtherSchedulerError.__name__:
                    return found
                error: Exception = error_of(found["error"], found["message"])
            except (OSError, LargekError, _NoAnswerError, RuntimeError) as raised:
                known = isinstance(raised, OSError | _NoAnswerError)
                if not known and self._is_connected():
                    raise
                error = raised
                silent *= 2 if isinstance(raised, TimeoutError) else 1
            in_doubt = True
            # One that answers, but without jobs, was started without them.
            is_bare = isinstance(error, _NoServiceError)
            most = min(longest, WITHOUT_JOBS_SECONDS) if is_bare else longest
            raise _UnreachedError(error, most)

        def limit(error: Exception) -> float | None:
            return error.seconds if isinstance(error, _UnreachedError) else None

        def report(error: Exception, _: float) -> None:
            assert isinstance(error, _UnreachedError)
            why, most = str(self._away(error.reason)).rstrip("."), human_seconds(error.seconds)
            logger.warning("%s. Waiting for it, at most %s (away)", why, most)

        try:
            found = retry(
                ask,
                limit,
                pause=PAUSE_SECONDS,
                cancelled=self._check_open,
                report=report,
                report_after=TELL_SECONDS,
            )
        except _UnreachedError as error:
            raise self._away(error.reason) from None
        return _content(found)

    def _away(self, error: BaseException) -> SchedulerAwayError:
        finder = self._finder
        if isinstance(error, SchedulerAwayError):
            return error
        if isinstance(error, _SilentError):
            return error.told(self._where)
        if isinstance(error, LargekError | _GoingAwayError):
            return SchedulerAwayError(f"{error}; wait for it, its jobs go on then.")
        if finder is not None and finder.is_file and not isinstance(error, _NoServiceError):
            return finder.nobody(error)
        what = "has no jobs any more" if isinstance(error, _NoServiceError) else "does not answer"
        return SchedulerAwayError(
            f"the scheduler at {self._where} {what}: check that it runs there. Its jobs go on when "
            "it is back with their store."
        )

    def _is_connected(self) -> bool:
        return bool(self.client.status == "running")

    def _reconnect(self, finder: Finder) -> None:
        with self._lock:
            address = finder.find()
            security = finder.security()
            self.client.close()
            self.client = new_client(address, RECONNECT_SECONDS, security)
            self._where = self.client.scheduler.address
            for topic in self._followers:
                self.client.subscribe_topic(topic, self._heard(topic))

    # --- events as they come ----------------------------------------------------------------------

    @contextlib.contextmanager
    def following(self, job_id: str) -> Iterator[queue.SimpleQueue[dict[str, Any]]]:
        """A queue that gets a job's events from now on."""
        topic = f"{TOPIC}/{job_id}"
        news: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._check_open()
        with self._lock:
            queues = self._followers.setdefault(topic, [])
            if not queues:
                # One that has lost its scheduler asks for all topics when it connects again.
                with contextlib.suppress(ClosedClientError):
                    self.client.subscribe_topic(topic, self._heard(topic))
            queues.append(news)
        try:
            yield news
        finally:
            with self._lock:
                queues.remove(news)
                if not queues:
                    del self._followers[topic]
                    # A scheduler that is away has forgotten who followed.
                    with contextlib.suppress(ValueError, ClosedClientError):
                        self.client.unsubscribe_topic(topic)

    def _heard(self, topic: str) -> Any:
        def hear(event: tuple[float, dict[str, Any]]) -> None:
            for news in list(self._followers.get(topic, ())):
                news.put(event[1])

        return hear

    # --- jobs -------------------------------------------------------------------------------------

    @without_causes
    def submit(
        self,
        data: str | None = None,
        *,
        algorithm: Any = None,
        n_clusters: int | None = None,
        output: str | None = None,
        seed: int | None = None,
        random_state: int | None = None,
        max_time: float | str | None = None,
        labels: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        name: str | None = None,
        resume: str | Job | None = None,
        accept_version: bool = False,
        workers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Job:
        """Submit a job, or resume one that has ended, after checks of all that it needs.

        Parameters
        ----------
        data : str
            URL of the rows, as scheduler and workers see it.
        algorithm : str or algorithm object
            ``"auto"`` (the default), ``"nmbatch"``, ``NMBatch(rho=100)``, ...
        n_clusters : int
        output : str
            URL of a new folder: model, labels, checkpoints, events.
        seed, random_state : int
            Two names of the seed, 0 by default.
        max_time : float or str, optional
            Seconds, or such as "90s", "30m", "6h"; of running, waiting for workers included.
        labels : bool
            Whether to write every row's label; by default they are.
        storage_options : mapping, optional
            For URLs like the data's. ``{"key": {"env": "NAME"}}`` is looked up in the scheduler's
            environment. Any other value is kept in memory only: after a restart of the scheduler
            the job waits until :meth:`Job.supply` gives it again.
        name : str, optional
            Shown beside the id.
        resume : str or Job, optional
            A job that has ended; only ``max_iter``, ``tol``, ``max_time`` and ``workers`` may be
            given with it.
        accept_version : bool
            With ``resume``, whether this version may continue what another one has computed, as a
            waiting job (``reason`` "version") needs. Its model's provenance names both.
        workers : mapping, optional
            Such as ``{"min": 2, "max": 8, "tags": ["bigmem"]}``: the fewest (1) and most workers
            that it uses, and tags that these have (``dask worker --resources bigmem=1``).
        options
            ``init`` (a name), ``n_init``, ``max_iter``, ``tol``, ``sample_weight`` (a URL),
            ``empty_clusters``, ``on_bad_rows``, ``normalize``, ``effort``, ``memory_limit`` (of a
            worker): as of :class:`largek_dask.KMeans`; ``mixture``, the covariances of a mixture of
            Gaussians, which is fitted instead, and ``dither`` of one.

        Returns
        -------
        Job

        Raises
        ------
        LargekError
            It could not be done; says why. Nothing has been written.
        """
        public, secrets = hide(storage_options)
        effort, one = options.pop("effort", None), _one_seed(seed, random_state)
        changes = _asked_workers(workers) | _fields(
            data=data, n_clusters=n_clusters, output=output, seed=one, max_time=max_time,
            labels=labels, name=name, **options,
        )  # fmt: skip
        if resume is not None:
            if algorithm is not None or effort is not None:
                raise ParameterError("resume= goes on with its own algorithm: leave it out.")
            return self._resumed(resume, changes, secrets, accept_version)
        if accept_version:
            raise ParameterError("accept_version=True needs resume=, the id of a job.")
        asked = AlgorithmSpec.of(_with_effort(algorithm, effort, options))
        return self._new({**changes, "storage_options": public}, asked, secrets)

    def _new(
        self, given: Mapping[str, Any], algorithm: AlgorithmSpec, secrets: Mapping[str, Any]
    ) -> Job:
        """A new job of these fields."""
        check_secrets(secrets)
        spec = JobSpec.parse({**given, "algorithm": algorithm.model_dump(mode="json")})
        sent = {"document": json.dumps(spec.dump()), "owner": this_user()}
        job = Job(self, self.ask("submit", secrets=secrets, **sent))
        self.start_workers()
        return job

    def start_workers(self) -> None:
        """Have workers start that have ended for want of jobs.

        Warns
        -----
        ClusterWarning
            The scheduler cannot do that; says what to type.
        """
        if self._starts_workers:
            # Who is away now does it later by itself.
            with contextlib.suppress(SchedulerAwayError):
                if advice := self.ask("start workers"):
                    warn(advice, ClusterWarning)

    def _resumed(
        self,
        job: str | Job,
        changes: Mapping[str, Any],
        secrets: Mapping[str, Any],
        accept_version: bool,
    ) -> Job:
        """Resume a job."""
        check_secrets(secrets)
        job_id = job.id if isinstance(job, Job) else checked_id(job)
        asked = {"changes": changes, "secrets": secrets, "accept_version": bool(accept_version)}
        self.ask("resume", id=job_id, **asked)
        self.start_workers()
        return Job(self, job_id)

    @without_causes
    def jobs(
        self,
        *,
        state: str | Sequence[str] | None = None,
        owner: str | None = None,
        name: str | None = None,
        since: datetime | str | None = None,
        older_than: datetime | str | None = None,
        limit: int | None = 100,
    ) -> JobList:
        """Jobs of the scheduler: the last hundred, or those that pass all filters.

        Parameters
        ----------
        state : str or sequence of str, optional
            Any of these: see :meth:`Job.status`.
        owner : str, optional
            Who submitted it.
        name : str, optional
            A pattern for the name, such as ``"night*"``.
        since : datetime or str, optional
            Submitted since then: a date such as ``"2026-11-25"`` or ``"2026-11-25T08:30"`` (UTC
            unless it says otherwise), or how long ago, such as ``"12h"`` or ``"30d"``.
        older_than : datetime or str, optional
            Ended before then.
        limit : int or None
            Maximum number of jobs, the newest ones; None: all.

        Returns
        -------
        JobList
            The oldest first, so that ``[-1]`` is the newest job.

        Raises
        ------
        ParameterError
            A filter is not valid, or a date is in the future.
        """
        asked = {
            "state": [state] if isinstance(state, str) else _as_list(state),
            "owner": owner,
            "name": name,
            "since": None if since is None else moment_of(since, "since"),
            "ended_before": None if older_than is None else moment_of(older_than, "older_than"),
            "limit": limit,
        }
        return JobList(self, self.ask_again("jobs", query=asked))

    def overview(self, last: int = 20) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """What is going on: jobs that have not ended, and the last ones, ended or not.

        Parameters
        ----------
        last : int
            How many of the latter.

        Returns
        -------
        list of dict
            ``JobList.rows``, the oldest first, at most 100 of jobs that have not ended; of
            those that run it is the whole :meth:`Job.status`.
        dict
            How many jobs there are, by state.
        """
        recent = self.ask("jobs", query={"limit": last})
        active = self.ask("jobs", query={"state": ACTIVE})
        rows = {row["id"]: row for row in (*active["jobs"], *recent["jobs"])}
        for job_id, row in rows.items():
            if row["state"] == "running":
                # It may be gone since.
                with contextlib.suppress(JobNotFoundError):
                    rows[job_id] = self.ask("status", id=job_id)
        ordered = sorted(rows.values(), key=lambda row: str(row.get("created", "~")))
        return ordered, recent["counts"]

    def workers(self) -> list[dict[str, Any]]:
        """The workers of the cluster, by name.

        Returns
        -------
        list of dict
            ``address``, ``name``, ``tags`` (Dask's resources of the worker), ``version`` of this
            package there (None: it does not say), ``threads``, ``status`` (Dask's), ``chunks``
            that it has computed for running jobs, ``memory`` and ``memory_limit`` (bytes),
            ``silent`` (seconds since its last sign), ``why`` (it is left out, else None).
        """
        return list(self.ask_again("workers"))

    def retire(self, worker: str) -> str:
        """Let a worker go: what it holds is brought to others, and its process ends.

        Parameters
        ----------
        worker : str
            Its address or name.

        Returns
        -------
        str
            Its address.

        Raises
        ------
        ParameterError
            There is none.
        ClusterError
            No other worker takes what it holds.
        """
        return str(self.ask("retire", worker=worker))

    def statuses(self) -> list[dict[str, Any]]:
        """The :meth:`Job.status` of all jobs, the oldest first, in one question."""
        return list(self.ask_again("statuses"))

    @without_causes
    def job(self, job_id: str) -> Job:
        """A job by its id.

        Raises
        ------
        JobNotFoundError
        """
        job = Job(self, checked_id(job_id))
        job.status()
        return job

    def _repr_html_(self) -> str:
        title = f"largek at {self._where}, jobs in {self.store}"
        return card_of_jobs(self.overview()[0], title)

    def __repr__(self) -> str:
        return f"<Service of {self._where}, jobs in {self.store}>"


class JobList(list[Job]):
    """Some jobs of a scheduler; made by :meth:`Service.jobs`.

    Attributes
    ----------
    rows : list of dict
        Of each job its ``id``, ``name``, ``state``, ``reason``, ``owner``, ``created``, ``ended``
        (None if it has not), ``algorithm``, ``n_clusters`` and ``output``. ``Job.status`` has more.
    counts : dict
        Number of jobs by state that pass all filters but the one by state.
    total : int
        Number of jobs that pass all filters, those beyond the limit included.
    """

    def __init__(self, service: Service, found: Mapping[str, Any]) -> None:
        super().__init__(Job(service, row["id"]) for row in found["jobs"])
        self.rows: list[dict[str, Any]] = found["jobs"]
        self.counts: dict[str, int] = found["counts"]
        self.total: int = found["total"]

    def _repr_html_(self) -> str:
        return card_of_jobs(self.rows, f"{len(self)} of {self.total} jobs")


def _as_list(value: Any) -> Any:
    """A sequence as JSON has it."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _content(found: Mapping[str, Any]) -> Any:
    """What an answer holds: a value, a model's message, or an error, which is raised."""
    if "error" in found:
        raise error_of(found["error"], found["message"])
    return json.loads(found["answer"]) if "answer" in found else found


class _UnreachedError(Exception):
    """No answer came; a retry may help for some seconds."""

    def __init__(self, reason: Exception, seconds: float) -> None:
        super().__init__(reason)
        self.reason, self.seconds = reason, seconds


class _NoAnswerError(Exception):
    """The scheduler has not answered what it was asked."""


class _NoServiceError(_NoAnswerError):
    """It does not know what that is."""


class _GoingAwayError(_NoAnswerError):
    """It is shutting down, and says so."""


class _SilentError(_NoAnswerError):
    """It is connected and gives no sign of life while it is asked for this operation."""

    def told(self, where: str) -> SchedulerAwayError:
        """What its user is told."""
        (operation,) = self.args
        yet = (
            ""
            if operation in QUESTIONS
            else f" It may yet do what it was asked ({operation}): see jobs() before you repeat it."
        )
        return SchedulerAwayError(
            f"the scheduler at {where} is connected and has given no sign of life for "
            f"{human_seconds(SILENT_SECONDS)}: its process or machine is stopped or overloaded. "
            "Look for it there (`ps` says T where it is stopped), have it go on, or start it "
            f"again: its jobs go on then.{yet}"
        )


def this_user() -> str:
    """Who submits, by the account of this machine."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = ""
    # It may come from the environment, where anything can be.
    return printable(name).strip()[:200].strip() or "unknown"


def _with_effort(algorithm: Any, effort: Any, options: Mapping[str, Any]) -> Any:
    """The algorithm that is sent, a name or an object; the effort is one of its parameters."""
    if algorithm is None:
        algorithm = "auto"
    if isinstance(algorithm, str):
        algorithm = OTHER_ALGORITHMS.get(algorithm, algorithm)
    if effort is None or (isinstance(algorithm, str) and algorithm not in ALGORITHMS):
        # The document of a job says what is wrong with a name.
        return algorithm
    check_choice("effort", effort, EFFORTS)
    if options.get("mixture") is not None:
        check_effort(ALGORITHMS[MIXTURES], effort)
        return algorithm
    return algorithm_of(algorithm, effort)


def _one_seed(seed: Any, random_state: Any) -> Any:
    """The seed by either of its names.

    Raises
    ------
    ParameterError
        They differ, or ``random_state`` is not an integer: the document of a job holds no
        generator.
    """
    if random_state is None:
        return seed
    if not is_integer(random_state) or random_state < 0:
        raise ParameterError(
            f"random_state of a job must be an integer of at least 0, got {random_state!r}."
        )
    if seed is not None and seed != random_state:
        raise ParameterError(
            f"seed={seed!r} and random_state={random_state!r} are two names of one thing: give "
            "one of them."
        )
    return random_state


def _fields(**given: Any) -> dict[str, Any]:
    """What is given of a job's fields, as they are sent."""
    for name, value in given.items():
        if isinstance(value, np.ndarray | list | tuple):
            raise ParameterError(
                f"{name} of a job cannot be an array: use KMeans or Mixture(client=...), which "
                "take one."
            )
    if given["max_time"] is not None:
        given["max_time"] = parse_duration(given["max_time"], "max_time")
    if given.get("memory_limit") is not None:
        given["memory_limit"] = parse_memory(given["memory_limit"])
    return {name: _plain(value) for name, value in given.items() if value is not None}


def _asked_workers(workers: Mapping[str, Any] | None) -> dict[str, Any]:
    """The field of a job that says which workers it uses; nothing where none does."""
    if workers is None:
        return {}
    return {"workers": dict(workers) if isinstance(workers, Mapping) else workers}


def _plain(value: Any) -> Any:
    """Numpy scalars as Python's own; paths as text."""
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "__fspath__"):
        return str(value)
    return value
