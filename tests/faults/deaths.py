"""``python -m tests.faults.deaths --n 50``: a worker that dies costs its jobs seconds.

Workers of a running job are killed at random moments, with Dask's own timeouts, and others are
started in their place. Events tell how long no step ended.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

import largek_dask as lk
from tests.faults.cases import Case
from tests.faults.drill import (
    TICK,
    Steps,
    Strike,
    asked,
    lasting,
    longest_gap,
    table,
    until,
    write_curve,
)
from tests.faults.rig import WAITS, Rig, Supervised

MOST_SECONDS = 5.0
"""No job stands still for longer."""
GRACE_SECONDS = 1.0
"""What is left to a worker that is preempted, from SIGTERM to SIGKILL."""
BEFORE_SECONDS = 1.0
"""Most seconds from a step on all workers to a strike."""
N_ITER = 300
LEFT = 60
"""Steps that a job has to have before it, or another one is begun: so a death is outlived."""
AS_DEPLOYED = {**WAITS, "LARGEK__CHECKPOINTS__SECONDS": None}


def killed(worker: Supervised) -> None:
    """SIGKILL of a worker and its nanny."""
    worker.send(signal.SIGKILL, all_of_it=True)


def ended(worker: Supervised) -> None:
    """SIGTERM of its nanny, as a container gets it."""
    worker.send(signal.SIGTERM)


def preempted(worker: Supervised) -> None:
    """SIGTERM of all its processes, and SIGKILL after a grace, as a batch system does it."""
    pid = worker.pid
    worker.send(signal.SIGTERM, all_of_it=True)
    over = time.monotonic() + GRACE_SECONDS
    while worker.pid == pid and psutil.pid_exists(pid) and time.monotonic() < over:
        time.sleep(TICK)
    if worker.pid == pid:
        worker.send(signal.SIGKILL, all_of_it=True)


KINDS: dict[str, Callable[[Supervised], None]] = {
    "SIGKILL": killed,
    "SIGTERM": ended,
    "preempted": preempted,
}


class Jobs:
    """One job after the other, so that there is always one that runs.

    Parameters
    ----------
    service : Service
    case : Case
        What each of them is.
    folder : Path
        For their outputs.
    """

    def __init__(self, service: lk.Service, case: Case, folder: Path) -> None:
        self._service, self._case, self._folder = service, case, folder
        self._number = 0
        self._begin()

    def _begin(self) -> None:
        self._number += 1
        output = self._folder / f"out{self._number}"
        self._job = self._service.submit(**self._case.options(), output=str(output))
        self.steps = Steps(output)

    def running(self) -> Steps:
        """The events of a job that is going to run for a while."""
        if self.steps.n_iter() > self._case.max_iter - LEFT:
            self.finish()
            self._begin()
        return self.steps

    def finish(self) -> None:
        """See the present one through: it has the model of a job that nothing has happened to."""
        self._job.wait()
        status = self._job.status()
        assert status["state"] == "finished", status
        assert status["result"]["digest"] == self._case.digest, status
        assert status["result"]["n_iter"] == self._case.max_iter, "it was to last"


def there(service: lk.Service) -> set[str]:
    """Addresses of the workers that the scheduler has."""
    return set(service.client.scheduler_info(n_workers=-1)["workers"])


def processes_of(worker: Supervised) -> list[psutil.Process]:
    """A nanny and the process that computes."""
    nanny = psutil.Process(worker.pid)
    return [nanny, *nanny.children(recursive=True)]


def lives(process: psutil.Process) -> bool:
    """Whether it can still do anything."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def n_at_work(events: list[dict[str, Any]]) -> int:
    """On how many workers a job's passes run, as it says."""
    n = 0
    for event in events:
        if event["event"] == "started":
            n = event["n_workers"]
        elif event["event"] == "worker":
            n += {"left": -1, "joined": 1, "back": 1}.get(event["change"], 0)
    return n


def left_in(events: list[dict[str, Any]]) -> set[str]:
    """Addresses of workers that have left, as the job says."""
    return {e["address"] for e in events if e["event"] == "worker" and e["change"] == "left"}


def all_at_work(rig: Rig, service: lk.Service, jobs: Jobs) -> set[str]:
    """Addresses of all workers, once there is a job that runs on all of them."""
    n, found = n_at_work(jobs.running().look()), there(service)
    return found if n == len(found) == len(rig.workers) else set()


def strike(rig: Rig, service: lk.Service, jobs: Jobs, kind: str, rng: random.Random) -> Strike:
    """Have one worker die, and see how long its job stands still."""
    before = until(lambda: all_at_work(rig, service, jobs), "all workers to take part")
    jobs.steps.after(time.time())
    time.sleep(rng.uniform(0.0, BEFORE_SECONDS))
    steps = jobs.steps
    worker = rng.choice(rig.workers)
    dying = processes_of(worker)
    assert len(dying) > 1, "a nanny and who computes"
    n_events = len(steps.look())
    struck = time.time()
    KINDS[kind](worker)
    until(lambda: not any(lives(process) for process in dying), f"the end of {dying}")
    dead = time.time()
    after = steps.after(dead)
    found = Strike(kind, longest_gap(steps.times(), struck, after))
    # The pass that was under way may not have needed it any more.
    left = until(lambda: left_in(steps.look()[n_events:]) & before, "the job to know")
    until(lambda: not left & there(service), "the scheduler to know")
    return found


def drill(folder: Path, n: int, seed: int = 0, n_workers: int = 2) -> Iterator[Strike]:
    """So many deaths, each kind in turn; the digest of every job is that of an undisturbed one."""
    rng = random.Random(seed)
    data = write_curve(folder)
    case = lasting(data, "long", N_ITER)
    with Rig(folder / "rig", n_workers=n_workers, **AS_DEPLOYED) as rig, rig.connected() as service:
        jobs = Jobs(service, case, folder)
        for number in range(n):
            yield strike(rig, service, jobs, list(KINDS)[number % len(KINDS)], rng)
        jobs.finish()


def main() -> int:
    """Strike, print, and say whether all was well."""
    given = asked("tests.faults.deaths", __doc__, 50)
    strikes, slow = [], []
    with tempfile.TemporaryDirectory(prefix="largek-deaths-") as name:
        for number, found in enumerate(drill(Path(name), given.n, given.seed)):
            print(f"{number:3d} {found.kind}: {found.seconds:.2f} s, load {found.load:.1f}")
            sys.stdout.flush()
            strikes.append(found)
            slow += [f"{number} {found}"] if found.seconds > MOST_SECONDS else []
    command = f"python -m tests.faults.deaths --n {given.n}"
    print(table("death of a worker", strikes, command))
    for line in slow:
        print("WRONG", line)
    return 1 if slow or len(strikes) < given.n else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
