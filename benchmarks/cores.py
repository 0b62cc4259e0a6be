"""Compare fits of the default on one and on two threads.

    python -m benchmarks.cores [--sets A glove100k ...] [--write]

The results are wall seconds until the energy of all rows is within 1 % and 0.2 % of the final
energy, and until the end, including exact labels. Fits on one and on two threads alternate, and
medians of three rounds with one seed are reported. Results are bit-identical, so both take the same
steps. A separate run finds the steps at which these energies are reached. With ``--sets``,
other sets keep their results.

A second table is for unfavourable circumstances on two cores: more threads than cores, a quota of
1.5 cores (which needs the right to create a control group), and a core that another process uses.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import child_record, cpu_description, new_parser, parse, read_result
from benchmarks.curves import Energies
from benchmarks.sets import at_hand, prepare
from benchmarks.tables import against, publish, table_of
from largek_dask.data.sources import open_rows
from largek_dask.driver.fit import fit
from largek_dask.driver.options import FitOptions
from largek_dask.passes.local import GROUPS, available_cpus

SETS = {"A": 1_000, "B": 1_000, "C": 500, "glove100k": 1_000}
"""Numbers of clusters by set."""
ROUNDS = 3
NEAR = (0.01, 0.002)
"""Excesses over the final energy."""
AIM = 1.85
ONE, TWO = "1", "2"
WORST_SETS = ("A", "C")
WORST_AIM = 1.1
"""Aim of the wall time in unfavourable circumstances, as a multiple of that of one thread."""
QUOTA, PERIOD = 1.5, 100_000
"""Quota in cores, and the period for which it holds, in microseconds."""
FOUR, HALF, BUSY = "four threads", "a quota of 1.5 cores", "another process on the second core"
WORST = {FOUR: 4, HALF: 2, BUSY: 2}
"""Numbers of threads by circumstances."""


def timed(x: NDArray[np.float32], k: int, n_threads: int) -> tuple[list[float], float]:
    """Return wall seconds until each step and until the end, and CPU seconds of the fit."""
    seconds: list[float] = []
    begun, cpu = time.perf_counter(), time.process_time()
    fit(
        open_rows(x),
        FitOptions(n_clusters=k, algorithm="truncated"),
        n_threads=n_threads,
        callbacks=[lambda _: seconds.append(time.perf_counter() - begun)],
    )
    return [*seconds, time.perf_counter() - begun], time.process_time() - cpu


def steps_near(x: NDArray[np.float32], k: int, n_threads: int) -> list[int]:
    """Return the first step at which the energy reaches each excess in ``NEAR``."""
    met: list[NDArray[np.float32]] = []

    def keep(snapshot: Any) -> None:
        met.append(np.array(snapshot.model().centers, np.float32))

    options = FitOptions(n_clusters=k, algorithm="truncated")
    fit(open_rows(x), options, n_threads=n_threads, labels=False, callbacks=[keep])
    energies, last = Energies(x, met), len(met) - 1
    found = [energies.first_within(energies[last] * (1 + excess)) for excess in NEAR]
    return [last if step is None else step for step in found]


@contextmanager
def limited() -> Iterator[None]:
    """Put this process into a new control group with a quota, until the end of the block."""
    is_second = (GROUPS / "cgroup.controllers").exists()
    parent = GROUPS if is_second else GROUPS / "cpu"
    group = parent / f"largek-cores-{os.getpid()}"
    group.mkdir()
    try:
        quota = int(QUOTA * PERIOD)
        if is_second:
            (group / "cpu.max").write_text(f"{quota} {PERIOD}")
        else:
            (group / "cpu.cfs_period_us").write_text(f"{PERIOD}")
            (group / "cpu.cfs_quota_us").write_text(f"{quota}")
        (group / "cgroup.procs").write_text(f"{os.getpid()}")
        yield
    finally:
        (parent / "cgroup.procs").write_text(f"{os.getpid()}")
        group.rmdir()


@contextmanager
def occupied(core: int) -> Iterator[None]:
    """Keep a core busy until the end of the block."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(other.pid, {core})
        yield
    finally:
        other.kill()
        other.wait()


def worst_child(path: str, k: int, case: str) -> dict[str, Any]:
    """Return wall seconds on one and on several threads, or the reason why there are none."""
    x, cores = np.load(path), sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        return {"skipped": "there is only one core"}
    os.sched_setaffinity(0, cores)
    timed(x[: 40 * k], k, WORST[case])
    seconds: dict[int, list[float]] = {1: [], WORST[case]: []}
    with ExitStack() as stack:
        try:
            if case == HALF:
                stack.enter_context(limited())
        except OSError as error:
            return {"skipped": f"no control group can be created: {error.strerror}"}
        if case == BUSY:
            stack.enter_context(occupied(cores[1]))
        usable = available_cpus()
        for _ in range(ROUNDS):
            for n, found in seconds.items():
                found.append(timed(x, k, n)[0][-1])
    return {"seconds": [float(np.median(s)) for s in seconds.values()], "available": usable}


def child(path: str, k: int, case: str | None = None) -> dict[str, Any]:
    if case is not None:
        return worst_child(path, k, case)
    x = np.load(path)
    timed(x[: 40 * k], k, 2)
    steps = steps_near(x, k, 2)
    times: dict[str, list[list[float]]] = {ONE: [], TWO: []}
    cpu: dict[str, list[float]] = {ONE: [], TWO: []}
    for _ in range(ROUNDS):
        for n in (ONE, TWO):
            seconds, spent = timed(x, k, int(n))
            times[n].append([*(seconds[step] for step in steps), seconds[-1]])
            cpu[n].append(spent)
    return {
        "seconds": {n: np.median(found, axis=0).tolist() for n, found in times.items()},
        "cpu_seconds": {n: float(np.median(found)) for n, found in cpu.items()},
    }


def table(result: dict[str, Any]) -> str:
    rows = []
    for record in result["records"]:
        pairs = zip(record["seconds"][ONE], record["seconds"][TWO], strict=True)
        cpu = record["cpu_seconds"]
        rows.append(
            [
                record["set"],
                f"{record['n']:,} × {record['d']}, {record['k']:,}",
                *(f"{one:.2f} → {two:.2f} s, {one / two:.2f}x" for one, two in pairs),
                f"{cpu[ONE]:.2f} → {cpu[TWO]:.2f}",
            ]
        )
    near = [f"to +{100 * excess:g} %" for excess in NEAR]
    note = (
        "The table shows seconds of wall time on one thread → on two threads, and the speedup, "
        "until the energy is within 1 or 0.2 % of the final energy, and until the end. The last "
        f"column shows CPU seconds of the whole fit. The target is a speedup of {AIM:g}. "
        f"Values are medians of {ROUNDS} alternating fits with the same seed, whose results are "
        f"bit-identical. Processor: {result['cpu']}. This table was made by `python -m "
        "benchmarks.cores --write`."
    )
    head = ["set", "rows × features, k", *near, "to the end", "CPU seconds"]
    return "\n".join([*table_of(head, rows), "", note])


def worst_table(result: dict[str, Any]) -> str:
    rows = []
    for record in result["worst"]:
        if "skipped" in record:
            figures = [f"skipped: {record['skipped']}", "", ""]
        else:
            one, many = record["seconds"]
            ratio = against(many / one, WORST_AIM, ".2f", least=False)
            figures = [f"{one:.2f} → {many:.2f} s", ratio, str(record["available"])]
        rows.append([record["set"], record["case"], str(WORST[record["case"]]), *figures])
    note = (
        "The table shows seconds of wall time to the end, on one thread → on several threads, in "
        "the same circumstances on two cores; their ratio and its target; and the default of "
        f"`n_threads` in these circumstances. Values are medians of {ROUNDS} alternating fits. "
        f"Processor: {result['cpu']}. This table was made by `python -m benchmarks.cores --write`."
    )
    head = ["set", "circumstances", "threads", "wall time", "ratio", "default"]
    return "\n".join([*table_of(head, rows), "", note])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    args = parse(parser, child)
    known = read_result("cores")
    records = {record["set"]: record for record in known.get("records", [])}
    worst = {(record["set"], record["case"]): record for record in known.get("worst", [])}
    with tempfile.TemporaryDirectory() as folder:
        for name in at_hand(args.sets):
            path, k = prepare(name, Path(folder)), SETS[name]
            n, d = np.load(path, mmap_mode="r").shape
            about = {"set": name, "n": n, "d": d, "k": k}
            records[name] = about | child_record("benchmarks.cores", [str(path), k])
            for case in WORST if name in WORST_SETS else ():
                record = child_record("benchmarks.cores", [str(path), k, case])
                worst[name, case] = {"set": name, "case": case, **record}
            found = {
                "cpu": cpu_description(),
                "records": [records[name] for name in SETS if name in records],
                "worst": list(worst.values()),
            }
            publish("cores", found, write=args.write)


if __name__ == "__main__":
    main()
