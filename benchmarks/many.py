"""Measure the CPU time of a pass on 1 to 64 worker processes, by kind of process.

    python -m benchmarks.many [--workers 1 4 16 64] [--write]

A scheduler (`dask scheduler`) and workers with one thread (`dask worker --no-nanny`) run on this
machine, with very few rows. The results are CPU seconds of the driver, the scheduler and the
workers, without the CPU time of idle processes. Wall time would be meaningless with 64 processes
on two cores.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask
import numpy as np
import psutil

from benchmarks.common import cpu_description, new_parser, parse
from benchmarks.overhead import stored
from benchmarks.tables import publish, table_of

WORKERS = (1, 4, 16, 64)
SIZE = 8.0
"""Size of a broadcast and of each worker's total, in MB."""
ROUNDS = {"tasks": 12, "apart": 6, "broadcast": 5, "tree": 4}
CHUNKS = 256
IDLE_SECONDS = 6.0
AT_ONCE = 8
"""Number of workers that are started at the same time."""
LEAST_BYTES = 250e6
"""Memory that must be available for each worker, in bytes."""
PATIENCE = 600.0
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.tick.interval": "2s",
    "distributed.comm.timeouts.connect": "300s",
}
"""Settings for fewer periodic callbacks; those of 64 idle workers use more than two cores."""


def touch(chunk: Any, total: Any, *given: Any) -> None:
    total[0] += 1


def add(a: Any, b: Any) -> Any:
    a += b
    return a


def variable_of(name: str) -> str:
    return "DASK_" + name.upper().replace(".", "__").replace("-", "_")


def serve(address: str, name: int, folder: str) -> None:
    """Run a worker with one thread and without a nanny until the process is killed."""
    from distributed import Worker

    async def work() -> None:
        worker = Worker(address, nthreads=1, name=name, memory_limit=0, local_directory=folder,
                        host="127.0.0.1", dashboard=False)  # fmt: skip
        async with worker:
            await worker.finished()

    with open(Path(folder) / "log", "ab") as log, dask.config.set(QUIET):
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        asyncio.run(work())


class Crowd:
    """Scheduler and workers in separate processes.

    Parameters
    ----------
    folder : Path
        Folder for files and logs.
    """

    def __init__(self, folder: Path) -> None:
        from distributed import Client

        self.folder = folder
        self.workers: list[Any] = []
        file = folder / "scheduler.json"
        options = ["--port", "0", "--host", "127.0.0.1", "--no-dashboard", "--scheduler-file"]
        with open(folder / "log", "wb") as log:
            self.scheduler = subprocess.Popen(
                [sys.executable, "-m", "dask", "scheduler", *options, str(file)],
                env=os.environ | {variable_of(name): str(QUIET[name]) for name in QUIET},
                stdout=log,
                stderr=log,
            )
        try:
            until = time.monotonic() + PATIENCE
            while not file.exists() or not file.read_text():
                assert time.monotonic() < until, "no scheduler"
                assert self.scheduler.poll() is None, (folder / "log").read_text()
                time.sleep(0.1)
            self.address = json.loads(file.read_text())["address"]
            self.client = Client(self.address, timeout=PATIENCE)
        except BaseException:
            self.close()
            raise

    def grow(self, n: int) -> None:
        """Start workers until there are n."""
        # Fork workers from a process that has loaded all modules; 64 imports would take minutes.
        forks = multiprocessing.get_context("forkserver")
        forks.set_forkserver_preload([__name__, "distributed", "largek_dask.passes.worker"])
        while (there := len(self.workers)) < n:
            for name in range(there, min(there + AT_ONCE, n)):
                worker = forks.Process(target=serve, args=(self.address, name, str(self.folder)))
                worker.start()
                self.workers.append(worker)
            self.client.wait_for_workers(len(self.workers), timeout=PATIENCE)

    def addresses(self) -> list[str]:
        """Return the addresses of all workers, in the order of their processes."""
        found = self.client.scheduler_info(n_workers=-1)["workers"]
        return sorted(found, key=lambda address: int(found[address]["name"]))

    def clock(self) -> dict[str, Any]:
        """Return the CPU seconds of each process."""
        return {
            "wall": time.monotonic(),
            "driver": time.process_time(),
            "scheduler": cpu_seconds(self.scheduler.pid),
            "each": [cpu_seconds(worker.pid) for worker in self.workers],
        }

    def close(self) -> None:
        """Stop all processes."""
        if hasattr(self, "client"):
            self.client.close(timeout=10)
        self.scheduler.kill()
        self.scheduler.wait(60)
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.join(60)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of all threads of a process."""
    files = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if not files:
        spent = psutil.Process(pid).cpu_times()
        return float(spent.user + spent.system)
    return 1e-9 * sum(int(file.read_text().split()[0]) for file in files)


@contextmanager
def crowd() -> Iterator[Crowd]:
    with tempfile.TemporaryDirectory() as folder:
        made = Crowd(Path(folder))
        try:
            yield made
        finally:
            made.close()


def spent(made: Crowd, run: Callable[[], Any], rounds: int, idle: dict[str, float]) -> Any:
    """Return CPU seconds of one round by kind of process, without those of idle processes."""
    run()
    before = made.clock()
    for _ in range(rounds):
        run()
    after = made.clock()
    wall = after["wall"] - before["wall"]
    each = np.array(after["each"]) - before["each"] - wall * idle["each"]
    others = float(each[1:].mean()) if len(each) > 1 else 0.0
    found = {
        "workers": others * len(each) if len(each) > 1 else float(each[0]),
        "first": float(each[0]) - others,
        "most": float(each.max()),
    }
    for who in ("driver", "scheduler"):
        found[who] = after[who] - before[who] - wall * idle[who]
    return {who: max(0.0, seconds) / rounds for who, seconds in found.items()}


def idle_of(made: Crowd, seconds: float) -> dict[str, float]:
    """Return CPU seconds per second of idle processes; zero for no seconds."""
    if not seconds:
        return dict.fromkeys(("driver", "scheduler", "each"), 0.0)
    before = made.clock()
    time.sleep(seconds)
    after = made.clock()
    wall = after["wall"] - before["wall"]
    return {
        "driver": (after["driver"] - before["driver"]) / wall,
        "scheduler": (after["scheduler"] - before["scheduler"]) / wall,
        "each": float((np.array(after["each"]) - before["each"]).mean() / wall),
    }


def measured(made: Crowd, rows: Any, n: int) -> dict[str, Any]:
    """Return CPU seconds of each kind of work with n workers, by kind of process."""
    from largek_dask.passes.cluster import ClusterPasses
    from largek_dask.passes.worker import Sealed

    made.grow(n)
    numbers, no_tree = int(SIZE * 125_000), 1 << 40
    with ClusterPasses(rows, made.client) as passes:
        addresses = made.addresses()
        assert passes.n_workers == n == len(addresses)

        def work(numbers: int, tree_bytes: int) -> None:
            with dask.config.set({"largek.passes.tree-bytes": tree_bytes}):
                start = partial(np.zeros, numbers)
                total = passes.reduce(touch, start=start, combine=add)
            assert total[0] == rows.n_chunks

        def send(value: Sealed) -> None:
            sent = passes._network.run(passes._broadcaster.send(value, addresses))
            del sent

        work(1, no_tree)
        idle = idle_of(made, IDLE_SECONDS)
        found: dict[str, Any] = {"idle": idle}
        found["tasks"] = spent(made, partial(work, 1, no_tree), ROUNDS["tasks"], idle)
        with submitted_apart():
            found["apart"] = spent(made, partial(work, 1, no_tree), ROUNDS["apart"], idle)
        value = Sealed(np.random.default_rng(0).random(numbers))
        found["broadcast"] = spent(made, partial(send, value), ROUNDS["broadcast"], idle)
        found["tree"] = spent(made, partial(work, numbers, 0), ROUNDS["tree"], idle)
    rss = [psutil.Process(process.pid).memory_info().rss for process in made.workers]
    print(n, found, file=sys.stderr, flush=True)
    return found | {"memory_mb": float(np.mean(rss) / 1e6)}


@contextmanager
def submitted_apart() -> Iterator[None]:
    """Submit tasks to the scheduler one by one instead of all at once."""
    from largek_dask.passes.network import Network

    async def alone(self: Network, function: Any, *args: Any, worker: str | None = None) -> Any:
        return self.client.submit(
            function, *args, workers=worker, allow_other_workers=worker is not None, pure=False,
            key=f"{self.group}-{uuid4().hex}",
        )  # fmt: skip

    together, Network.submit = Network.submit, alone  # type: ignore[method-assign]
    try:
        yield
    finally:
        Network.submit = together  # type: ignore[method-assign]


# --- table ----------------------------------------------------------------------------------------

SHOWN: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("an empty pass", "tasks", ("driver", "scheduler", "a worker")),
    ("an empty pass, tasks submitted one by one", "apart", ("driver", "scheduler", "a worker")),
    ("a broadcast of 8 MB", "broadcast", ("driver", "scheduler", "the first worker", "a worker")),
    ("totals of 8 MB, added up on workers", "tree", ("driver", "scheduler", "a worker")),
)  # fmt: skip


def of_whom(seconds: dict[str, float], who: str, n: int) -> float:
    if who == "the first worker":
        return seconds["first"] + seconds["workers"] / n
    return seconds["workers"] / n if who == "a worker" else seconds[who]


def table(result: dict[str, Any]) -> str:
    measured, rows = result["measured"], []
    for what, kind, roles in SHOWN:
        for who in roles:
            cells = [1e3 * of_whom(found[kind], who, int(n)) for n, found in measured.items()]
            rows.append([what, who, *(f"{cell:,.3g}" for cell in cells)])
            what = ""
    idle = [1e3 * found["idle"]["scheduler"] for found in measured.values()]
    rows.append(["one idle second", "scheduler", *(f"{ms:.3g}" for ms in idle)])
    most = measured[str(max(map(int, measured)))]
    note = (
        "The table shows milliseconds of CPU time per process. The workers are `dask worker` "
        f"processes with one thread each, on one machine, and there are {CHUNKS} chunks of 4 rows. "
        "The CPU time of idle processes is subtracted. A worker uses "
        f"{most['memory_mb']:.0f} MB of memory, part of which it shares with other processes. "
        f"Processor: {result['cpu']}. This table was made by "
        "`python -m benchmarks.many --write`."
    )
    head = ["what", "process", *(f"{int(n):,} worker{'s' * (int(n) > 1)}" for n in measured)]
    return "\n".join([*table_of(head, rows), "", note])


def measure(workers: Sequence[int]) -> dict[str, Any]:
    there, needed = psutil.virtual_memory().available, max(workers) * LEAST_BYTES
    if there < needed:
        raise SystemExit(
            f"{max(workers)} workers need {needed / 1e9:.0f} GB of memory, and {there / 1e9:.0f} "
            "GB are free: ask for fewer with --workers."
        )
    with crowd() as made, tempfile.TemporaryDirectory() as folder:
        rows = stored(np.zeros((4 * CHUNKS, 2), np.float32), Path(folder), CHUNKS)
        # The keys are those of the committed result.
        found = {str(n): measured(made, rows, n) for n in sorted(workers)}
    return {"cpu": cpu_description(), "measured": found}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    args = parse(parser)
    publish("many", measure(args.workers), write=args.write)


if __name__ == "__main__":
    main()
