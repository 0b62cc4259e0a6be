"""Scenarios that take minutes, each on a cluster of its own: many jobs, leaks, deadly chunks."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import dask
import psutil
from distributed import Client, LocalCluster

import largek_dask as lk
from largek_dask.errors import LargekError
from tests.faults.broadcasts import killed_in_broadcasts, patient_rig
from tests.faults.cases import Case
from tests.faults.catalogue import STEP, Fault, KillAllWorkers, KillScheduler
from tests.faults.moments import Moment
from tests.faults.rig import ROOT, Rig
from tests.faults.strikes import strike

Scenario = Callable[[Path, dict[str, Case]], str]


def many_jobs(folder: Path, cases: dict[str, Case]) -> str:
    """50 jobs, 4 at a time, while a worker is killed every few seconds."""
    over = threading.Event()
    killed = 0

    def kill(rig: Rig) -> None:
        nonlocal killed
        rng = random.Random(0)
        while not over.wait(8.0):
            if pids := rig.worker_pids():
                os.kill(rng.choice(pids), signal.SIGKILL)
                killed += 1

    with Rig(folder) as rig, rig.connected() as service:
        killer = threading.Thread(target=kill, args=(rig,))
        killer.start()
        try:
            began = time.monotonic()
            chosen = [list(cases.values())[i % len(cases)] for i in range(50)]
            jobs = [
                (case, service.submit(**case.options(), output=str(folder / f"out{i}")))
                for i, case in enumerate(chosen)
            ]
            most = 0
            for case, job in jobs:
                while not job.done():
                    states = [status["state"] for status in service.jobs(limit=None).rows]
                    most = max(most, states.count("running"))
                    time.sleep(1.0)
                result = job.status()["result"]
                assert result["state"] == "finished", result
                assert result["digest"] == case.digest
            seconds = time.monotonic() - began
        finally:
            over.set()
            killer.join()
    assert most == 4
    return f"50 jobs in {seconds:.0f} s, {killed} workers killed"


def _tidy() -> None:
    """What is free goes back to the system, so that what is left is in use."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def leaks(folder: Path, cases: dict[str, Case]) -> str:
    """20 jobs on one cluster leave no tasks, threads, files or memory behind.

    Dask keeps the last 1,000 messages to every worker, here 20, so that they are soon full.
    """

    def figures(rig: Rig, client: Client) -> dict[str, float]:
        def tasks(dask_scheduler: Any = None) -> int:
            return sum(str(key).startswith("largek") for key in dask_scheduler.tasks)

        client.run(_tidy)
        client.run_on_scheduler(_tidy)
        time.sleep(2.0)
        found: dict[str, float] = {"tasks": client.run_on_scheduler(tasks)}
        scheduler = psutil.Process(rig.scheduler.pid)
        workers = [psutil.Process(pid) for pid in rig.worker_pids()]
        for name, processes in (("scheduler", [scheduler]), ("workers", workers)):
            found[f"{name} memory"] = sum(p.memory_info().rss for p in processes)
            found[f"{name} threads"] = sum(p.num_threads() for p in processes)
            found[f"{name} files"] = sum(p.num_fds() for p in processes)
        return found

    logs = {"DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH": 20}
    with Rig(folder, **logs) as rig, rig.connected() as service:
        chosen = list(cases.values())

        def run(numbers: range) -> None:
            for i in numbers:
                case = chosen[i % len(chosen)]
                job = service.submit(**case.options(), output=str(folder / f"out{i}"))
                assert job.wait(90) == "finished"

        # The first ones fill caches and compile.
        run(range(10))
        before = figures(rig, service.client)
        run(range(10, 30))
        after = figures(rig, service.client)
    assert before["tasks"] == after["tasks"] == 0
    for name in before:
        limit = 1.05 if name.endswith("memory") else 1.0
        slack = 2 if name.endswith(("threads", "files")) else 0
        assert after[name] <= limit * before[name] + slack, (name, before, after)
    grown = [f"{n} {100 * (after[n] / before[n] - 1):+.1f} %" for n in before if before[n]]
    return f"20 further jobs: {', '.join(grown)}"


def deadly_chunk(folder: Path, cases: dict[str, Case]) -> str:
    """A chunk kills every worker that reads it; only the job with this chunk fails."""
    case = cases["lloyd"]
    data = Path(case.data)
    with Rig(folder, deadly=str(data / "c" / "7")) as rig, rig.connected() as service:
        began = time.monotonic()
        bad = service.submit(
            **{**case.options(), "data": f"deadly://{data}"}, output=str(folder / "bad")
        )
        good = service.submit(**case.options(), output=str(folder / "good"))
        try:
            bad.result(180)
        except LargekError as error:
            said = str(error)
        seconds = time.monotonic() - began
        # It is handed out until its retries are used up, unless Dask says first that it is deadly.
        blamed = "killed every worker that it was given to|failed 6 times with its worker"
        assert re.match(rf"chunk 7 .* ({blamed})", said), said
        assert good.wait(180) == "finished"
        assert good.status()["result"]["digest"] == case.digest
    return f"failed after {seconds:.0f} s, naming the chunk; the other job finished"


class Partition(Fault):
    """The network between the scheduler and one of its workers is cut."""

    moment = STEP
    namespace = f"largek{os.getpid() % 10_000}"

    def inject(self, rig: Rig, pid: int) -> None:
        _ip(f"link set {self.namespace} down")

    def heal(self, rig: Rig) -> None:
        _ip(f"link set {self.namespace} up")


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True)


def partition(folder: Path, cases: dict[str, Case]) -> str:
    """A worker in a separate network is disconnected, and reconnects."""
    name, net = Partition.namespace, "10.213.77"
    try:
        _ip(f"netns add {name}")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"not possible here: {error}"
    try:
        _ip(f"link add {name} type veth peer name inside netns {name}")
        _ip(f"addr add {net}.1/24 dev {name}")
        _ip(f"link set {name} up")
        for command in (f"addr add {net}.2/24 dev inside", "link set inside up", "link set lo up"):
            _ip(f"-n {name} {command}")
        told = []
        with Rig(folder, n_workers=1, host=f"{net}.1") as rig:
            rig.add_worker(f"{net}.2", ["ip", "netns", "exec", name])
            for case in cases.values():
                with rig.connected() as service:
                    fault = Partition()
                    outcome = strike(rig, service, case, fault, folder / case.name)
                    outcome.check(fault)
                    told.append(f"{outcome.recovery:.1f} s")
        return f"recovered in {', '.join(told)}"
    finally:
        _ip(f"netns del {name}")


class KillHolder(Fault):
    """kill -9 of one worker while its total waits there to be fetched."""

    def inject(self, rig: Rig, pid: int) -> None:
        os.kill(rig.worker_pids()[0], signal.SIGKILL)


def large_models(folder: Path, cases: dict[str, Case]) -> str:
    """Workers are killed during broadcasts and tree reductions."""
    case = dataclasses.replace(cases["lloyd"], name="large", n_clusters=500)
    moments = [Moment(when, "scatter") for when in ("before", "after")]
    faults: list[Fault] = [KillScheduler(moment) for moment in moments]
    faults += [KillAllWorkers(moment) for moment in moments]
    faults += [kind(Moment("before", "reduce")) for kind in (KillAllWorkers, KillHolder)]
    told = []
    with Rig(folder, n_workers=3, LARGEK__PASSES__TREE_BYTES=1) as rig:
        for number, fault in enumerate(faults):
            with rig.connected() as service:
                outcome = strike(rig, service, case, fault, folder / f"out{number}")
            outcome.check(fault)
            told.append(f"{outcome.recovery:.1f} s")
    return f"recovered in {', '.join(told)}"


def stopped_worker(folder: Path, cases: dict[str, Case]) -> str:
    """SIGSTOP of a worker for 30 s, while and after which jobs run one after another."""
    with Rig(folder, DISTRIBUTED__SCHEDULER__WORKER_TTL="120s") as rig, rig.connected() as service:
        pid = rig.worker_pids()[0]
        meeting = rig.meet(Moment("before", "chunk", "worker", nth=20))
        began: float | None = None
        ended = []
        going = False
        while not going or len(ended) < 2 * len(cases):
            case = list(cases.values())[len(ended) % len(cases)]
            job = service.submit(**case.options(), output=str(folder / f"out{len(ended)}"))
            if began is None:
                # In the middle of a chunk, so that its answer is there when it goes on.
                pid = meeting.wait()
                began = time.monotonic()
                os.kill(pid, signal.SIGSTOP)
                meeting.release()
            while not job.done():
                if not going and time.monotonic() > began + 30:
                    os.kill(pid, signal.SIGCONT)
                    going, back_in = True, len(ended)
                time.sleep(0.05)
            result = job.status()["result"]
            assert result["state"] == "finished", result
            assert result["digest"] == case.digest
            ended.append(result)
        assert pid in rig.worker_pids(), "it was replaced, not worked around"
    return f"{len(ended)} jobs finished, {back_in} of them before the worker resumed"


def adaptive(folder: Path, cases: dict[str, Case]) -> str:
    """``cluster.adapt()`` adds workers while jobs run, and closes them when there is no work."""
    with (
        dask.config.set({"largek.data.read-chunk-bytes": 1}),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        cluster.adapt(minimum=1, maximum=3, interval="300ms", wait_count=2, target_duration="10ms")
        service = lk.connect(client, store=str(folder / "store"))
        most, n_jobs = 1, 0
        until = time.monotonic() + 180
        # Jobs are shorter than a worker takes to start: as many as it takes.
        while most < 3 or n_jobs < len(cases):
            assert time.monotonic() < until, "it does not grow"
            case = list(cases.values())[n_jobs % len(cases)]
            job = service.submit(**case.options(), output=str(folder / f"out{n_jobs}"))
            while not job.done():
                most = max(most, len(client.scheduler_info(n_workers=-1)["workers"]))
                time.sleep(0.05)
            assert job.status()["result"]["digest"] == case.digest
            n_jobs += 1
        while (size := len(client.scheduler_info(n_workers=-1)["workers"])) > 1:
            assert time.monotonic() < until, "it does not shrink"
            time.sleep(0.05)
    return f"{n_jobs} jobs on up to {most} workers, {size} afterwards"


def local_disk(folder: Path, cases: dict[str, Case]) -> str:
    """The process dies at every fifth change of a local disk, and another process continues."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.faults.local_disk", str(folder), "5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.replace("\n", "; ")


def broadcasts(folder: Path, cases: dict[str, Case]) -> str:
    """50 workers die while 8 MB are on their way to them, with Dask's own timeouts."""
    folder.mkdir()
    with patient_rig(folder / "rig") as rig:
        found = killed_in_broadcasts(rig, folder / "rows", 50)
    seconds = f"{median(found):.1f} s after the death, at most {max(found):.1f} s"
    return f"{len(found)} passes ended {seconds}"


LONG: tuple[Scenario, ...] = (
    broadcasts,
    deadly_chunk,
    partition,
    large_models,
    stopped_worker,
    adaptive,
    leaks,
    many_jobs,
    local_disk,
)
