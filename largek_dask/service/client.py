"""The user's side: submit a job, close the laptop, come back to a model."""

from __future__ import annotations

import contextlib
import getpass
import json
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from distributed import Client

from largek_dask.driver.stopping import parse_duration
from largek_dask.errors import (
    CancelledJobError,
    ClusterError,
    ParameterError,
    VersionMismatchWarning,
    warn,
)
from largek_dask.model import Model
from largek_dask.service.plugin import HANDLER, TOPIC, JobsPlugin
from largek_dask.service.spec import AlgorithmSpec, JobSpec, hide
from largek_dask.service.store import ENDS, checked_id
from largek_dask.service.wire import error_of, model_of
from largek_dask.version import __version__

__all__ = ["Job", "Service", "connect"]

POLL_SECONDS = 2.0
"""Events that are pushed may be lost with a connection: so often it is asked for them."""
AWAY_SECONDS = 60.0
"""How long a scheduler may be away before that is an error."""
PAUSE_SECONDS = 0.5
LAST = ("finished", "failed", "cancelled", "deleted")
"""Events after which nothing follows."""


def connect(
    scheduler: str | Client, *, store: str | None = None, timeout: float | str = "10s"
) -> Service:
    """Connect to a scheduler that runs clustering jobs.

    Parameters
    ----------
    scheduler : str or distributed.Client
        ``"tcp://host:8786"``, or a client, which stays open when the service is closed.
    store : str, optional
        Where the scheduler has no largek service yet: give it one that keeps its jobs under this
        URL, which the scheduler has to reach.
    timeout : float or str
        For the connection.

    Returns
    -------
    Service

    Raises
    ------
    ClusterError
        Nothing answers there, or the scheduler has no largek service.
    ParameterError
        The client is asynchronous.

    Warns
    -----
    VersionMismatchWarning
        The scheduler has another version of this package.
    """
    if isinstance(scheduler, Client):
        if scheduler.asynchronous:
            raise ParameterError("connect needs a client made with asynchronous=False.")
        return Service(scheduler, None, store)
    try:
        client = Client(scheduler, timeout=timeout, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {scheduler!r} ({type(error).__name__}): check the "
            "address and that `dask scheduler` runs there"
        ) from error
    try:
        return Service(client, scheduler, store)
    except BaseException:
        client.close()
        raise


class Service:
    """The jobs of a scheduler; made by :func:`connect`."""

    def __init__(self, client: Client, address: str | None, store: str | None) -> None:
        self.client = client
        self._address = address
        """Given: the client is this object's own."""
        self._followers: dict[str, list[queue.SimpleQueue[dict[str, Any]]]] = {}
        self._lock = threading.Lock()
        self._greet(store)

    def _greet(self, store: str | None) -> None:
        try:
            hello = self._ask("hello")
        except _NoServiceError:
            if store is None:
                raise ClusterError(
                    f"the scheduler at {self.client.scheduler.address} has no largek service: "
                    "start it with `dask scheduler --preload largek_dask.service.preload`, or "
                    "give connect() a store, the URL of a folder where jobs are to be kept."
                ) from None
            self.client.register_plugin(JobsPlugin(store))
            hello = self._ask("hello")
        self.store: str = hello["store"]
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
        if self._address is not None:
            self.client.close()

    # --- asking -----------------------------------------------------------------------------------

    def _ask(self, operation: str, **arguments: Any) -> Any:
        """Ask the scheduler once.

        Raises
        ------
        OSError
            It cannot be reached.
        LargekError
            What it answers.
        """
        handler = getattr(self.client.scheduler, HANDLER)
        found = self.client.sync(
            handler, operation=operation, arguments=json.dumps(arguments, default=_plain)
        )
        if not isinstance(found, Mapping) or not {"answer", "arrays", "error"} & set(found):
            raise _NoServiceError
        if "error" in found:
            raise error_of(found["error"], found["message"])
        return json.loads(found["answer"]) if "answer" in found else found

    def _ask_again(self, operation: str, **arguments: Any) -> Any:
        """Ask what may be asked twice; a scheduler that restarts is waited for."""
        until = time.monotonic() + AWAY_SECONDS
        while True:
            try:
                if self._address is not None and self.client.status != "running":
                    self._reconnect(self._address)
                return self._ask(operation, **arguments)
            except (OSError, _NoServiceError, RuntimeError) as error:
                gone = isinstance(error, OSError | _NoServiceError) or not self._is_connected()
                if not gone or time.monotonic() > until:
                    raise
                time.sleep(PAUSE_SECONDS)

    def _is_connected(self) -> bool:
        return bool(self.client.status == "running")

    def _reconnect(self, address: str) -> None:
        with self._lock:
            self.client.close()
            self.client = Client(address, timeout="5s", set_as_default=False)
            for topic in self._followers:
                self.client.subscribe_topic(topic, self._heard(topic))

    # --- events as they come ----------------------------------------------------------------------

    @contextlib.contextmanager
    def _following(self, job_id: str) -> Iterator[queue.SimpleQueue[dict[str, Any]]]:
        """A queue that gets a job's events from now on."""
        topic = f"{TOPIC}/{job_id}"
        news: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._lock:
            queues = self._followers.setdefault(topic, [])
            if not queues:
                self.client.subscribe_topic(topic, self._heard(topic))
            queues.append(news)
        try:
            yield news
        finally:
            with self._lock:
                queues.remove(news)
                if not queues:
                    del self._followers[topic]
                    with contextlib.suppress(ValueError):
                        self.client.unsubscribe_topic(topic)

    def _heard(self, topic: str) -> Any:
        def hear(event: tuple[float, dict[str, Any]]) -> None:
            for news in list(self._followers.get(topic, ())):
                news.put(event[1])

        return hear

    # --- jobs -------------------------------------------------------------------------------------

    def submit(
        self,
        data: str | None = None,
        *,
        algorithm: Any = "auto",
        n_clusters: int | None = None,
        output: str | None = None,
        seed: int | None = None,
        max_time: float | str | None = None,
        labels: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        name: str | None = None,
        resume: str | Job | None = None,
        **options: Any,
    ) -> Job:
        """Submit a job, or go on with one that has ended.

        Whatever can be known to go wrong is found now: data, numbers, memory, output, and the
        versions and the view of every worker.

        Parameters
        ----------
        data : str
            URL of the rows, as scheduler and workers see it.
        algorithm : str or algorithm object
            ``"auto"``, ``"nmbatch"``, ``NMBatch(rho=100)``, ...
        n_clusters : int
        output : str
            URL of a new folder: model, labels, checkpoints, events.
        seed : int
            0 by default.
        max_time : float or str, optional
            Seconds, or such as "90s", "30m", "6h".
        labels : bool
            Whether to write every row's label; by default they are.
        storage_options : mapping, optional
            For URLs like the data's. ``{"key": {"env": "NAME"}}`` is looked up in the scheduler's
            environment. Any other value is kept in memory only: after a restart of the scheduler
            the job waits until :meth:`Job.supply` gives it again.
        name : str, optional
            Shown beside the id.
        resume : str or Job, optional
            A job that has ended; only ``max_iter``, ``tol``, ``max_time`` and ``priority`` may be
            given with it.
        options
            ``init`` (a name), ``n_init``, ``max_iter``, ``tol``, ``sample_weight`` (a URL),
            ``empty_clusters``, ``on_bad_rows``, ``normalize``, ``memory_limit`` (bytes a worker),
            ``priority``: as of :class:`largek_dask.KMeans`.

        Returns
        -------
        Job

        Raises
        ------
        LargekError
            It could not be done; says why. Nothing has been written.
        """
        if isinstance(options.get("init"), np.ndarray | list | tuple):
            raise ParameterError("init of a job must be a name; KMeans(client=...) takes arrays.")
        public, secrets = hide(storage_options)
        given = {
            "data": data,
            "n_clusters": n_clusters,
            "output": output,
            "seed": seed,
            "labels": labels,
            "name": name,
            "max_time": None if max_time is None else parse_duration(max_time, "max_time"),
            **options,
        }
        changes = {key: _plain(value) for key, value in given.items() if value is not None}
        if resume is not None:
            job_id = resume.id if isinstance(resume, Job) else checked_id(resume)
            self._ask("resume", id=job_id, changes=changes, secrets=secrets)
            return Job(self, job_id)
        spec = JobSpec.parse(
            {
                **changes,
                "algorithm": AlgorithmSpec.of(algorithm).model_dump(mode="json"),
                "storage_options": public,
            }
        )
        job_id = self._ask(
            "submit", document=json.dumps(spec.dump()), secrets=secrets, owner=_owner()
        )
        return Job(self, job_id)

    def jobs(self) -> list[Job]:
        """All jobs of the scheduler, the oldest first."""
        return [Job(self, status["id"]) for status in self._ask_again("jobs")]

    def statuses(self) -> list[dict[str, Any]]:
        """The :meth:`Job.status` of all jobs, the oldest first, in one question."""
        return list(self._ask_again("jobs"))

    def job(self, job_id: str) -> Job:
        """A job by its id.

        Raises
        ------
        JobNotFoundError
        """
        job = Job(self, checked_id(job_id))
        job.status()
        return job

    def __repr__(self) -> str:
        return f"<Service of {self.client.scheduler.address}, jobs in {self.store}>"


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
        """What is known of the job now.

        Returns
        -------
        dict
            ``state`` (queued, waiting-for-credentials, running, finished, failed, cancelled),
            ``note`` (why it waits), ``needs`` (storage options to be supplied), what was
            submitted, and while and after it runs on this scheduler: ``step``, ``cost``,
            ``rows_per_second``, ``elapsed`` and ``eta_s`` (seconds), sums over its steps
            (``rows``, ``bytes``, ``retries``, ``rebuilt``, ``evictions``, ``seconds`` by kind),
            ``state_bytes`` and ``cache_bytes`` held now, the same figures by worker
            (``workers``), and in the end ``result``.
        """
        found: dict[str, Any] = self._service._ask_again("status", id=self.id)
        return found

    @property
    def state(self) -> str:
        """See :meth:`status`."""
        return str(self.status()["state"])

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.state in ENDS

    def events(self, *, follow: bool = True) -> Iterator[dict[str, Any]]:
        """All events so far, then each as it comes, until the job has ended.

        Parameters
        ----------
        follow : bool
            False: only those so far.

        Yields
        ------
        dict
            ``event`` (its kind), ``time`` (UTC), and what its kind adds: see
            ``largek_dask.driver.events``, and queued, running, interrupted, cancelling,
            finished, failed, cancelled.
        """
        epoch, n, seen = None, 0, ""
        with self._service._following(self.id) as news:
            while True:
                found = self._service._ask_again("events", id=self.id, n=n)
                if found["epoch"] != epoch:
                    # Another scheduler numbers them anew; what was seen before is passed over.
                    if epoch is not None and n > 0:
                        epoch, n = found["epoch"], 0
                        continue
                    epoch = found["epoch"]
                last = None
                for event in found["events"]:
                    n, last = event["n"] + 1, event["event"]
                    if event.get("time", "~") > seen:
                        yield event
                        seen = event.get("time", seen)
                if found["events"]:
                    if last in LAST and self._is_over(n):
                        return
                    continue
                if not follow or self._is_over(n):
                    return
                with contextlib.suppress(queue.Empty):
                    news.get(timeout=POLL_SECONDS)

    def _is_over(self, n: int) -> bool:
        """Whether no event follows number ``n - 1``."""
        status = self.status()
        return status["state"] in ENDS and status["n_events"] <= n

    def wait(self, timeout: float | str | None = None) -> str:
        """Wait until the job has ended; how it did.

        Raises
        ------
        TimeoutError
        """
        until = None if timeout is None else time.monotonic() + parse_duration(timeout, "timeout")
        with self._service._following(self.id) as news:
            while (state := self.state) not in ENDS:
                left = POLL_SECONDS
                if until is not None:
                    left = min(left, until - time.monotonic())
                    if left <= 0:
                        raise TimeoutError(f"job {self.id} is {state}; it goes on.")
                with contextlib.suppress(queue.Empty):
                    while news.get(timeout=left)["event"] not in LAST:
                        left = min(left, 0.1)
        return state

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
            raise CancelledJobError(f"job {self.id} was cancelled.")
        if state == "failed":
            result = self.status()["result"]
            raise error_of(result["error"], result["message"], result["traceback"])
        return self.model()

    def model(self) -> Model:
        """The best model so far.

        Raises
        ------
        NoModelError
            There is none yet.
        """
        return model_of(self._service._ask_again("model", id=self.id))

    def cancel(self) -> None:
        """Ask the job to end; its best model so far stays."""
        self._service._ask_again("cancel", id=self.id)

    def supply(self, storage_options: Mapping[str, Any]) -> list[str]:
        """Give values of storage options that were only in memory; the names still missing."""
        found: list[str] = self._service._ask_again(
            "supply", id=self.id, secrets=dict(storage_options)
        )
        return found

    def delete(self) -> None:
        """Remove a job that has ended, with all that it has written."""
        self._service._ask("delete", id=self.id)

    def __repr__(self) -> str:
        return f"<Job {self.id}>"


class _NoServiceError(Exception):
    """The scheduler does not know what it was asked."""


def _owner() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def _plain(value: Any) -> Any:
    """Numpy scalars as Python's own; paths as text."""
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "__fspath__"):
        return str(value)
    return value
