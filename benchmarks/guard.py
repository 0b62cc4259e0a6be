"""Detect slower code by counts of operations, and by ratios that are comparable between machines.

    python -m benchmarks.guard [--counted] [--write]

Counts (:mod:`benchmarks.counted`) have no noise; a count that grows by more than 5 % is an error.
Ratios compare CPU seconds within one run, on one thread: kernels with a product of the same size in
numpy's BLAS, and ``auto`` on a small set A with a product of all rows and centres. A ratio that
grows by more than 15 % is an error. Ratios are compared with those of machines with the same vector
instructions (``avx2``, ``avx512f``), if there are any. Errors are printed, and the exit status is
1. ``--counted`` omits the ratios. ``--write`` saves the results as expected values for this
machine's vector instructions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import largek_dask as lk
from benchmarks.common import child_record, cpu_description, new_parser, parse, read_result
from benchmarks.counted import Counts, table_of_counts
from benchmarks.kernels import data
from benchmarks.synthetic import generate
from benchmarks.tables import publish, table_of
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.kernels.exact.statistics import RowScan
from largek_dask.kernels.exact.sums import ClusterSums

KERNELS = ((8, 1000), (18, 50), (64, 50), (64, 1000), (784, 500), (3072, 500))
"""Features and clusters."""
FLOPS = 4e9
TURNS = 7
SMALL_A = (40_000, 500)
PRODUCTS = 20
MORE_COUNTED, WORSE_RATIO = 1.05, 1.15
"""Allowed values, as multiples of the expected ones."""
Ratios = dict[str, float]


def ratios() -> Ratios:
    """Return our seconds divided by those of a product of the same size, by name."""
    found = {}
    for d, k in KERNELS:
        n = int(np.clip(FLOPS / (2 * d * k), 2_000, 400_000))
        x, centers = data(n, d, k)
        packed, columns = pack_centers(centers, x.mean(axis=0)), np.ascontiguousarray(centers.T)
        labels, product = np.empty(n, np.int32), np.empty((n, k), np.float32)
        found[f"nearest, d = {d:,}, k = {k:,}"] = beside(
            lambda x=x, p=packed, a=labels: nearest(x, p, a),
            lambda x=x, c=columns, out=product: np.matmul(x, c, out=out),
        )
    found["exact sums, d = 64, k = 1,000"] = of_sums()
    found["auto, small A"] = of_auto()
    return found


def measured(expected: Ratios) -> Ratios:
    """Measure the ratios in a separate process, three times if the first ones are worse."""
    found: Ratios = child_record("benchmarks.guard", [])
    for _ in range(2):
        if worse(found, expected):
            again = child_record("benchmarks.guard", [])
            found = {name: min(ratio, again[name]) for name, ratio in found.items()}
    return found


def of_sums() -> float:
    """Compare exact sums of all rows with a product of all rows and centres."""
    x, centers = data(100_000, 64, 1_000)
    scan = RowScan(x.shape[1], x.dtype)
    scan.add(x)
    statistics = scan.finish()
    labels = nearest(x, pack_centers(centers, statistics.shift))
    total = ClusterSums(len(centers), x.shape[1], statistics.grid)
    some, columns = x[:20_000], np.ascontiguousarray(centers.T)
    return beside(lambda: total.add(x, labels), lambda: some @ columns) / 5


def of_auto() -> float:
    """Compare a whole fit with one product of all rows and centres."""
    n, k = SMALL_A
    x = generate("A", n)
    columns, product = np.ascontiguousarray(x[:k].T), np.empty((n, k), np.float32)

    def products() -> None:
        # A single call would end before caches are warm after a fit.
        for _ in range(PRODUCTS):
            np.matmul(x, columns, out=product)

    fit = beside(lambda: lk.KMeans(k, random_state=0, n_threads=1).fit(x), products, turns=3)
    return fit * PRODUCTS


def beside(ours: Callable[[], Any], product: Callable[[], Any], turns: int = TURNS) -> float:
    """Return the ratio of minimum CPU seconds over alternating calls, after one warm-up call.

    The minimum is used because other processes can only make calls slower.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns + 1):
        for run, spent in zip((ours, product), seconds, strict=True):
            begun = time.process_time()
            run()
            spent.append(time.process_time() - begun)
    return min(seconds[0][1:]) / min(seconds[1][1:])


def vectors() -> str:
    """Return the widest vector instructions of this machine that ratios depend on."""
    return "avx512f" if "avx512f" in cpu_description() else "avx2"


def grown(counts: dict[str, Counts], expected: dict[str, Counts]) -> list[str]:
    """Describe counts that grew by more than the allowed amount or were not expected."""
    lines = []
    for fit, found in counts.items():
        for name, count in found.items():
            before = expected.get(fit, {}).get(name, 0)
            if count > MORE_COUNTED * before:
                lines.append(f"{fit}: {count:,} {name} instead of {before:,}")
    return lines


def worse(found: Ratios, expected: Ratios) -> list[str]:
    """Describe ratios that grew by more than the allowed amount."""
    return [
        f"{name}: {ratio:.2f} times a product instead of {expected[name]:.2f}"
        for name, ratio in found.items()
        if name in expected and ratio > WORSE_RATIO * expected[name]
    ]


def expected() -> dict[str, Any]:
    """Return the values that were saved last."""
    return read_result("guard")


def counts_table(result: dict[str, Any]) -> str:
    return "\n".join(
        [
            *table_of_counts(result["counts"]),
            "",
            "This table was made by `python -m benchmarks.guard --write`.",
        ]
    )


def table(result: dict[str, Any]) -> str:
    machines = result["ratios"]
    names = list(dict.fromkeys(name for found in machines.values() for name in found["ratios"]))
    rows = [
        [
            name,
            *(
                f"{found['ratios'][name]:.2f}" if name in found["ratios"] else ""
                for found in machines.values()
            ),
        ]
        for name in names
    ]
    note = ". ".join(f"Processor for {kind}: {found['cpu']}" for kind, found in machines.items())
    note += ". This table was made by `python -m benchmarks.guard --write`."
    return "\n".join([*table_of(["multiple of a matrix product", *machines], rows), "", note])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--counted", action="store_true", help="omit the ratios")
    args = parse(parser, ratios)
    known = expected()
    result: dict[str, Any] = {
        "counts": child_record("benchmarks.counted", []),
        "ratios": dict(known["ratios"]),
    }
    slower = grown(result["counts"], known["counts"])
    if not args.counted:
        before = known["ratios"].get(vectors(), {"ratios": {}})["ratios"]
        if not before:
            print(f"No ratios of a machine with {vectors()} are known.")
        found = measured({} if args.write else before)
        slower += worse(found, before)
        result["ratios"][vectors()] = {"cpu": cpu_description(), "ratios": found}
    publish("guard", result, write=args.write, indent=1)
    if args.write:
        return
    for line in slower:
        print("worse:", line)
    if slower:
        sys.exit(1)


if __name__ == "__main__":
    main()
