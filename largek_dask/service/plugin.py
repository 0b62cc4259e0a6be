"""Scheduler plugin that runs jobs and answers clients.

Slow work runs in threads, and the Dask client of the jobs has its own event loop, so that the
scheduler's event loop is not blocked. The scheduler's loop serializes arrays only if a client
requests a model.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import textwrap
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import dask
from dask.utils import parse_timedelta
from distributed import Client
from distributed.comm import get_address_host
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.security import Security
from distributed.utils import format_dashboard_link

from largek_dask import config
from largek_dask.driver.storage import Folder
from largek_dask.errors import LargekError, OutputError, ParameterError
from largek_dask.service import process_log
from largek_dask.service.jobs import Jobs
from largek_dask.service.metrics import JobsCollector
from largek_dask.service.process_log import WatchPlugin
from largek_dask.service.queue import SchedulerWorker
from largek_dask.service.scheduler_file import tls_files
from largek_dask.service.serialization import message_of_model
from largek_dask.service.store import Records
from largek_dask.service.web.hosts import Hosts
from largek_dask.version import __version__

if TYPE_CHECKING:
    from largek_dask.service.web.page import Page

logger = logging.getLogger(__name__)

HANDLER = "largek"
TARGET = "adaptive_target"
"""Name of the scheduler handler that Dask's ``Adaptive`` calls."""
ANSWERING_THREADS = 32
MOST_OF_A_JOB, HANGS_SECONDS = 8, 5.0
"""Maximum number of concurrent requests for a job's files while the oldest request has taken longer
than this many seconds."""
OPERATIONS = {
    "submit": "submit",
    **dict.fromkeys(("resume", "delete", "model", "news"), "files"),
    **dict.fromkeys(("hello", "listed", "status", "cancel", "supply"), "answer"),
}
"""Methods of ``Jobs`` that clients may call, and the thread pool that executes each method.

There are several pools because ``submit`` may wait for workers, and other methods may wait for
files of a job.
"""
MOST_ARGUMENTS = 8 << 20
"""Maximum length of a request, in characters; nested JSON makes a 1 MB job document longer."""
MOST_SECRETS = 64 << 10
"""Maximum total length of a request's secrets, because every text is searched for each secret."""


class JobsPlugin(SchedulerPlugin):  # type: ignore[misc]  # distributed has no types
    """Run clustering jobs on a Dask scheduler.

    To use the plugin, call ``client.register_plugin(JobsPlugin(store=...))``, or start the
    scheduler with ``dask scheduler --preload largek_dask.service.preload``.

    Parameters
    ----------
    store : str, optional
        URL of the folder for jobs; ``largek.store`` by default.
    storage_options : mapping, optional
        Storage options for that URL; not stored.
    """

    name = "largek-jobs"
    idempotent = True

    def __init__(
        self, store: str | None = None, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self.store = store
        self.storage_options = dict(storage_options or {})
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._file_requests: dict[str, list[float]] = {}
        """Start times of the current requests for files, by job id."""
        self._has_begun = False
        self._page: Page | None = None

    async def start(self, scheduler: Any) -> None:
        """Start the jobs; Dask calls this with the running scheduler."""
        self.scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._pools = {
            name: ThreadPoolExecutor(ANSWERING_THREADS, f"largek-{name}")
            for name in set(OPERATIONS.values())
        }
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._client: Client | None = None
        self._client_lock = threading.Lock()
        self._file_requests_lock = threading.Lock()
        process = f"{socket.gethostname()}, process {os.getpid()}, {uuid.uuid4().hex[:8]}"
        owner = f"the scheduler at {scheduler.address} ({process})"
        url = self.store or config.get("store") or default_store()
        try:
            self._jobs = await self._in_pool("answer", self._open, url, owner)
        except LargekError as error:
            # Log one clear line, because Dask's traceback that follows is very long.
            logger.error("largek cannot run jobs from the store %s: %s", url, error)
            raise
        self._has_begun = True
        self.store = url
        self._jobs.start()
        process_log.watch(scheduler)
        scheduler.handlers[HANDLER] = self._answer
        self._dask_target = scheduler.handlers[TARGET]
        scheduler.handlers[TARGET] = self._adaptive_target
        self._page = add_page(scheduler, self._jobs)
        self._metrics = JobsCollector(self._jobs.jobs)
        self._metrics.register()
        logger.info("largek stores its jobs in %s", url)

    def _open(self, url: str, owner: str) -> Jobs:
        records = Records(Folder(url, self.storage_options))
        records.check_writable()
        return Jobs(records, self._connect, owner, self._scheduler_file, self._worker_infos)

    def _scheduler_file(self, token: int) -> dict[str, Any]:
        about = {
            "type": "Scheduler",
            "address": self.scheduler.address,
            "dashboard": dashboard_of(self.scheduler),
            "started": self._started,
            "token": token,
            "version": __version__,
            "slurm_job": os.environ.get("SLURM_JOB_ID") or None,
            "tls": tls_files(self.scheduler.security),
        }
        return {"format": 1, **{name: value for name, value in about.items() if value is not None}}

    async def before_close(self) -> None:
        """Let jobs write their checkpoints; Dask calls this before the scheduler closes."""
        for pool in self._pools.values():
            pool.shutdown(wait=False)
        if not self._has_begun:
            return
        if HANDLER in self.scheduler.handlers:
            self.scheduler.handlers[HANDLER] = self._refuse
            self.scheduler.handlers[TARGET] = self._dask_target
        if self._page is not None:
            self._page.close()
        seconds = float(config.get("service.shutdown-seconds"))
        # Use a new thread, because all threads of the pools may be waiting.
        for name in await asyncio.to_thread(self._jobs.close, seconds):
            logger.warning("%s did not stop in time; it will resume from a checkpoint", name)
        self._metrics.close()
        process_log.unwatch(self.scheduler)
        if self._client is not None:
            await asyncio.to_thread(self._client.close)

    # --- from threads -----------------------------------------------------------------------------

    def _worker_infos(self) -> list[SchedulerWorker]:
        # Copy the table first: this is atomic, so no lock is needed.
        workers = tuple(dict.values(self.scheduler.workers))
        return [
            SchedulerWorker(
                frozenset(w.resources),
                w.status.name == "running",
                int(w.nthreads),
                int(w.memory_limit or 0),
            )
            for w in workers
        ]

    def _connect(self) -> Client:
        """Return the client shared by all jobs; its event loop runs in a separate thread."""
        with self._client_lock:
            if self._client is None or self._client.status not in ("running", "connecting"):
                self._client = Client(
                    self.scheduler.address,
                    set_as_default=False,
                    direct_to_workers=True,
                    security=driver_security(self.scheduler.security),
                    name="largek-driver",
                )
                self._client.register_plugin(WatchPlugin())
            return self._client

    # --- on the event loop ------------------------------------------------------------------------

    async def _in_pool(self, pool: str, function: Callable[..., Any], *args: Any) -> Any:
        call = partial(function, *args)
        return await self._loop.run_in_executor(self._pools[pool], call)

    def _adaptive_target(self, target_duration: Any = None) -> int:
        """Return the number of workers for ``cluster.adapt()``.

        Dask's own target depends on the number of tasks, but a job has only one task per worker.
        Dask would never request more workers, and would retire workers that wait for the end of a
        pass.
        """
        usual = self._dask_target(target_duration=target_duration)
        duration = target_duration or dask.config.get("distributed.adaptive.target-duration")
        wanted = self._jobs.workers_wanted(max(parse_timedelta(duration), 0.001))
        return int(max(usual, wanted))

    async def _answer(self, operation: str, arguments: str = "{}") -> dict[str, Any]:
        """Answer a client's request: parse its JSON arguments, and return errors as text."""
        pool = OPERATIONS.get(operation, "answer")
        answer: dict[str, Any] = await self._in_pool(pool, self._do, operation, arguments)
        return answer

    async def _refuse(self, operation: str, arguments: str = "{}") -> dict[str, str]:
        return {"away": f"the scheduler at {self.scheduler.address} is shutting down"}

    def _do(self, operation: str, arguments: str) -> dict[str, Any]:
        secrets: Any = None
        try:
            given, pool = read_arguments(arguments), OPERATIONS.get(operation)
            secrets = given.get("secrets")
            if pool is None:
                raise ParameterError(
                    f"this scheduler has largek_dask {__version__}, which has no operation "
                    f"{operation!r}: install the same version on both sides."
                )
            with self._limited(given.get("job_id") if pool == "files" else None):
                answer = getattr(self._jobs, operation)(**given)
                if operation == "model":
                    return message_of_model(answer)
                return {"answer": json.dumps(answer, allow_nan=False)}
        except Exception as error:
            redact = self._jobs.redactor(secrets)
            if not isinstance(error, LargekError | OSError):
                text = redact("".join(traceback.format_exception(error)))
                # Indent the text, so that it cannot forge a line of the log.
                shown = textwrap.indent(text, "    ", lambda line: True)
                logger.error("largek %s failed:\n%s", operation, shown)
            return {"error": type(error).__name__, "message": redact(str(error))}

    @contextlib.contextmanager
    def _limited(self, job_id: Any) -> Iterator[None]:
        """Limit concurrent requests for a job's files, so that one job cannot block all threads.

        Raises OutputError if many requests are in progress and the first has not been answered.
        """
        key, now = str(job_id), time.monotonic()
        with self._file_requests_lock:
            begun = self._file_requests.setdefault(key, [])
            waited = now - begun[0] if begun else 0.0
            if job_id is not None and len(begun) >= MOST_OF_A_JOB and waited >= HANGS_SECONDS:
                raise OutputError(
                    f"the storage of job {key[:80]} has not answered for {waited:.0f} s: try again "
                    "later."
                )
            begun.append(now)
        try:
            yield
        finally:
            with self._file_requests_lock:
                begun.remove(now)
                if not begun:
                    del self._file_requests[key]


def read_arguments(arguments: str) -> dict[str, Any]:
    """Parse the arguments of a request after checking its size."""
    if len(arguments) > MOST_ARGUMENTS:
        raise ParameterError(
            f"a request has {len(arguments):,} characters; at most {MOST_ARGUMENTS:,} are allowed."
        )
    given: dict[str, Any] = dict(json.loads(arguments))
    if len(json.dumps(given.get("secrets"))) > MOST_SECRETS:
        raise ParameterError(
            f"the values of storage_options may have at most {MOST_SECRETS:,} characters in all."
        )
    return given


def add_page(scheduler: Any, jobs: Jobs) -> Page | None:
    """Add the page of jobs to a scheduler's dashboard; return None without a dashboard.

    Errors are only logged, because jobs can run without the page.
    """
    application: Any = getattr(scheduler, "http_application", None)
    # Only these applications know the URL prefix of Dask's pages.
    pages = [one for one in getattr(application, "applications", ()) if hasattr(one, "prefix")]
    if not pages or not config.get("observe.dashboard"):
        return None
    try:
        from distributed.dashboard.scheduler import template_variables

        from largek_dask.service.web.page import Page

        navigation = template_variables(scheduler)["pages"]
        actions = bool(config.get("observe.actions"))
        hosts = Hosts(partial(dashboard_of, scheduler))
        return Page(application, pages[0].prefix, jobs, hosts, navigation, actions=actions)
    except Exception:
        logger.exception("The page of jobs cannot be added; jobs run without the page")
        return None


def dashboard_of(scheduler: Any) -> str | None:
    """Return the URL of a scheduler's dashboard; None without a dashboard."""
    if not getattr(scheduler, "http_server", None):
        return None
    # Replace a wildcard address, because other machines cannot connect to it.
    host = scheduler.http_server.address
    if host in ("0.0.0.0", "::", ""):
        host = get_address_host(scheduler.address)
    return str(format_dashboard_link(host, scheduler.http_server.port))


def driver_security(security: Security) -> Security:
    """Return the certificates of the jobs' client, by default the scheduler's certificates."""
    if not security.require_encryption and security.tls_ca_file is None:
        return security
    own = security.get_tls_config_for_role("scheduler")
    return Security(
        require_encryption=security.require_encryption,
        tls_ca_file=security.tls_ca_file,
        tls_client_cert=security.tls_client_cert or own["cert"],
        tls_client_key=security.tls_client_key or own["key"],
        tls_ciphers=security.tls_ciphers,
    )


def default_store() -> str:
    base = os.environ.get("XDG_STATE_HOME") or os.path.join("~", ".local", "state")
    return os.path.join(os.path.expanduser(base), "largek", "store")
