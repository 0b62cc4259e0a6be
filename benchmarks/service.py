"""Compare a job with the same fit without the service, with other clients and killed workers.

    python -m benchmarks.service [--scale 0.1] [--write]

A scheduler and workers with one thread each run in separate processes (`tests.faults.rig`). They
fit set B (1,000,000 × 18) from a Zarr store by Lloyd's algorithm, whose passes all take the same
time. The job and the same fit through `client=` (with the same checkpoints and labels) alternate,
and medians of wall seconds are reported. During the jobs, another client continuously asks the
scheduler for its cores, and submits trivial tasks to the workers.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import largek_dask as lk
from benchmarks.common import cpu_description, new_parser, parse
from benchmarks.sets import prepare
from benchmarks.tables import publish, table_of
from tests.faults.rig import QUICK, Rig

TARGETS = {
    "overhead": ("extra time of a job over the same fit through `client=`", "%", "<=", 3.0),
    "first_pass": ("time from submission to the first pass", "s", "<=", 1.0),
    "p99": (
        "p99 latency of another client's calls to the scheduler during a job",
        "ms",
        "<=",
        25.0,
    ),
    "slowest": ("slowest trivial task of this client on the busy workers", "s", "<=", 2.5),
    "killed": (
        "time with kill -9 of a worker every 10 passes, relative to a run without kills",
        "x",
        "<=",
        2.0,
    ),
}
K, PASSES = 1000, 40
KILLED_K, KILLED_PASSES, EVERY = 2000, 100, 10
ROUNDS = 3


def add_one(x: int) -> int:
    return x + 1


class Stranger(threading.Thread):
    """Another client of the same cluster, which records its waiting times."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.address, self.over = address, threading.Event()
        self.calls: list[float] = []
        self.tasks: list[float] = []

    def run(self) -> None:
        """Send requests and submit tasks until the thread is stopped."""
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            while not self.over.wait(0.02):
                began = time.perf_counter()
                client.sync(client.scheduler.ncores)
                self.calls.append(time.perf_counter() - began)
                if len(self.calls) % 10 == 0:
                    began = time.perf_counter()
                    client.submit(add_one, 1, pure=False).result()
                    self.tasks.append(time.perf_counter() - began)


def through_client(address: str, store: str, folder: Path, k: int, passes: int) -> float:
    """Return wall seconds of the fit without the service."""
    from distributed import Client

    from largek_dask.driver.options import FitOptions
    from largek_dask.driver.storage import Folder
    from largek_dask.service.runner import fit_into

    with Client(address, set_as_default=False) as client:
        began = time.perf_counter()
        fit_into(
            Folder(str(folder)),
            lk.open_rows(store),
            FitOptions(n_clusters=k, algorithm=lk.Lloyd(), init="random", max_iter=passes, tol=0.0),
            labels=True,
            client=client,
        )
        return time.perf_counter() - began


def as_job(
    address: str,
    store: str,
    folder: Path,
    k: int,
    passes: int,
    seen: Callable[[dict[str, Any]], object] = lambda event: None,
) -> tuple[float, float]:
    """Return wall seconds from submission to the end, and to the first pass."""
    with lk.connect(address) as service:
        began = time.perf_counter()
        job = service.submit(
            store,
            algorithm=lk.Lloyd(),
            n_clusters=k,
            output=str(folder),
            init="random",
            max_iter=passes,
            tol=0.0,
        )
        first = None
        for event in job.events():
            if event["event"] == "started":
                first = time.perf_counter() - began
            seen(event)
        job.result()
        assert first is not None
        return time.perf_counter() - began, first


class Killer:
    """Kill a random worker's process every few steps."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.at, self.kills = rig, EVERY, 0
        self.random = random.Random(0)

    def __call__(self, event: dict[str, Any]) -> None:
        """Follow the job."""
        if event["event"] != "step" or event["step"] < self.at:
            return
        self.at += EVERY
        os.kill(self.random.choice(sorted(self.rig.worker_pids())), signal.SIGKILL)
        self.kills += 1


def measure(folder: Path, scale: float) -> dict[str, float]:
    store = str(folder / "B.zarr")
    lk.ingest(np.load(prepare("B", folder), mmap_mode="r"), store, progress=False)
    passes, many = max(3, round(PASSES * scale)), max(2 * EVERY, round(KILLED_PASSES * scale))
    figures: dict[str, float] = {}
    # Use the timeouts of a deployment.
    settings: dict[str, Any] = {"memory_limit": "auto", **dict.fromkeys(QUICK)}
    with Rig(folder / "two", 2, **settings) as rig, rig.connected():
        address = rig.address
        through_client(address, store, folder / "warm", K, 2)
        stranger = Stranger(address)
        plain, jobs, firsts = [], [], []
        for turn in range(ROUNDS):
            plain.append(through_client(address, store, folder / f"fit{turn}", K, passes))
            whole, first = as_job(address, store, folder / f"job{turn}", K, passes)
            jobs.append(whole)
            firsts.append(first)
            print(f"fit {plain[-1]:.2f} s, job {whole:.2f} s, first pass {first:.2f} s", flush=True)
        stranger.start()
        as_job(address, store, folder / "watched", K, passes)
        stranger.over.set()
        stranger.join()
    figures["overhead"] = 100 * (float(np.median(jobs)) / float(np.median(plain)) - 1)
    figures["first_pass"] = float(np.median(firsts))
    figures["p99"] = 1e3 * float(np.percentile(stranger.calls, 99))
    figures["slowest"] = max(stranger.tasks)
    figures["fit_seconds"] = float(np.median(plain))
    with Rig(folder / "three", 3, **settings) as rig, rig.connected():
        address = rig.address
        as_job(address, store, folder / "warm3", KILLED_K, 2)
        clean, _ = as_job(address, store, folder / "clean", KILLED_K, many)
        killer = Killer(rig)
        dirty, _ = as_job(address, store, folder / "dirty", KILLED_K, many, killer)
        print(f"clean {clean:.1f} s, {killer.kills} kills {dirty:.1f} s", flush=True)
    digests = {
        lk.load_model(str(folder / name / "model.zarr")).digest() for name in ("clean", "dirty")
    }
    assert len(digests) == 1, "workers that died have changed the result"
    return figures | {
        "killed": dirty / clean, "kills": killer.kills,
        "clean_seconds": clean, "passes": many,
    }  # fmt: skip


def table(result: dict[str, Any]) -> str:
    found = result["figures"]
    rows = [
        [what, f"{found[name]:.3g} {unit}", f"{sign} {aim:g} {unit}"]
        for name, (what, unit, sign, aim) in TARGETS.items()
    ]
    note = (
        f"The fits use set B with k = {K:,} and two workers. The plain fit takes "
        f"{found['fit_seconds']:.1f} s. The run in which workers are killed has "
        f"k = {KILLED_K:,}, three workers, and {found['kills']:.0f} kills in "
        f"{found['passes']:.0f} passes; without kills, this run takes "
        f"{found['clean_seconds']:.0f} s. All workers have one thread. Processor: {result['cpu']}. "
        "This table was made by `python -m benchmarks.service --write`."
    )
    return "\n".join([*table_of(["what", "measured", "target"], rows), "", note])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for numbers of passes")
    args = parse(parser)
    with tempfile.TemporaryDirectory() as folder:
        result = {"cpu": cpu_description(), "figures": measure(Path(folder), args.scale)}
    publish("service", result, write=args.write)


if __name__ == "__main__":
    main()
