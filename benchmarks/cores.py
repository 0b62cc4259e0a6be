"""Compare fits of the default on one and on two threads.

    python -m benchmarks.cores [--sets A glove100k ...] [--write]

The results are wall seconds until the energy of all rows is within 1 % and 0.2 % of the final
energy, and until the end, including exact labels. Fits on one and on two threads alternate, and
medians of three rounds with one seed are reported. Results are bit-identical, so both take the same
steps. A separate run finds the steps at which these energies are reached.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import child_record, cpu_description, new_parser, parse
from benchmarks.curves import Energies
from benchmarks.sets import at_hand, prepare
from benchmarks.tables import publish, table_of
from largek_dask.data.sources import open_rows
from largek_dask.driver.fit import fit
from largek_dask.driver.options import FitOptions

SETS = {"A": 1_000, "B": 1_000, "C": 500, "glove100k": 1_000}
"""Numbers of clusters by set."""
ROUNDS = 3
NEAR = (0.01, 0.002)
"""Excesses over the final energy."""
AIM = 1.85
ONE, TWO = "1", "2"


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


def child(path: str, k: int) -> dict[str, Any]:
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


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    args = parse(parser, child)
    records = []
    with tempfile.TemporaryDirectory() as folder:
        for name in at_hand(args.sets):
            path, k = prepare(name, Path(folder)), SETS[name]
            n, d = np.load(path, mmap_mode="r").shape
            record = child_record("benchmarks.cores", [str(path), k])
            records.append({"set": name, "n": n, "d": d, "k": k, **record})
            print(records[-1], flush=True)
    publish("cores", {"cpu": cpu_description(), "records": records}, write=args.write)


if __name__ == "__main__":
    main()
