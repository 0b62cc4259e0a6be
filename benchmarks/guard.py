"""Whether anything has become slower: counts of fixed fits, and ratios that any machine can tell.

    python -m benchmarks.guard [--counted] [--write]

Counts (:mod:`benchmarks.counted`) have no noise: one that has grown by more than 5 % is an error.
Ratios are of CPU seconds in one run, on one thread: our kernels beside a product of the same size
by the BLAS of numpy, in turns, and ``auto`` on a small A beside a product of all rows and centres;
one that has become worse by more than 15 % is an error. They are compared with those of machines
with the same vectors (``avx2``, ``avx512f``), where there are any. Errors are printed, and the exit
status is 1. ``--counted`` leaves ratios out; ``--write`` makes what was found what is expected, for
this machine's vectors.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import largek_dask as lk
from benchmarks.common import RESULTS, child_record, cpu_description, save
from benchmarks.counted import Counts, table_of_counts
from benchmarks.kernels import data
from benchmarks.tables import write_tables
from largek_dask.data.synthetic import generate
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.kernels.exact.statistics import RowScan
from largek_dask.kernels.exact.sums import ClusterSums

KERNELS = ((8, 1000), (18, 50), (64, 50), (64, 1000), (784, 500), (3072, 500))
"""Features and clusters."""
FLOPS = 4e9
TURNS = 7
SMALL_A = (40_000, 500)
"""Rows and clusters."""
PRODUCTS = 20
MORE_COUNTED, WORSE_RATIO = 1.05, 1.15
"""What is still let pass, times what was expected."""
Ratios = dict[str, float]


def ratios() -> Ratios:
    """Seconds of ours beside those of a product of the same size, by what was tried."""
    found = {}
    for d, k in KERNELS:
        n = int(np.clip(FLOPS / (2 * d * k), 2_000, 400_000))
        x, centers = data(n, d, k)
        packed, columns = pack_centers(centers, x.mean(axis=0)), np.ascontiguousarray(centers.T)
        labels, squares = np.empty(n, np.int32), np.empty(n, np.float32)
        product = np.empty((n, k), np.float32)
        found[f"nearest, d = {d:,}, k = {k:,}"] = beside(
            lambda x=x, p=packed, a=labels, b=squares: nearest(x, p, a, b),
            lambda x=x, c=columns, out=product: np.matmul(x, c, out=out),
        )
    found["exact sums, d = 64, k = 1,000"] = of_sums()
    found["auto, small A"] = of_auto()
    return found


def measured(expected: Ratios) -> Ratios:
    """The ratios, in a process of their own; the least of three where the first seem worse."""
    found: Ratios = child_record("benchmarks.guard", "ratios")
    for _ in range(2):
        if worse(found, expected):
            again = child_record("benchmarks.guard", "ratios")
            found = {name: min(ratio, again[name]) for name, ratio in found.items()}
    return found


def of_sums() -> float:
    """Exact sums of all rows beside the product of all rows and centres."""
    x, centers = data(100_000, 64, 1_000)
    scan = RowScan(x.shape[1], x.dtype)
    scan.add(x)
    statistics = scan.finish()
    labels = nearest(x, pack_centers(centers, statistics.shift))
    total = ClusterSums(len(centers), x.shape[1], statistics.grid)
    some, columns = x[:20_000], np.ascontiguousarray(centers.T)
    return beside(lambda: total.add(x, labels), lambda: some @ columns) / 5


def of_auto() -> float:
    """A whole fit beside one product of all rows and centres."""
    n, k = SMALL_A
    x = generate("A", n)
    columns, product = np.ascontiguousarray(x[:k].T), np.empty((n, k), np.float32)

    def products() -> None:
        # One alone is over before memory and caches are warm after a fit.
        for _ in range(PRODUCTS):
            np.matmul(x, columns, out=product)

    fit = beside(lambda: lk.KMeans(k, random_state=0, n_threads=1).fit(x), products, turns=3)
    return fit * PRODUCTS


def beside(ours: Callable[[], Any], product: Callable[[], Any], turns: int = TURNS) -> float:
    """The quotient of the least CPU seconds of either, in turns, after one that does not count.

    What runs beside can only make either slower, for a while.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns + 1):
        for run, spent in zip((ours, product), seconds, strict=True):
            begun = time.process_time()
            run()
            spent.append(time.process_time() - begun)
    return min(seconds[0][1:]) / min(seconds[1][1:])


def vectors() -> str:
    """The widest vectors of this machine that ratios depend on."""
    return "avx512f" if "avx512f" in cpu_description() else "avx2"


def grown(counts: dict[str, Counts], expected: dict[str, Counts]) -> list[str]:
    """What is counted more than is let pass, in words, or not expected at all."""
    told = []
    for fit, found in counts.items():
        for name, count in found.items():
            before = expected.get(fit, {}).get(name, 0)
            if count > MORE_COUNTED * before:
                told.append(f"{fit}: {count:,} {name} instead of {before:,}")
    return told


def worse(found: Ratios, expected: Ratios) -> list[str]:
    """Which ratios have become worse by more than is let pass, in words."""
    return [
        f"{name}: {ratio:.2f} times a product instead of {expected[name]:.2f}"
        for name, ratio in found.items()
        if name in expected and ratio > WORSE_RATIO * expected[name]
    ]


def expected() -> dict[str, Any]:
    """What was written last."""
    result: dict[str, Any] = json.loads((RESULTS / "guard.json").read_text())
    return result


def counts_table(result: dict[str, Any]) -> str:
    """The markdown table of the expected counts."""
    counts = table_of_counts(result["counts"])
    return f"{counts}\n\nMade by `python -m benchmarks.guard --write`."


def table(result: dict[str, Any]) -> str:
    """The markdown table of the expected ratios."""
    machines = result["ratios"]
    names = list(dict.fromkeys(name for found in machines.values() for name in found["ratios"]))
    lines = [f"| times a product | {' | '.join(machines)} |", "|---" * (1 + len(machines)) + "|"]
    for name in names:
        cells = [
            f"{found['ratios'][name]:.2f}" if name in found["ratios"] else ""
            for found in machines.values()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    told = "; ".join(f"{kind}: {found['cpu']}" for kind, found in machines.items())
    return "\n".join([*lines, "", f"{told}. Made by `python -m benchmarks.guard --write`."])


def main() -> None:
    """Count, measure, compare, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counted", action="store_true", help="no ratios")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(ratios()))
        return
    known = expected()
    result: dict[str, Any] = {
        "counts": child_record("benchmarks.counted", None),
        "ratios": dict(known["ratios"]),
    }
    told = grown(result["counts"], known["counts"])
    print(counts_table(result))
    if not args.counted:
        before = known["ratios"].get(vectors(), {"ratios": {}})["ratios"]
        if not before:
            print(f"No ratios of a machine with {vectors()} are known.")
        found = measured({} if args.write else before)
        told += worse(found, before)
        result["ratios"][vectors()] = {"cpu": cpu_description(), "ratios": found}
        print(table(result))
    if args.write:
        save("guard", result)
        write_tables("guard", result)
        print(RESULTS / "guard.json")
        return
    for line in told:
        print("worse:", line)
    if told:
        sys.exit(1)


if __name__ == "__main__":
    main()
