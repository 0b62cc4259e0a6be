"""Predict the time of the default on many threads and workers from fits on one thread.

    python -m benchmarks.span [--sets A glove100k ...] [--write]

For each number of threads, a fit divides its work as for this number, but one thread computes and
times all parts (`benchmarks.span_trace`). The predicted time is that of serial work, plus, for each
divided region, the time of threads that take the next part as soon as they are free. A fit on a
store also gives the seconds of each chunk, and the bytes of broadcasts and totals. From these and
from the figures of `benchmarks.many`, the time on many workers is predicted. Fits on two threads
and two workers are measured, and compared with the predictions.

The fit of 80,000,000 rows is predicted from one of a tenth of them, with as many clusters: each
chunk counts ten times.

Without ``--sets``, only the small sets are measured; other sets keep their results.
"""

from __future__ import annotations

import heapq
import math
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import largek_dask as lk
from benchmarks.common import (
    child_record,
    cpu_description,
    local_client,
    new_parser,
    parse,
    peer_environments,
    read_result,
    rounded,
)
from benchmarks.sets import at_hand, embeddings, mixture, prepare
from benchmarks.span_trace import STAGES, Recorder, recorded
from benchmarks.tables import against, publish, table_of
from largek_dask.data.sources import open_rows
from largek_dask.driver.fit import fit
from largek_dask.driver.labels import GROUP_CHUNKS
from largek_dask.driver.options import FitOptions
from largek_dask.kernels.atomics import load, store
from largek_dask.kernels.threads import SPIN_SECONDS, on_threads, shared
from largek_dask.passes.local import available_cpus

SMALL = {"A": 1_000, "B": 1_000, "C": 500, "mnist": 1_000, "glove100k": 1_000, "sift200k": 1_000}
LARGE = {"mixture1M": 4_000, "embeddings200k": 4_000}
ON_DISK = {"mixture10M": 4_000, "mixture80M": 32_000}
SETS = SMALL | LARGE | ON_DISK
"""Numbers of clusters by set. Those on disk are recorded only as stores, without measurements."""
STORED = ("B", *LARGE)
"""Sets that are recorded as stores too, for predictions on workers."""
DISK_ROWS = {"mixture10M": 10_000_000, "mixture80M": 8_000_000}
"""Numbers of recorded rows."""
COPIES = {"mixture80M": 10}
"""Numbers of times that each recorded chunk counts, if not 1. Samples are as large as of all
rows."""
STEPS = {"mixture80M": 34}
"""Maximum numbers of steps that differ from the default; `benchmarks.large` has time for 34."""
THREADS = (2, 4, 8, 16, 32, 64)
WORKERS = (1, 2, 4, 16, 64, 256, 1_024)
PER_WORKER = 16
"""Number of threads per worker, besides one."""
DRIVER_THREADS = 16
"""Maximum number of threads of the driver of more than two workers, which has at most as many
threads as there are workers. With two workers or less, the driver has one thread, as when two
workers are measured."""
FEW = 1_000
"""Maximum number of clusters of the first short fit, which compiles and loads code."""
LAYOUTS = [str(n) for n in WORKERS] + [
    f"{n // PER_WORKER} x {PER_WORKER}" for n in WORKERS if n > PER_WORKER
]
SHOWN_THREADS, SHOWN_WORKERS = "16", "256"
"""Numbers of threads and workers for which stages are shown."""
LEAST_SECONDS = 1e-4
"""CPU seconds below which a region counts as serial."""
ROUNDS = 3
"""Number of measured fits of a small set on one and on two threads."""
AIM = 10.0
"""Maximum error of a predicted speedup, in per cent."""
MANY_BYTES = 8e6
"""Size of the broadcasts and totals of `benchmarks.many`."""
STREAMED = 1 << 26
"""Number of float32 values that a process reads to measure the throughput of memory."""


# --- predictions ----------------------------------------------------------------------------------


def makespan(parts: Sequence[float], begin: Sequence[float]) -> float:
    """Return the time of threads, each of which takes the next part as soon as it is free.

    ``begin`` are the times at which the threads begin.
    """
    free, end = sorted(begin), 0.0
    for seconds in parts:
        end = max(end, free[0] + seconds)
        heapq.heapreplace(free, free[0] + seconds)
    return end


def begin_of(n: int, about: dict[str, Any], pause: float) -> list[float]:
    """Return the times at which n threads begin with their parts.

    ``pause`` is the time for which the other threads have waited in compiled code, where they join
    one after another.
    """
    if pause < SPIN_SECONDS:
        return [about["join"] * i for i in range(n)]
    known = {1: 0.0} | {int(n): seconds for n, seconds in about["hand_over"].items()}
    times: list[float] = np.interp(range(1, n + 1), list(known), list(known.values())).tolist()
    return times


def on_many_threads(found: Recorder, n: int, about: dict[str, Any]) -> dict[str, Any]:
    """Return work, predicted seconds on n threads, and the longest chain of parts."""
    serial, shared = dict.fromkeys(STAGES, 0.0) | found.serial, dict.fromkeys(STAGES, 0.0)
    spans, longest = [], 0.0
    for stage, parts, pause in found.regions:
        work, begin = sum(parts), begin_of(n, about, pause)
        is_shared = work >= LEAST_SECONDS
        (shared if is_shared else serial)[stage] += work
        spans.append(makespan(parts, begin) if is_shared else 0.0)
        # With a thread for every part, all but the first begin after one hand-over.
        longest += makespan(parts, [0.0, *(begin[1] for _ in parts)]) if is_shared else 0.0
    # Rows cannot be read faster than memory delivers them.
    reading = sum(
        max(0.0, one.moved / about["bytes_per_second"] - sum(spans[one.begin : one.end]))
        for one in found.passes
        if one.begin < one.end
    )
    alone = sum(serial.values())
    return {
        "work": alone + sum(shared.values()),
        "seconds": alone + sum(spans) + reading,
        "chain": alone + longest,
        "reading": reading,
        "serial": serial,
        "shared": shared,
    }


def of_many(many: dict[str, Any], kind: str, n: int) -> float:
    """Return CPU seconds of the processes that wait for each other, from `benchmarks.many`.

    Driver, scheduler and the busiest worker are added. Between the measured numbers of workers, and
    above them, the figure is a power law.
    """
    known = sorted(many, key=int)
    chain = [sum(many[w][kind][who] for who in ("driver", "scheduler", "most")) for w in known]
    x, y = np.log([int(w) for w in known]), np.log(chain)
    at = np.clip(np.searchsorted(x, np.log(n)), 1, len(x) - 1)
    slope = (y[at] - y[at - 1]) / (x[at] - x[at - 1])
    return float(np.exp(y[at] + slope * (np.log(n) - x[at])))


def on_driver(found: Recorder, away: set[int], n: int, about: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of the driver by stage; regions ``away`` are computed by n workers."""
    threads = 1 if n <= 2 else min(n, DRIVER_THREADS)
    spent = dict.fromkeys(STAGES, 0.0) | found.serial
    for i, (stage, parts, pause) in enumerate(found.regions):
        if i not in away:
            work, begin = sum(parts), begin_of(threads, about, pause)
            spent[stage] += makespan(parts, begin) if work >= LEAST_SECONDS else work
    return spent


def on_workers(
    found: Recorder, many: dict[str, Any], about: dict[str, Any], copies: int = 1
) -> dict[str, Any]:
    """Return work by stage of the driver, and predicted seconds by number of workers.

    Each chunk counts ``copies`` times. Keys are the number of workers with one thread each, or the
    numbers of workers and of threads per worker.
    """
    passes = [one for one in found.passes if one.of_table and one.begin < one.end]
    away = {i for one in passes for i in range(one.begin, one.end)}
    chunks, labels = [], []
    for one in passes:
        stage, seconds = found.regions[one.begin].stage, []
        for region in found.regions[one.begin : one.end]:
            seconds += copies * region.parts
        (labels if stage == "labels" else chunks).append(seconds)
    steps = passes[: len(chunks)]
    gathered = sum(one.gathered for one in passes) / MANY_BYTES
    on: dict[str, Any] = {}
    for layout in LAYOUTS:
        processes, per = map(int, (layout + " x 1").split(" x ")[:2])
        n = processes * per
        # With more threads, more chunks are labelled at a time (`driver.final`).
        group = max(GROUP_CHUNKS * n, len(labels[0]) // copies)
        n_groups = -(-sum(map(len, labels)) // group)
        groups = [*chunks, *np.array_split(np.concatenate(labels), n_groups)]
        sent, returned = (
            (sum(one[at] for one in steps) + n_groups * passes[-1][at]) / MANY_BYTES
            for at in (-3, -2)
        )
        empty, alone = of_many(many, "tasks", processes), of_many(many, "tasks", 1)
        totals = max(0.0, of_many(many, "tree", processes) - empty)
        # To add two totals, both are read and one is written.
        totals += 3 * (per - 1) * MANY_BYTES / about["bytes_per_second"]
        on[layout] = {
            "driver": sum(on_driver(found, away, n, about).values()),
            "chunks": float(sum(max(map(sum, np.array_split(one, n))) for one in groups)),
            "empty": empty * len(groups),
            "broadcasts": of_many(many, "broadcast", processes) * sent,
            "totals": totals * returned,
            # All rows together are received once, as the total of one worker.
            "rows": max(0.0, of_many(many, "tree", 1) - alone) * gathered,
        }
    driver = on_driver(found, away, 1, about)
    return {
        "work": sum(driver.values()) + sum(map(sum, [*chunks, *labels])),
        "n_chunks": max(map(len, chunks)),
        "n_passes": len(passes),
        "megabytes": (sent + returned + gathered) * MANY_BYTES / 1e6,
        "driver": on_driver(found, away, int(SHOWN_WORKERS), about),
        "on": on,
    }


# --- measurements ---------------------------------------------------------------------------------


def stream(barrier: Any, answers: Any) -> None:
    """Measure the bytes per CPU second of one process while the others read as well."""
    x = np.ones(STREAMED, np.float32)
    barrier.wait()
    begun = time.process_time()
    for _ in range(8):
        x.max()
    answers.put(8 * x.nbytes / (time.process_time() - begun))


def bytes_per_second() -> float:
    """Return how many bytes per second all cores together read from memory."""
    context, n = get_context("spawn"), available_cpus()
    barrier, answers = context.Barrier(n), context.Queue()
    processes = [context.Process(target=stream, args=(barrier, answers)) for _ in range(n)]
    for process in processes:
        process.start()
    found = sum(answers.get(timeout=600) for _ in processes)
    for process in processes:
        process.join()
    return float(found)


def hand_over(n: int) -> float:
    """Return the wall seconds until n threads have met, each with one part."""
    seconds, barrier = [], threading.Barrier(n)
    for _ in range(501):
        begun = time.perf_counter()
        on_threads(n, lambda _: barrier.wait(), range(n))
        seconds.append(time.perf_counter() - begun)
    # On a busy machine, the median would include the time of other processes.
    return float(np.quantile(seconds, 0.1))


@shared
def meet(part, thread, words, patience):  # type: ignore[no-untyped-def]
    """Wait for the other of two parts."""
    store(words, 8 * part, 1)
    for _ in range(patience):
        if load(words, 8 * (1 - part)) == 1:
            return


def join() -> float:
    """Return the wall seconds until a thread that waits in compiled code has joined another."""
    seconds = []
    for _ in range(501):
        words = np.zeros(16, np.int64)
        begun = time.perf_counter()
        meet(2, 2, words, 1_000_000)
        seconds.append(time.perf_counter() - begun)
    return float(np.quantile(seconds, 0.1))


def wall_seconds(rows: Any, k: int, **where: Any) -> float:
    begun = time.perf_counter()
    fit(open_rows(rows), FitOptions(n_clusters=k, algorithm="truncated"), **where)
    return time.perf_counter() - begun


def child(kind: str, path: str, k: int, *given: Any) -> dict[str, Any]:
    # A first short fit compiles and loads code.
    few_k = min(k, FEW)
    few = np.asarray(open_rows(path).read(0))[: 40 * few_k]
    if kind == "threads":
        [about], x = given, np.load(path)
        recorded(open_rows(few), few_k, 2)
        return {str(n): on_many_threads(recorded(open_rows(x), k, n), n, about) for n in THREADS}
    if kind == "workers":
        steps, copies, about = given
        recorded(open_rows(few), few_k, 1, DRIVER_THREADS)
        found = recorded(open_rows(path), k, 1, DRIVER_THREADS, max_iter=steps)
        return on_workers(found, read_result("many")["measured"], about, copies)
    times: dict[str, list[float]] = {"1": [], "2": []}
    for _ in range(*given):
        for n, seconds in times.items():
            if kind == "two threads":
                x = np.load(path)
                wall_seconds(few, few_k, n_threads=int(n))
                seconds.append(wall_seconds(x, k, n_threads=int(n)))
            else:
                with local_client(int(n)) as client:
                    wall_seconds(few, few_k, client=client)
                    seconds.append(wall_seconds(path, k, client=client))
    return {n: float(np.median(seconds)) for n, seconds in times.items()}


# --- tables ---------------------------------------------------------------------------------------


def of_threads(result: dict[str, Any]) -> str:
    """Return the table of T₁, T∞ and speedups on threads."""
    rows = []
    for record in result["records"]:
        if "threads" not in record:
            continue
        by = record["threads"]
        work, chain = by[str(THREADS[0])]["work"], by[str(THREADS[-1])]["chain"]
        speedups = [
            f"{work / one['seconds']:.2f}{'*' * (one['reading'] > 0.01 * one['seconds'])}"
            for one in by.values()
        ]
        size = f"{record['n']:,} × {record['d']}, {record['k']:,}"
        chains = [f"{work:.2f}", f"{chain:.2f}", f"{work / chain:.1f}"]
        rows.append([record["set"], size, *chains, *speedups])
    about = result["machine"]
    note = (
        "The table shows CPU seconds on one thread (T₁), the longest chain of parts that follow "
        f"one another on {THREADS[-1]} threads (T∞), and predicted speedups by number of threads. "
        f"Regions below {1e6 * LEAST_SECONDS:.0f} µs count as serial. A thread that waits in "
        f"compiled code begins after {1e6 * about['join']:.1f} µs. Otherwise, the second thread "
        f"begins after {1e6 * about['hand_over']['2']:.0f} µs, and the last of {THREADS[-1]} after "
        f"{1e6 * about['hand_over']['64']:.0f} µs. Memory delivers "
        f"{1e-9 * about['bytes_per_second']:.0f} GB per second; with an asterisk, it takes more "
        f"than 1 % of the time. Processor: {result['cpu']}. This table was made by `python -m "
        "benchmarks.span --write`."
    )
    head = ["set", "rows × features, k", "T₁", "T∞", "T₁ / T∞", *map(str, THREADS)]
    return "\n".join([*table_of(head, rows), "", note])


def of_stages(result: dict[str, Any]) -> str:
    """Return the table of serial work by stage."""
    rows = []
    for record in result["records"]:
        if "threads" in record:
            serial, shared = (record["threads"][SHOWN_THREADS][at] for at in ("serial", "shared"))
            pairs = [(sum(serial.values()), sum(shared.values()))]
            pairs += [(serial[name], shared[name]) for name in STAGES]
            rows.append([record["set"], *(f"{a:.2f} of {a + b:.2f}" for a, b in pairs)])
    return "\n".join(table_of(["set", "all", *STAGES], rows))


def of_workers(result: dict[str, Any]) -> str:
    """Return the table of efficiencies on workers."""
    rows = []
    for record in result["records"]:
        if found := record.get("workers"):
            about = [
                f"{found[name]:,.0f}" for name in ("n_chunks", "n_passes", "megabytes", "work")
            ]
            efficiencies = {
                n: found["work"] / (math.prod(map(int, n.split(" x "))) * sum(one.values()))
                for n, one in found["on"].items()
            }
            cells = (f"{efficiencies[n]:.2f}" if n in efficiencies else "" for n in LAYOUTS)
            rows.append([record["set"], *about, *cells])
    layouts = (f"{int(n):,}" if n.isdecimal() else n for n in LAYOUTS)
    head = ["set", "chunks", "passes", "MB", "T₁", *layouts]
    return "\n".join(table_of(head, rows))


def of_driver(result: dict[str, Any]) -> str:
    """Return the table of seconds of the driver by stage, and of all else on many workers."""
    rows = []
    for record in result["records"]:
        if found := record.get("workers"):
            parts = [*found["driver"].values(), *found["on"][SHOWN_WORKERS].values()]
            rows.append([record["set"], *(f"{seconds:.2f}" for seconds in parts)])
    others = ["driver, all stages", "chunks", "empty passes", "broadcasts", "totals", "rows"]
    return "\n".join(table_of(["set", *STAGES, *others], rows))


def of_held_out(result: dict[str, Any]) -> str:
    """Return the table of predictions and measurements on two threads and workers."""
    rows = []
    for record in result["records"]:
        predicted = {}
        if "threads" in record:
            two = record["threads"]["2"]
            predicted["two threads"] = two["work"], two["seconds"]
        if "workers" in record:
            on = record["workers"]["on"]
            predicted["two workers"] = sum(on["1"].values()), sum(on["2"].values())
        for kind, pair in predicted.items():
            if kind in record:
                found = [record[kind][n] for n in ("1", "2")]
                pairs = [f"{a:.2f} → {b:.2f}, {a / b:.2f}x" for a, b in (pair, found)]
                error = abs(100 * (pair[0] / pair[1] * found[1] / found[0] - 1))
                cells = [*pairs, against(error, AIM, ".1f", least=False)]
                rows.append([record["set"], kind, *cells])
    head = ["set", "on", "predicted, s", "measured, s", "error of the speedup, %"]
    return "\n".join(table_of(head, rows))


# --- command line ---------------------------------------------------------------------------------


def rows_of(name: str, folder: Path) -> Path:
    """Return the path of the rows of a set, which are generated if necessary."""
    if name in ON_DISK:
        from benchmarks.large_runs import stored

        return Path(stored(folder, DISK_ROWS[name], SETS[name] * 3 // 2))
    if name in SMALL:
        return prepare(name, folder)
    path = folder / f"{name}.npy"
    is_mixture = name == "mixture1M"
    np.save(path, mixture(1_000_000, 128, 8_000) if is_mixture else embeddings(200_000, 768))
    return path


def measured(name: str, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    path, k = rows_of(name, folder), SETS[name]
    n, d = open_rows(str(path)).shape
    record: dict[str, Any] = {"set": name, "n": n, "d": d, "k": k}
    # On this machine, the driver of two workers has one thread, as in the prediction.
    one = peer_environments("largek_dask")[""] | {"SLURM_CPUS_PER_TASK": "1"}
    run: Callable[..., Any] = lambda *what: child_record("benchmarks.span", [*what], one)  # noqa: E731
    if name in ON_DISK:
        copies = COPIES.get(name, 1)
        found = run("workers", str(path), k, STEPS.get(name, 300), copies, about)
        return record | {"n": copies * n, "workers": found}
    rounds = ROUNDS if name in SMALL else 1
    record["threads"] = run("threads", str(path), k, about)
    record["two threads"] = run("two threads", str(path), k, rounds)
    if name in STORED:
        store = str(folder / f"{name}.zarr")
        lk.ingest(np.load(path, mmap_mode="r"), store, progress=False)
        record["workers"] = run("workers", store, k, 300, 1, about)
        record["two workers"] = run("two workers", store, k, 1)
    return record


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SMALL))
    args = parse(parser, child)
    about = {
        "bytes_per_second": max(bytes_per_second() for _ in range(3)),
        "hand_over": {str(n): hand_over(n) for n in THREADS},
        "join": join(),
    }
    known = {record["set"]: record for record in read_result("span").get("records", [])}
    with tempfile.TemporaryDirectory() as folder:
        for name in at_hand(args.sets):
            known[name] = measured(name, Path(folder), about)
            records = [known[name] for name in SETS if name in known]
            result = {"cpu": cpu_description(), "machine": about, "records": records}
            publish("span", rounded(result, 4), write=args.write)


if __name__ == "__main__":
    main()
