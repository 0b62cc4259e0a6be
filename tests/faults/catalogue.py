"""The faults that are done to running processes.

A fault says at which moment it strikes. Then a process is held up there, ``inject`` does its worst,
the process goes on if it still lives, the job has to come to its end, and ``heal`` cleans up.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from typing import Any, ClassVar

import psutil
from distributed import Client

from tests.faults.moments import Moment
from tests.faults.rig import ROOT, Rig

CHUNK = Moment("before", "chunk", "worker", nth=2)
STEP = Moment("before", "step")


class Fault:
    """Base of all faults."""

    moment: Moment = CHUNK
    redoes = True
    """Whether something has to be computed again."""
    follows: ClassVar[str]
    """Consequence, for the table in `docs/results/service.md`."""

    def __init__(self, moment: Moment | None = None) -> None:
        if moment is not None:
            self.moment = moment

    def submit(self, rig: Rig, service: Any, options: dict[str, Any]) -> Any:
        """How the job is submitted."""
        return service.submit(**options)

    def inject(self, rig: Rig, pid: int) -> None:
        """Strike, while the process ``pid`` is held up at the moment."""
        raise NotImplementedError

    def heal(self, rig: Rig) -> None:
        """Undo what outlasts the job; whoever was killed comes back by itself."""

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.moment}"


class KillWorker(Fault):
    """kill -9 of one worker, which its nanny restarts."""

    follows = "other workers take its chunks and rebuild their row state"

    def inject(self, rig: Rig, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)


class KillAllWorkers(Fault):
    """kill -9 of all workers at once."""

    follows = "the job waits, reports this, and continues when workers return"

    def inject(self, rig: Rig, pid: int) -> None:
        for worker in rig.worker_pids():
            os.kill(worker, signal.SIGKILL)


class KillNanny(Fault):
    """kill -9 of a nanny and its worker, as if a machine failed; a supervisor restarts them."""

    follows = "other workers take its chunks; the new worker gets some of them"

    def inject(self, rig: Rig, pid: int) -> None:
        rig.worker_of(pid).kill()


class TermWorker(Fault):
    """SIGTERM of a worker's nanny, as when a container stops."""

    follows = "the worker hands nothing over, as if it were killed"

    def inject(self, rig: Rig, pid: int) -> None:
        rig.worker_of(pid).send(signal.SIGTERM)


class StopWorker(Fault):
    """SIGSTOP of a worker for longer than the timeout."""

    follows = "the worker is given up after the timeout (here 3 s); its late result is ignored"

    def inject(self, rig: Rig, pid: int) -> None:
        self.pid = pid
        os.kill(pid, signal.SIGSTOP)

    def heal(self, rig: Rig) -> None:
        # The scheduler may have had enough of it, and its nanny another one.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)


class KillScheduler(Fault):
    """kill -9 of the scheduler, which is restarted on the same port."""

    follows = "the scheduler waits for its old lease (here 1.5 s) and resumes from the checkpoint"
    moment = STEP

    def inject(self, rig: Rig, pid: int) -> None:
        rig.scheduler.send(signal.SIGKILL)


class TermScheduler(Fault):
    """SIGTERM of the scheduler, whose jobs first write a checkpoint."""

    follows = "jobs write a checkpoint and release their leases before the scheduler exits"
    moment = STEP

    def __init__(self, moment: Moment | None = None) -> None:
        super().__init__(moment)
        # What is about to be published is published before it ends.
        self.redoes = self.moment.point != "publish"

    def inject(self, rig: Rig, pid: int) -> None:
        rig.scheduler.send(signal.SIGTERM)


class RestartClient(Fault):
    """``client.restart()`` replaces all workers and forgets all tasks."""

    follows = "tasks and broadcasts are created again on the new workers"

    def inject(self, rig: Rig, pid: int) -> None:
        def restart() -> None:
            with Client(rig.address, set_as_default=False) as client:
                client.restart(timeout="60s")

        self._thread = threading.Thread(target=restart)
        self._thread.start()

    def heal(self, rig: Rig) -> None:
        self._thread.join()


class NoWorkers(Fault):
    """All workers stop, and restart only after a while."""

    follows = "the job waits (here for 8 s) and continues"
    seconds = 8.0

    def inject(self, rig: Rig, pid: int) -> None:
        for worker in rig.workers:
            worker.hold()
        time.sleep(self.seconds)
        for worker in rig.workers:
            worker.resume()


class OutOfMemory(Fault):
    """A worker exceeds its memory limit until its nanny kills it."""

    follows = "its nanny restarts it; in the meantime, other workers take its chunks"
    moment = Moment("before", "chunk", "worker", nth=2, action="eat")

    def inject(self, rig: Rig, pid: int) -> None:
        # The order does it: the process takes more and more.
        psutil.Process(pid).wait(60)


class KillClient(Fault):
    """kill -9 of the client that submitted the job."""

    follows = "nothing: the job runs on the scheduler"
    redoes = False
    moment = STEP
    PROGRAM = """
import pickle, sys, largek_dask as lk
job = lk.connect(sys.argv[1]).submit(**pickle.loads(bytes.fromhex(sys.argv[2])))
print(job.id, flush=True)
job.wait()
"""

    def submit(self, rig: Rig, service: Any, options: dict[str, Any]) -> Any:
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM, rig.address, pickle.dumps(options).hex()],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        assert self._process.stdout is not None
        return service.job(self._process.stdout.readline().strip())

    def inject(self, rig: Rig, pid: int) -> None:
        self._process.kill()
        self._process.communicate()


class ChangingWorkers(Fault):
    """Workers repeatedly join and are retired while they compute."""

    follows = "chunks move to new workers and away from retired workers"
    redoes = False
    times = 3

    def inject(self, rig: Rig, pid: int) -> None:
        def change() -> None:
            with Client(rig.address, set_as_default=False) as client:
                for _ in range(self.times):
                    before = set(client.scheduler_info(n_workers=-1)["workers"])
                    rig.add_worker()
                    client.wait_for_workers(len(before) + 1, 60)
                    client.retire_workers([min(before)], close_workers=False)

        self._thread = threading.Thread(target=change)
        self._thread.start()

    def heal(self, rig: Rig) -> None:
        self._thread.join()


FAULTS: tuple[type[Fault], ...] = (
    KillWorker,
    KillAllWorkers,
    KillNanny,
    TermWorker,
    StopWorker,
    KillScheduler,
    TermScheduler,
    KillClient,
    RestartClient,
    NoWorkers,
    OutOfMemory,
    ChangingWorkers,
)
