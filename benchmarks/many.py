"""What a pass costs on 1 to 64 real worker processes, and a simulation of up to 1,024.

    python -m benchmarks.many [--workers 1 4 16 64] [--write]

A scheduler, as `dask scheduler` starts it, and workers of one thread, as `dask worker --no-nanny`
does, all on this machine, with hardly any rows: what is counted is CPU seconds of the driver, of
the scheduler and of workers, less what they take while nothing happens. (Seconds on the wall say
nothing where 64 processes share two cores.) From these figures `benchmarks.many_simulated` tells
how long a pass takes on as many hosts with a network between them. What 64 workers take is foretold
from 1, 4 and 16 of them and compared; the simulation uses all.
"""

from __future__ import annotations

import argparse
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

import dask
import numpy as np
import psutil

from benchmarks.common import RESULTS, cpu_description, save
from benchmarks.many_simulated import LINK, PARTS, Costs, Line, Shape, fitted, seconds_of_pass
from benchmarks.tables import write_tables
from largek_dask.passes.cluster import FAN_IN, LARGE_FAN_IN, LARGE_TOTAL
from largek_dask.passes.telemetry import PassReport

WORKERS = (1, 4, 16, 64)
SIZES = (1.0, 8.0)
"""Megabytes of a broadcast, and of each worker's total."""
ROUNDS = {"ask": 30, "tasks": 12, "apart": 6, "broadcast": 5, "tree": 4, "inline": 2}
CHUNKS = 256
IDLE_SECONDS = 6.0
AT_ONCE = 8
"""Workers that are started at the same time."""
LEAST_BYTES = 250e6
"""Memory that has to be there for each worker."""
PATIENCE = 600.0
SIMULATED = (1, 4, 16, 64, 256, 1024)
WORK = 1_000.0
"""Core seconds of computing, of a pass whose time is told."""
MODELS = (1.0, 10.0, 100.0, 400.0)
"""Megabytes of a model; each worker's total has as many numbers, of 8 bytes instead of 4."""
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.tick.interval": "2s",
    "distributed.comm.timeouts.connect": "300s",
}
"""What 64 workers do a hundred times a second at rest is more than both cores have."""
KINDS = ("ask", "tasks", "apart", "broadcast", "tree", "inline")
ROLES = ("driver", "scheduler", "workers", "first")


def touch(chunk: Any, total: Any, *given: Any) -> None:
    """Count a chunk."""
    total[0] += 1


def add(a: Any, b: Any) -> Any:
    """Totals of two."""
    a += b
    return a


def variable_of(name: str) -> str:
    """The environment variable of a setting of Dask."""
    return "DASK_" + name.upper().replace(".", "__").replace("-", "_")


def serve(address: str, name: int, folder: str) -> None:
    """Be a worker of one thread, without a nanny, until the process is killed."""
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
    """A scheduler and workers in processes of their own.

    Parameters
    ----------
    folder : Path
        For their files and logs.
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
        """Have so many workers."""
        # Forked from a process that has loaded what they need: 64 times that takes minutes.
        forks = multiprocessing.get_context("forkserver")
        forks.set_forkserver_preload([__name__, "distributed", "largek_dask.passes.worker"])
        while (there := len(self.workers)) < n:
            for name in range(there, min(there + AT_ONCE, n)):
                worker = forks.Process(target=serve, args=(self.address, name, str(self.folder)))
                worker.start()
                self.workers.append(worker)
            self.client.wait_for_workers(len(self.workers), timeout=PATIENCE)

    def addresses(self) -> list[str]:
        """Of all workers, in the order of their processes."""
        found = self.client.scheduler_info(n_workers=-1)["workers"]
        return sorted(found, key=lambda address: int(found[address]["name"]))

    def clock(self) -> dict[str, Any]:
        """CPU seconds of each process so far."""
        return {
            "wall": time.monotonic(),
            "driver": time.process_time(),
            "scheduler": cpu_seconds(self.scheduler.pid),
            "each": [cpu_seconds(worker.pid) for worker in self.workers],
        }

    def close(self) -> None:
        """End all of them."""
        if hasattr(self, "client"):
            self.client.close(timeout=10)
        self.scheduler.kill()
        self.scheduler.wait(60)
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.join(60)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of all threads of a process, to the microsecond where Linux tells that."""
    files = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if not files:
        spent = psutil.Process(pid).cpu_times()
        return float(spent.user + spent.system)
    return 1e-9 * sum(int(file.read_text().split()[0]) for file in files)


@contextmanager
def crowd() -> Iterator[Crowd]:
    """Processes that are ended afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        made = Crowd(Path(folder))
        try:
            yield made
        finally:
            made.close()


def spent(made: Crowd, run: Callable[[], Any], rounds: int, idle: dict[str, float]) -> Any:
    """CPU seconds of one round by kind of process, less those that time alone takes."""
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
    """CPU seconds a second while nothing happens but signs of life; of no seconds none."""
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


def measured(made: Crowd, rows: Any, n: int, sizes: Sequence[float], rounds: dict[str, int],
             seconds: float) -> dict[str, Any]:  # fmt: skip
    """What all kinds of work cost with n workers: by kind and megabytes, by process."""
    from largek_dask.passes.cluster import ClusterPasses
    from largek_dask.passes.worker import Sealed

    made.grow(n)
    found: dict[str, Any] = {kind: {} for kind in KINDS}
    with ClusterPasses(rows, made.client) as passes:
        addresses = made.addresses()
        assert passes.n_workers == n == len(addresses)

        def ask() -> None:
            assert len(passes._network.run(passes._workers.ready())) == n

        def work(numbers: int, tree_bytes: int) -> None:
            with dask.config.set({"largek.passes.tree-bytes": tree_bytes}):
                start = partial(np.zeros, numbers)
                total = passes.reduce(touch, start=start, combine=add)
            assert total[0] == rows.n_chunks

        def send(value: Sealed) -> None:
            sent = passes._network.run(passes._broadcaster.send(value, addresses))
            del sent

        work(1, 1 << 40)
        found["idle"] = idle = idle_of(made, seconds)
        found["ask"][0.0] = spent(made, ask, rounds["ask"], idle)
        found["tasks"][0.0] = spent(made, partial(work, 1, 1 << 40), rounds["tasks"], idle)
        with told_apart():
            found["apart"][0.0] = spent(made, partial(work, 1, 1 << 40), rounds["apart"], idle)
        for mb in sizes:
            numbers = int(mb * 125_000)
            value = Sealed(np.random.default_rng(0).random(numbers))
            for kind, run in (
                ("broadcast", partial(send, value)),
                ("tree", partial(work, numbers, 0)),
                ("inline", partial(work, numbers, 1 << 40)),
            ):
                found[kind][mb] = spent(made, run, rounds[kind], idle)
                print(n, kind, mb, found[kind][mb], file=sys.stderr, flush=True)
    found["memory_mb"] = float(
        np.mean([psutil.Process(p.pid).memory_info().rss for p in made.workers]) / 1e6
    )
    return found


@contextmanager
def told_apart() -> Iterator[None]:
    """Have the scheduler told of each task alone, as it was before 2026-11-26."""
    from largek_dask.passes.network import Network

    async def alone(self: Network, function: Any, *args: Any, worker: str | None = None) -> Any:
        return self.submit(function, *args, worker=worker)

    together, Network.submitted = Network.submitted, alone  # type: ignore[method-assign]
    try:
        yield
    finally:
        Network.submitted = together  # type: ignore[method-assign]


def events_of(n: int, rounds: int = 20) -> dict[str, float]:
    """What telling of n workers costs: CPU seconds and bytes of an event, and seconds between."""
    from largek_dask.driver.worker_columns import WorkerColumns, pause_between

    reports = {f"tcp://10.0.{i // 250}.{i % 250}:40000": PassReport() for i in range(n)}
    now = [0.0]
    columns = WorkerColumns(reports, (), lambda: now[0])
    draws, size, begun = np.random.default_rng(0), 0, 0.0
    took = 0.0
    for _ in range(rounds):
        now[0] += pause_between(n) + 1
        for report in reports.values():
            report.rows += int(draws.integers(1, 1 << 20))
            report.compute += float(draws.uniform(1, 30))
            report.bytes_read += int(draws.integers(1, 1 << 30))
        begun = time.process_time()
        size += len(json.dumps(columns.due()))
        took += time.process_time() - begun
    return {"seconds": took / rounds, "bytes": size / rounds, "pause": pause_between(n)}


# --- from figures to a simulation -----------------------------------------------------------------


def costs_of(measured: dict[str, Any], most: int) -> Costs:
    """Lines through what was measured with up to so many workers."""
    several = {int(n): found for n, found in measured.items() if int(n) <= most}

    def line(kind: str, who: str) -> Line:
        points = []
        for n, found in several.items():
            for mb, seconds in found[kind].items():
                beyond = found["tasks"]["0.0"][who] if kind in ("tree", "inline") else 0.0
                points.append((n, float(mb), seconds[who] - beyond))
        return fitted(points)

    lines = {kind: {who: line(kind, who) for who in ROLES} for kind in KINDS}
    return Costs(**lines)


def told_at(costs: Costs, kind: str, who: str, n: int, mb: float) -> float:
    """What the lines say of a kind of work."""
    beyond = costs.tasks[who].at(n) if kind in ("tree", "inline") else 0.0
    return beyond + getattr(costs, kind)[who].at(n, mb)


def fan_in_of_eight(mb: float, n: int) -> int:
    """Eight, whatever is added up."""
    return 8


def fan_in_by_size(mb: float, n: int) -> int:
    """As `passes/cluster.py` chooses."""
    return FAN_IN if mb * 1e6 <= LARGE_TOTAL else LARGE_FAN_IN


BEFORE = Shape(fan_in_of_eight, together=False)
NOW = Shape(fan_in_by_size)
BEFORE_WORDS = "Before: every task told alone, and eight totals added up at a time, of any size."
"""What passes do, and did."""


# --- tables and picture ---------------------------------------------------------------------------

SHOWN: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("who is there", "ask", "0.0", ("driver", "scheduler")),
    ("a pass without rows", "tasks", "0.0", ("driver", "scheduler", "a worker")),
    ("the same, tasks told one by one", "apart", "0.0", ("driver", "scheduler", "a worker")),
    ("1 MB to all", "broadcast", "1.0", ("driver", "scheduler", "the first worker", "a worker")),
    ("8 MB to all", "broadcast", "8.0", ("driver", "scheduler", "the first worker", "a worker")),
    ("a pass with totals of 8 MB, added up on workers", "tree", "8.0",
     ("driver", "scheduler", "a worker")),
    ("a pass with totals of 1 MB that come to the driver", "inline", "1.0",
     ("driver", "scheduler", "a worker")),
)  # fmt: skip


def of_whom(seconds: dict[str, float], who: str, n: int) -> float:
    """CPU seconds of a kind of process."""
    if who == "the first worker":
        return seconds["first"] + seconds["workers"] / n
    return seconds["workers"] / n if who == "a worker" else seconds[who]


def table(result: dict[str, Any]) -> str:
    """The markdown table of what was measured, and of what fewer workers foretell."""
    measured = result["measured"]
    most = max(map(int, measured))
    costs = costs_of(measured, most - 1)
    heads = [*(f"{int(n):,}" for n in measured), f"{most:,} foretold"]
    lines = [f"| what | CPU ms of | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for what, kind, mb, roles in SHOWN:
        for who in roles:
            cells = [1e3 * of_whom(found[kind][mb], who, int(n)) for n, found in measured.items()]
            told = {role: told_at(costs, kind, role, most, float(mb)) for role in ROLES}
            cells.append(1e3 * of_whom(told, who, most))
            lines.append(f"| {what} | {who} | {' | '.join(f'{cell:,.3g}' for cell in cells)} |")
            what = ""
    idle = [1e3 * found["idle"]["scheduler"] for found in measured.values()]
    lines.append(f"| a second of rest | scheduler | {' | '.join(f'{ms:.3g}' for ms in idle)} | |")
    events = result["events"]
    cells = [1e3 * events[n]["seconds"] / events[n]["pause"] for n in measured]
    lines.append(
        "| events about workers, a second | driver | "
        + " | ".join(f"{ms:.2g}" for ms in cells) + " | |"
    )  # fmt: skip
    largest = max(events, key=int)
    told = events[largest]
    return "\n".join(
        [
            *lines,
            "",
            f"`dask worker` processes of one thread beside each other, {CHUNKS} chunks of 4 rows; "
            "what rest takes is taken off. Foretold: from what fewer workers take. An event of "
            f"{int(largest):,} workers has {told['bytes'] / 1e3:.0f} kB, takes the driver "
            f"{1e3 * told['seconds']:.0f} ms, and comes every {told['pause']:.0f} s. A worker has "
            f"{measured[str(most)]['memory_mb']:.0f} MB, what processes share counted in each. "
            f"{result['cpu']}. Made by `python -m benchmarks.many --write`.",
        ]
    )


def simulated(result: dict[str, Any], shape: Shape) -> dict[tuple[float, int], dict[str, float]]:
    """Seconds of the parts of a pass beyond computing, by megabytes of the model and workers."""
    measured = result["measured"]
    costs = costs_of(measured, max(map(int, measured)))
    return {
        (mb, n): seconds_of_pass(costs, shape, n, mb, 2 * mb) for mb in MODELS for n in SIMULATED
    }


def best_number(parts: dict[tuple[float, int], dict[str, float]], mb: float) -> tuple[int, float]:
    """With how many workers a pass of `WORK` core seconds is over soonest, and after how long."""
    whole = {n: WORK / n + sum(parts[mb, n].values()) for n in SIMULATED}
    n = min(whole, key=lambda n: whole[n])
    return n, whole[n]


def simulated_table(result: dict[str, Any]) -> str:
    """The markdown table of simulated passes."""
    now, before = simulated(result, NOW), simulated(result, BEFORE)
    heads = " | ".join(f"{n:,}" for n in SIMULATED)
    lines = [
        f"| model | {heads} | most of it, with {SIMULATED[-1]:,} | "
        f"{WORK:,.0f} s of computing: soonest with | before: {SIMULATED[-1]:,} | soonest with |",
        "|---" * (5 + len(SIMULATED)) + "|",
    ]
    for mb in MODELS:
        seconds = {n: sum(now[mb, n].values()) for n in SIMULATED}
        last = now[mb, SIMULATED[-1]]
        part = max(PARTS, key=lambda name: last[name])
        n, whole = best_number(now, mb)
        then, whole_then = best_number(before, mb)
        lines.append(
            f"| {mb:,.0f} MB | {' | '.join(f'{s:.2g}' for s in seconds.values())} | {part}: "
            f"{100 * last[part] / seconds[SIMULATED[-1]]:.0f} % | {n:,} ({whole:.3g} s) | "
            f"{sum(before[mb, SIMULATED[-1]].values()):.3g} | {then:,} ({whole_then:.3g} s) |"
        )
    return "\n".join(
        [
            *lines,
            "",
            "Seconds of a pass beyond computing, by number of workers, each a host that sends and "
            f"receives {LINK / 125:.0f} Gbit/s; simulated from the table above, whose CPU it takes "
            "for that of all hosts. A worker's totals are twice the model. Parts: "
            f"{', '.join(f'*{name}*' for name in PARTS)}. {BEFORE_WORDS} {ways(result)} Made by "
            "`python -m benchmarks.many --write`.",
        ]
    )


def ways(result: dict[str, Any]) -> str:
    """What other ways to add totals up and to broadcast would change, and slices, in words."""
    eights, *others = (
        simulated(result, shape)
        for shape in (
            Shape(fan_in_of_eight),
            Shape(lambda mb, n: 4),
            Shape(fan_in_of_eight, delegated=True),
        )
    )

    def change(parts: dict[tuple[float, int], dict[str, float]], models: Sequence[float]) -> str:
        found = [
            100 * (sum(parts[mb, n].values()) / sum(eights[mb, n].values()) - 1)
            for mb in models
            for n in SIMULATED[-3:]
        ]
        return f"{min(found):+.0f} to {max(found):+.0f} %"

    large = [mb for mb in MODELS if 2e6 * mb > LARGE_TOTAL]
    small = [mb for mb in MODELS if mb not in large]
    measured = result["measured"]
    most = max(map(int, measured))
    alone = measured[str(most)]["apart"]["0.0"]["scheduler"] / most
    return (
        f"With {SIMULATED[-3]} workers and more a pass takes {change(others[0], large)} where four "
        "totals are added up at a time instead of eight and the model has 100 MB and more, and "
        f"{change(others[0], small)} where it has less; {change(others[1], MODELS)} where a "
        "broadcast is seen to by all who have it, not by the first worker. Tasks of two seconds, "
        f"each told alone, of {2 / alone:.0f} workers would keep the scheduler busy all the time."
    )


def picture(result: dict[str, Any]) -> None:
    """Time of a pass against the number of workers, for models of several sizes."""
    from benchmarks.pictures import new_figure

    figure, (left, right) = new_figure(2, 12, 4.6, sharex=True)
    now, before = simulated(result, NOW), simulated(result, BEFORE)
    for mb, color in zip(MODELS, ("tab:blue", "tab:green", "tab:orange", "tab:red"), strict=True):
        for found, style, name in ((now, "-", f"{mb:g} MB"), (before, ":", None)):
            beyond = np.array([sum(found[mb, n].values()) for n in SIMULATED])
            left.plot(SIMULATED, beyond, style, color=color, label=name)
            right.plot(SIMULATED, beyond + WORK / np.array(SIMULATED), style, color=color)
    right.plot(SIMULATED, WORK / np.array(SIMULATED), color="black", lw=0.8, label="computing")
    for axes, title in ((left, "a pass beyond computing"),
                        (right, f"a pass of {WORK:,.0f} core seconds")):  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="workers", title=title)
        axes.set_xticks(SIMULATED, [f"{n:,}" for n in SIMULATED])
        axes.grid(True, which="major", alpha=0.3)
        axes.legend(fontsize=8)
    left.set_ylabel("seconds (dotted: before)")
    RESULTS.mkdir(parents=True, exist_ok=True)
    figure.savefig(RESULTS / "many.png", dpi=100)


def rows_in(folder: Path) -> Any:
    """Hardly any rows, in `CHUNKS` chunks."""
    from benchmarks.overhead import stored

    return stored(np.zeros((4 * CHUNKS, 2), np.float32), folder, CHUNKS)


def measure(
    workers: Sequence[int],
    sizes: Sequence[float] = SIZES,
    rounds: dict[str, int] = ROUNDS,
    seconds: float = IDLE_SECONDS,
) -> dict[str, Any]:
    """What all kinds of work cost with so many workers."""
    there = psutil.virtual_memory().available
    if there < max(workers) * LEAST_BYTES:
        raise SystemExit(
            f"{max(workers)} workers need {max(workers) * LEAST_BYTES / 1e9:.0f} GB of memory, and "
            f"{there / 1e9:.0f} GB are free: ask for fewer with --workers."
        )
    with crowd() as made, tempfile.TemporaryDirectory() as folder:
        rows = rows_in(Path(folder))
        found = {n: measured(made, rows, n, sizes, rounds, seconds) for n in sorted(workers)}
    result = {
        "cpu": cpu_description(),
        "measured": found,
        "events": {n: events_of(n) for n in (*workers, SIMULATED[-1])},
    }
    # With the keys that the committed result has.
    return dict(json.loads(json.dumps(result)))


def main() -> None:
    """Measure, simulate, draw, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--write", action="store_true", help="save results, write the tables")
    args = parser.parse_args()
    result = measure(args.workers)
    print(table(result), simulated_table(result), sep="\n\n")
    if args.write:
        picture(result)
        save("many", result)
        write_tables("many", result)


if __name__ == "__main__":
    main()
