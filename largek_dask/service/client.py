"""Connect to a scheduler, submit jobs and find existing jobs."""

from __future__ import annotations

import getpass
import json
import logging
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from distributed import Client

from largek_dask.algorithms.choices import EFFORTS
from largek_dask.algorithms.names import ALGORITHMS, MIXTURES, algorithm_of, check_effort
from largek_dask.driver.formatting import human_seconds, printable
from largek_dask.driver.options import check_choice, parse_memory
from largek_dask.driver.stopping import parse_duration
from largek_dask.errors import (
    ClusterError,
    LargekError,
    OtherSchedulerError,
    ParameterError,
    SchedulerAwayError,
    VersionMismatchWarning,
    warn,
    without_causes,
)
from largek_dask.passes.network import require_open
from largek_dask.plots.job_text import card_of_jobs
from largek_dask.retry import retry
from largek_dask.service.job import Job
from largek_dask.service.job_state import STATES
from largek_dask.service.plugin import HANDLER, JobsPlugin
from largek_dask.service.scheduler_file import Finder, connect_to, new_client
from largek_dask.service.serialization import error_of
from largek_dask.service.spec import AlgorithmSpec, JobSpec, hide
from largek_dask.service.store import checked_id
from largek_dask.version import __version__

logger = logging.getLogger(__name__)

HELLO_SECONDS = 90.0
"""Minimum timeout in seconds of a request without retries, as the scheduler may be loading jobs."""
PAUSE_SECONDS = 0.5
REPORT_SECONDS = 10.0
"""Waiting time after which a warning about the scheduler is logged, in seconds."""
RECONNECT_SECONDS = 5.0
SILENT_SECONDS = 10.0
"""Timeout of a request before the scheduler's file is read again, in seconds; doubles per retry."""
MODEL_SECONDS = 60.0


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
        ``"tcp://host:8786"``; or the path or URL of the ``scheduler.json`` in a scheduler's store,
        such as ``"/shared/jobs/scheduler.json"``, which is read again whenever the connection is
        lost, because the address may have changed; or a client, which stays open when the service
        is closed.
    store : str, optional
        URL of a folder for jobs, reachable by the scheduler. If the scheduler has no service yet,
        one is started with this store.
    timeout : float or str
        Timeout of the connection: seconds, or a text such as "10s".
    away : float or str
        Time for which a connected scheduler may be unreachable or silent before an error is raised:
        seconds, or a text such as "90s", "15m", "2h". A warning is logged after ten seconds.
    storage_options : mapping, optional
        Storage options for the URL of a ``scheduler.json``.

    Returns
    -------
    Service

    Raises
    ------
    ClusterError
        No scheduler answers, it has no largek service, or the file is missing.
    ParameterError
        The client is asynchronous, or the file is not a ``scheduler.json``.

    Warns
    -----
    VersionMismatchWarning
        The scheduler has another version of this package.
    """
    seconds = parse_duration(away, "away")
    if isinstance(scheduler, Client):
        if scheduler.asynchronous:
            raise ParameterError(
                "connect() does not accept an asynchronous client; create the client with "
                "asynchronous=False."
            )
        return Service(scheduler, None, store, seconds)
    finder = Finder(scheduler, storage_options)
    client = connect_to(finder, timeout)
    try:
        return Service(client, finder, store, seconds)
    except BaseException:
        client.close()
        raise


class Service:
    """Connection to a scheduler that runs jobs, returned by :func:`connect`."""

    def __init__(
        self, client: Client, finder: Finder | None, store: str | None, away: float
    ) -> None:
        self.client = client
        self._finder = finder
        """None if the caller created the client."""
        self._away_seconds = away
        self._lock = threading.Lock()
        self._closed = False
        require_open(client)
        self._where: str = client.scheduler.address
        self._check_service(store)

    def _check_service(self, store: str | None) -> None:
        try:
            try:
                hello = _value_of(self._answer("hello", {}, HELLO_SECONDS))
            except _NoServiceError:
                if store is None:
                    raise
                self.client.register_plugin(JobsPlugin(store))
                hello = _value_of(self._answer("hello", {}, HELLO_SECONDS))
        except _NoServiceError:
            raise ClusterError(
                f"the scheduler at {self._where} has no largek service: start it with `dask "
                "scheduler --preload largek_dask.service.preload`, or give connect() a store, the "
                "URL of a folder for jobs."
            ) from None
        except (OSError, SchedulerAwayError) as error:
            raise self._away_error(error) from None
        self.store: str = hello["store"]
        self.version: str = hello["version"]
        if hello["version"] != __version__:
            warn(
                f"the scheduler has largek_dask {hello['version']} and this process "
                f"{__version__}: install one version, because each may refuse the other's jobs.",
                VersionMismatchWarning,
            )

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect; jobs continue."""
        self._closed = True
        if self._finder is not None:
            self.client.close()

    # --- requests ---------------------------------------------------------------------------------

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Send one request; the scheduler may execute it even if no answer arrives.

        Raises
        ------
        SchedulerAwayError
            The scheduler is unreachable, or does not answer within ``away`` (at least 90 s).
        ClusterError
            This service or its client is closed.
        LargekError
            The error in the scheduler's reply.
        """
        self._check_open()
        try:
            self._reconnect()
            longest = max(self._away_seconds, HELLO_SECONDS)
            found = self._answer(operation, arguments, longest)
        except (OSError, SchedulerAwayError) as error:
            text = str(self._away_error(error)).rstrip(".")
            raise SchedulerAwayError(
                f"{text}. The request ({operation}) may still be executed: check jobs() before you "
                "repeat the request."
            ) from None
        return _value_of(found)

    def _check_open(self) -> None:
        if self._closed:
            raise ClusterError(
                f"the connection to {self._where} is closed; its jobs continue. Call connect() "
                "again."
            )
        if self._finder is None:
            require_open(self.client)

    def _reconnect(self, in_doubt: bool = False) -> None:
        """Reconnect the client that this service owns if it has lost its scheduler.

        ``in_doubt`` is true if another scheduler may have the jobs, because the connected one did
        not answer or has no jobs.
        """
        finder = self._finder
        if finder is None:
            return
        if self.client.status == "running" and not (in_doubt and finder.has_moved()):
            return
        with self._lock:
            address = finder.find()
            security = finder.security()
            self.client.close()
            self.client = new_client(address, RECONNECT_SECONDS, security)
            self._where = self.client.scheduler.address

    def _answer(
        self, operation: str, arguments: Mapping[str, Any], seconds: float
    ) -> Mapping[str, Any]:
        """Return the scheduler's reply, including refusals; an exception means no reply."""
        found = self.client.sync(
            getattr(self.client.scheduler, HANDLER),
            operation=operation,
            arguments=json.dumps(arguments, default=_plain),
            callback_timeout=seconds,
        )
        if isinstance(found, Mapping) and "away" in found:
            raise SchedulerAwayError(f"{found['away']}; its jobs continue once it is back.")
        if not isinstance(found, Mapping) or not {"answer", "arrays", "error"} & set(found):
            raise _NoServiceError
        return found

    def ask_with_retry(
        self, operation: str, *, within: float | None = None, **arguments: Any
    ) -> Any:
        """Send a request that is safe to repeat, with retries while the scheduler is unreachable.

        Retries end at any reply, even a refusal, and after ``within`` or ``away``, whichever is
        shorter. One warning is logged.

        Raises
        ------
        SchedulerAwayError
            There was no reply in that time.
        LargekError
            The error in the scheduler's reply.
        """
        begun, in_doubt = time.monotonic(), False
        silent = MODEL_SECONDS if operation == "model" else SILENT_SECONDS
        longest = min(self._away_seconds, math.inf if within is None else within)
        moves = self._finder is not None and self._finder.is_file

        def ask() -> Mapping[str, Any]:
            nonlocal in_doubt, silent
            self._check_open()
            try:
                self._reconnect(in_doubt)
                # Each attempt has a timeout, because a stopped scheduler never replies.
                left = max(longest - (time.monotonic() - begun), SILENT_SECONDS)
                found = self._answer(operation, arguments, min(silent, left))
            except TimeoutError:
                silent *= 2
                raise
            finally:
                in_doubt = True
            if moves and found.get("error") == OtherSchedulerError.__name__:
                raise OtherSchedulerError(found["message"])
            return found

        def limit(error: Exception) -> float | None:
            if isinstance(error, OSError | SchedulerAwayError | OtherSchedulerError):
                return longest
            # Re-raise other errors unless a lost connection may be the cause.
            is_lost = isinstance(error, LargekError | RuntimeError) and not self._closed
            return longest if is_lost and self.client.status != "running" else None

        def report(error: Exception, _: float) -> None:
            why, most = (
                str(self._away_error(error)).rstrip("."),
                human_seconds(limit(error) or longest),
            )
            logger.warning("%s. Waiting for it, at most %s (away)", why, most)

        try:
            found = retry(
                ask,
                limit,
                pause=PAUSE_SECONDS,
                cancelled=self._check_open,
                report=report,
                report_after=REPORT_SECONDS,
            )
        except Exception as error:
            self._check_open()
            if limit(error) is None:
                raise
            raise self._away_error(error) from None
        return _value_of(found)

    def _away_error(self, error: Exception) -> SchedulerAwayError:
        finder, is_bare = self._finder, isinstance(error, _NoServiceError)
        if isinstance(error, SchedulerAwayError) and not is_bare:
            return error
        if isinstance(error, LargekError) and not is_bare:
            return SchedulerAwayError(f"{error}; wait for it, its jobs continue then.")
        if finder is not None and finder.is_file and not is_bare:
            return finder.no_answer(error)
        return SchedulerAwayError(
            f"the scheduler at {self._where} "
            f"{'no longer has jobs' if is_bare else 'does not answer'}: check that it runs "
            "there. Its jobs continue once it is back with their store."
        )

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
        max_time: float | str | None = None,
        labels: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        name: str | None = None,
        resume: str | Job | None = None,
        accept_version: bool = False,
        workers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Job:
        """Submit a new job after checking its data and resources, or resume an ended job.

        Parameters
        ----------
        data : str
            URL of the rows, which scheduler and workers can access.
        algorithm : str or algorithm object
            ``"auto"`` (the default), ``"nmbatch"``, ``NMBatch(rho=100)``, ...
        n_clusters : int
        output : str
            URL of a new folder for the model, labels, checkpoints and events.
        seed : int, default 0
        max_time : float or str, optional
            Time limit: seconds, or a text such as "6h". It includes the wait for workers.
        labels : bool
            Whether to write every row's label; true by default.
        storage_options : mapping, optional
            Storage options for the URLs. ``{"key": {"env": "NAME"}}`` is read from the scheduler's
            environment. Any other value is kept in memory only: after a restart of the scheduler,
            the job waits for :meth:`Job.supply`.
        name : str, optional
        resume : str or Job, optional
            An ended job; only ``max_iter``, ``tol``, ``max_time`` and ``workers`` may change.
        accept_version : bool
            With ``resume``, whether this version may continue a job of another version. The model's
            provenance lists all versions.
        workers : mapping, optional
            Workers to use, such as ``{"min": 2, "max": 8, "tags": ["bigmem"]}``: minimum (default
            1) and maximum number, and required tags (``dask worker --resources bigmem=1``).
        options
            ``init`` (a name), ``n_init``, ``max_iter``, ``tol``, ``sample_weight`` (a URL),
            ``column`` and ``ids`` (as in ``open_rows``), ``empty_clusters``, ``on_bad_rows``,
            ``normalize``, ``scale``, ``effort``, ``memory_limit`` (of a worker), as in
            :class:`largek_dask.KMeans`; ``mixture`` (the covariance type, to fit a mixture of
            Gaussians) and ``dither``, as in :class:`largek_dask.Mixture`; ``include`` and
            ``partition_by``, as in :meth:`Model.predict`, to write ``predictions.parquet``.

        Returns
        -------
        Job

        Raises
        ------
        LargekError
            The job is not accepted; nothing has been written.
        """
        public, secrets = hide(storage_options)
        effort = options.pop("effort", None)
        changes = _fields(
            data=data, n_clusters=n_clusters, output=output, seed=seed, max_time=max_time,
            labels=labels, name=name, workers=workers, **options,
        )  # fmt: skip
        if resume is not None:
            if algorithm is not None or effort is not None:
                raise ParameterError(
                    "a resumed job keeps its algorithm: leave out algorithm and effort."
                )
            job_id = resume.id if isinstance(resume, Job) else checked_id(resume)
            asked = {"job_id": job_id, "changes": changes, "accept_version": bool(accept_version)}
            return Job(self, self.ask("resume", secrets=secrets, **asked))
        document = {"storage_options": public, "algorithm": _algorithm(algorithm, effort, options)}
        spec = JobSpec.parse({**changes, **document}).model_dump_json()
        return Job(self, self.ask("submit", document=spec, secrets=secrets, owner=this_user()))

    @without_causes
    def jobs(
        self,
        *,
        state: str | Sequence[str] | None = None,
        older_than: float | str | None = None,
        limit: int | None = 100,
    ) -> JobList:
        """List jobs of the scheduler; by default, the newest 100 jobs.

        Parameters
        ----------
        state : str or sequence of str, optional
            Only jobs in one of these states: see :meth:`Job.status`.
        older_than : float or str, optional
            Only jobs that ended at least this long ago: seconds, or a text such as "12h" or "30d".
        limit : int or None
            Maximum number of jobs; the newest are listed. None for all.

        Returns
        -------
        JobList
            Oldest first, so that ``[-1]`` is the newest job.
        """
        asked: dict[str, Any] = {"limit": limit}
        if state is not None:
            asked["state"] = [state] if isinstance(state, str) else list(state)
            for name in asked["state"]:
                check_choice("state", name, STATES)
        if older_than is not None:
            asked["older_than"] = parse_duration(older_than, "older_than")
        return JobList(self, self.ask_with_retry("listed", **asked))

    @without_causes
    def job(self, job_id: str) -> Job:
        """Return the job with this id, or raise JobNotFoundError."""
        job = Job(self, checked_id(job_id))
        job.status()
        return job

    def __repr__(self) -> str:
        return f"<Service of {self._where}, jobs in {self.store}>"


class JobList(list[Job]):
    """List of jobs, returned by :meth:`Service.jobs`.

    Attributes
    ----------
    rows : list of dict
        ``id``, ``name``, ``state``, ``reason``, ``owner``, ``created``, ``ended`` (or None),
        ``algorithm``, ``n_clusters``, ``data`` and ``output`` of each job; also the figures of its
        last step while it runs, and its ``cost`` and ``seconds`` once it has ended.
        ``Job.status`` has further fields.
    """

    def __init__(self, service: Service, rows: list[dict[str, Any]]) -> None:
        super().__init__(Job(service, row["id"]) for row in rows)
        self.rows = rows

    def _repr_html_(self) -> str:
        return card_of_jobs(self.rows, f"{len(self)} jobs")


def _value_of(found: Mapping[str, Any]) -> Any:
    """Return the value in a reply, or raise the error in it; a model is returned undecoded."""
    if "error" in found:
        raise error_of(found["error"], found["message"])
    return json.loads(found["answer"]) if "answer" in found else found


class _NoServiceError(SchedulerAwayError):
    """Error for a scheduler that has no handler for requests."""


def this_user() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = ""
    # Environment variables may contain any text.
    return printable(name).strip()[:200].strip() or "unknown"


def _algorithm(algorithm: Any, effort: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the name of an algorithm, or an algorithm object, to a document."""
    algorithm = "auto" if algorithm is None else algorithm
    if effort is not None:
        check_choice("effort", effort, EFFORTS)
        if options.get("mixture") is not None:
            check_effort(ALGORITHMS[MIXTURES], effort)
        else:
            algorithm = algorithm_of(algorithm, effort)
    return AlgorithmSpec.of(algorithm).model_dump()


def _fields(**given: Any) -> dict[str, Any]:
    """Convert the given fields of a job to plain values."""
    for name, value in given.items():
        if isinstance(value, np.ndarray | list | tuple) and name != "include":
            raise ParameterError(
                f"{name} of a job cannot be an array: use KMeans(client=...) or "
                "Mixture(client=...), which accept arrays."
            )
    if given["max_time"] is not None:
        given["max_time"] = parse_duration(given["max_time"], "max_time")
    if given.get("memory_limit") is not None:
        given["memory_limit"] = parse_memory(given["memory_limit"])
    return {name: _plain(value) for name, value in given.items() if value is not None}


def _plain(value: Any) -> Any:
    """Convert numpy scalars to Python numbers, and paths to text."""
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "__fspath__"):
        return str(value)
    return value
