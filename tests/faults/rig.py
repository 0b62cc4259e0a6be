"""A scheduler and workers in processes of their own, and a supervisor that brings them back.

That is how the service is meant to be deployed: a worker leaves when its scheduler is gone, so
something has to start it again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

import largek_dask as lk
from largek_dask.service.scheduler_file import NAME
from tests.faults.deadly import DEADLY
from tests.faults.moments import FOLDER, Meeting, Moment, count_visits, prepare

ROOT = Path(__file__).parents[2]
WORKERS_SECONDS = 180
"""How long workers are waited for: several times what they take on a busy machine."""
PYTHON_PAUSE = 0.2
"""Before a process that has ended is started again."""

QUICK: dict[str, Any] = {
    "LARGEK__SERVICE__BEAT_SECONDS": 0.3,
    "LARGEK__SERVICE__PATIENCE_SECONDS": 1.5,
    "LARGEK__SERVICE__SHUTDOWN_SECONDS": 10,
    "LARGEK__PASSES__SILENT_SECONDS": 3,
    "LARGEK__CHECKPOINTS__SECONDS": 0,
    # Small chunks are not read together: there are to be many.
    "LARGEK__DATA__READ_CHUNK_BYTES": 1,
    "DISTRIBUTED__SCHEDULER__WORKER_TTL": "6s",
    "DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s",
    "DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "spawn",
    # As in conftest.py: what is sampled for pages all the time.
    "DISTRIBUTED__WORKER__PROFILE__ENABLED": False,
    "DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
    "DISTRIBUTED__ADMIN__SYSTEM_MONITOR__DISK": False,
}
"""Waits are shorter than a deployment's, and chunks smaller."""
WAITS: dict[str, Any] = dict.fromkeys(
    (
        "LARGEK__PASSES__SILENT_SECONDS",
        "DISTRIBUTED__SCHEDULER__WORKER_TTL",
        "DISTRIBUTED__COMM__TIMEOUTS__CONNECT",
    )
)
"""Settings for a ``Rig`` that leaves Dask's timeouts and our patience as a deployment has them."""


class Supervised:
    """A command that is started again whenever it ends."""

    def __init__(self, command: Sequence[str], env: dict[str, str], log: Path) -> None:
        self._command, self._env, self._log = list(command), env, log
        self._lock = threading.Lock()
        self._wanted = True
        self.starts = 0
        self._process = self._start()
        self._thread = threading.Thread(target=self._watch, name=f"supervisor-{log.stem}")
        self._thread.start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        with open(self._log, "ab") as log:
            return subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._env,
                cwd=ROOT,
                start_new_session=True,
            )

    def _watch(self) -> None:
        while self._wanted:
            process = self._process
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PYTHON_PAUSE)
                # Whatever it has left behind goes with it, as in a container.
                _kill_group(process.pid)
                time.sleep(PYTHON_PAUSE)
                with self._lock:
                    if self._wanted and self._process is process:
                        self._process = self._start()

    @property
    def pid(self) -> int:
        """The number of the process that was started last; 0 while it is held."""
        return self._process.pid

    def send(self, number: int, *, all_of_it: bool = False) -> None:
        """Send a signal to it alone, or to its children as well."""
        if (pid := self.pid) == 0:
            return
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if all_of_it else os.kill)(pid, number)

    def kill(self) -> None:
        """kill -9 of it and its children."""
        _kill_group(self.pid)

    def hold(self) -> None:
        """End it with its children, and do not start it again until :meth:`resume`."""
        with self._lock:
            if self.pid == 0:
                return
            _kill_group(self.pid)
            self._process = _Nothing(self._process)  # type: ignore[assignment]

    def resume(self) -> None:
        """Start it after :meth:`hold`."""
        with self._lock:
            self._process = self._start()

    def close(self) -> None:
        """End it for good."""
        self._wanted = False
        with self._lock:
            self.send(signal.SIGTERM)
        self._thread.join()
        if self.pid == 0:
            return
        if self.pid == 0:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        _kill_group(self.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)


class Scheduler(Supervised):
    """A scheduler, which its store can be taken from without anybody else losing it."""

    def __init__(
        self, command: Sequence[str], env: dict[str, str], log: Path, mounted: Path
    ) -> None:
        super().__init__(command, env, log)
        self._mounted, self._target = mounted, mounted.readlink()

    @property
    def sees_store(self) -> bool:
        """Whether there is anything where its store is."""
        return self._mounted.exists()

    def unmount(self) -> None:
        """Nothing is where its store was."""
        self._mounted.unlink()

    def mount(self) -> None:
        """Its store is back."""
        self._mounted.symlink_to(self._target)


class _Nothing:
    """Stands for a process that is not to be started."""

    pid = 0
    """The number that the process had may be another one's now."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)
        raise subprocess.TimeoutExpired("nothing", seconds)


def _kill_group(pid: int) -> None:
    if pid == 0:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def free_port() -> int:
    """A port that nobody listens to at the moment."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Rig:
    """A cluster whose every process may be killed.

    Parameters
    ----------
    folder : Path
        For everything.
    n_workers : int
    memory_limit : str
        Of a worker.
    deadly : str
        See ``deadly.py``.
    host : str
        Address of the scheduler and of the first workers.
    dashboard : sequence of str
        Where the scheduler's dashboard is, as options of ``dask scheduler``.
    moves : bool
        The scheduler has another port each time that it is started; clients and workers find it by
        the file in its store.
    nannies : bool
        Whether workers have any. Without, there are half as many processes to start.
    settings
        Added to ``QUICK``: names of Dask's settings as in its environment; None: as it is.
    """

    def __init__(
        self,
        folder: Path,
        n_workers: int = 2,
        memory_limit: str = "1GB",
        deadly: str = "",
        host: str = "127.0.0.1",
        dashboard: Sequence[str] = ("--dashboard-address", ":0"),
        moves: bool = False,
        nannies: bool = True,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.clean_visits: dict[tuple[str, str], int] = {}
        """How often a clean job, by its case's name, comes to a point."""
        prepare(folder)
        self._port = 0 if moves else free_port()
        self._host, self._dashboard = host, list(dashboard)
        self.store = folder / "shared" / "store"
        self.address = str(self.store / NAME) if moves else f"tcp://{host}:{self._port}"
        # Who looks for a scheduler where it was begins anew, and reads where it is.
        self._patience = "10" if moves else "20"
        self._at = ("--scheduler-file", self.address) if moves else (self.address,)
        self._memory_limit = memory_limit
        self._nanny = "--nanny" if nannies else "--no-nanny"
        self._env = {
            **os.environ,
            FOLDER: str(folder),
            **({DEADLY: deadly} if deadly else {}),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            **{
                f"DASK_{name}": str(value)
                for name, value in (QUICK | settings).items()
                if value is not None
            },
        }
        self.schedulers: list[Scheduler] = []
        self.add_scheduler()
        self.workers: list[Supervised] = []
        for _ in range(n_workers):
            self.add_worker()

    @property
    def scheduler(self) -> Scheduler:
        """The one that was started last."""
        return self.schedulers[-1]

    def add_scheduler(self) -> Scheduler:
        """One more scheduler on the same store, as on another machine: it has its own way there."""
        number = len(self.schedulers)
        view = self.folder / f"mounted{number}"
        self.store.mkdir(parents=True, exist_ok=True)
        view.symlink_to(self.store.parent)
        command = [
            *_dask("scheduler"), "--host", self._host, "--port", str(self._port),
            *self._dashboard, "--preload", "tests.faults.moments",
            "--preload", "largek_dask.service.preload", "--largek-store",
            str(view / self.store.name),
        ]  # fmt: skip
        log = self.folder / f"scheduler{number}.log"
        self.schedulers.append(Scheduler(command, self._env, log, view))
        return self.scheduler

    def add_worker(self, host: str | None = None, within: Sequence[str] = ()) -> Supervised:
        """One more worker, at another address and started by another command if these are given."""
        scratch = self.folder / "scratch"
        command = [
            *within, *_dask("worker"), *self._at, self._nanny, "--nthreads", "1",
            "--host", host or self._host,
            "--no-dashboard", "--memory-limit", self._memory_limit, "--local-directory",
            str(scratch), "--preload", "tests.faults.moments", "--death-timeout", self._patience,
        ]  # fmt: skip
        log = self.folder / f"worker{len(self.workers)}.log"
        worker = Supervised(command, self._env, log)
        self.workers.append(worker)
        return worker

    def worker_pids(self) -> list[int]:
        """The processes that compute, without their nannies."""
        found = []
        for worker in self.workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                children = psutil.Process(worker.pid).children(recursive=True)
                found += [p.pid for p in children if "spawn_main" in " ".join(p.cmdline())]
        return found

    def worker_of(self, pid: int) -> Supervised:
        """The parent of a process."""
        parents = [process.pid for process in psutil.Process(pid).parents()]
        return next(worker for worker in self.workers if worker.pid in parents)

    @contextlib.contextmanager
    def connected(self, n_workers: int | None = None) -> Iterator[lk.Service]:
        """A client, once the scheduler answers and all workers are there."""
        until = time.monotonic() + 60
        while True:
            try:
                service = lk.connect(self.address, timeout="5s")
                break
            except Exception:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
        try:
            # One that looks for a scheduler where it was has to give up first, and start again.
            wanted = len(self.workers) if n_workers is None else n_workers
            service.client.wait_for_workers(wanted, WORKERS_SECONDS)
            yield service
        finally:
            service.close()

    def meet(self, moment: Moment) -> Meeting:
        """Hold up whoever comes to this moment."""
        return Meeting(self.folder, moment)

    def visits(self, point: str) -> int:
        """How often all processes together have come to a point."""
        return count_visits(self.folder, point)

    def logs(self) -> str:
        """The last lines of every process, for a test that failed."""
        texts = []
        for path in sorted(self.folder.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-40:]
            texts.append(f"--- {path.name}\n" + "\n".join(lines))
        return "\n".join(texts)

    def close(self) -> None:
        """End every process."""
        everything = (*self.workers, *self.schedulers)
        for process in everything:
            process.send(signal.SIGCONT)
        closing = [threading.Thread(target=process.close) for process in everything]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _dask(command: str) -> list[str]:
    return [sys.executable, "-m", "dask", command]
