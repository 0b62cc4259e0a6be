"""Labels by a search that meets few of many centres, beside a dense pass over the same rows.

    python -m benchmarks.labels_pruned [--write]

Both run in turns in one process, on one thread, with centres that a fit has found. Rows are as few
as it takes for boxes to be made at all, so making them weighs as much as it ever does. Medians over
rounds of the ratio of CPU seconds; labels are compared.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import largek_dask as lk
from benchmarks.common import cpu_description, new_parser, parse
from benchmarks.sets import at_hand, data_folder, patches
from benchmarks.tables import publish, table_of
from largek_dask.data.synthetic import generate
from largek_dask.kernels.bounds import boxes
from largek_dask.kernels.distances import nearest, pack_centers

ROUNDS = 5
POINTS: tuple[tuple[int | str | None, int, int, str], ...] = (
    (8_000, 32, 8_000, "f4"),
    (8_000, 32, 8_000, "f8"),
    (32_000, 32, 32_000, "f4"),
    (2_000, 8, 8_000, "f4"),
    (None, 32, 8_192, "f4"),
    ("mnist", 784, 1_000, "f4"),
    ("mnist", 784, 4_000, "f4"),
    ("patches", 3_072, 1_000, "f4"),
    (None, 784, 1_000, "f4"),
)
"""Components of the rows (None: one Gaussian, without structure) or a set's name, features,
clusters, type."""
FITTED, MOST_VALUES = 150_000, 1 << 26
"""Rows of each of these sets that centres are fitted to, of no more numbers than these."""


def rows_of(components: int | str | None, n: int, d: int, dtype: str) -> NDArray[Any]:
    """At least n rows, or all rows of a set."""
    if components == "patches":
        return patches().astype(dtype)
    if isinstance(components, str):
        return np.load(data_folder() / f"{components}.npz")["X"].astype(dtype)
    if components is None:
        return np.random.default_rng(5).standard_normal((n, d)).astype(dtype)
    return generate("mixture", n, d, n_components=components, seed=3, dtype=dtype)


def record_of(components: int | str | None, d: int, k: int, dtype: str) -> dict[str, Any]:
    """Measure both searches over the same rows, and compare their labels."""
    n = int(boxes.LEAST_WORK / (k * d)) + 1
    x = rows_of(components, max(n, min(FITTED, MOST_VALUES // d)), d, dtype)
    n = min(n, len(x))
    model = lk.KMeans(k, random_state=0, max_iter=3, n_threads=1).fit(x[:FITTED]).model_
    centers, shift = (part.astype(dtype) for part in (model.arrays.centers, model.arrays.shift))
    x = x[:n]

    def dense() -> tuple[Any, int]:
        return nearest(x, pack_centers(centers, shift)), n * k

    def pruned() -> tuple[Any, int]:
        return boxes.nearest_pruned(x, pack_centers(centers, shift))

    # Fewer rows than make it worth to compile kernels are looked at in vain the first time.
    pruned()
    (labels, _), (found, n_evaluated) = dense(), pruned()
    np.testing.assert_array_equal(labels, found)
    seconds: dict[str, list[float]] = {"dense": [], "pruned": []}
    for _ in range(ROUNDS):
        for name, run in (("dense", dense), ("pruned", pruned)):
            begin = time.process_time()
            run()
            seconds[name].append(time.process_time() - begin)
    record: dict[str, Any] = {"components": components, "d": d, "k": k, "dtype": dtype, "n": n}
    record |= {name: min(some) for name, some in seconds.items()}
    ratios = np.array(seconds["pruned"]) / np.array(seconds["dense"])
    record |= {"ratio": float(np.median(ratios)), "ratios": ratios.tolist()}
    record["evaluated"] = n_evaluated / (n * k)
    print(record, file=sys.stderr, flush=True)
    return record


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result."""
    rows = []
    for r in result["points"]:
        of = r["components"]
        name = "one Gaussian" if of is None else of if isinstance(of, str) else f"{of:,} components"
        dense, pruned = (f"{r[kind] / r['n'] * 1e9:.0f}" for kind in ("dense", "pruned"))
        cells = [name, f"{r['d']}", f"{r['k']}", r["dtype"], dense, pruned, f"{r['ratio']:.2f}x"]
        rows.append([*cells, f"{100 * r['evaluated']:.1f} %"])
    head = ["rows", "d", "k", "", "dense, ns a row", "few centres met, ns a row", "time",
            "distances"]  # fmt: skip
    note = (
        f"CPU time of one thread; {result['cpu']}. Made by "
        "`python -m benchmarks.labels_pruned --write`."
    )
    return "\n".join([*table_of(head, rows), "", note])


def main() -> None:
    """Measure, and write if asked to."""
    args = parse(new_parser(__doc__))
    there = at_hand(["mnist"])
    points = [record_of(*point) for point in POINTS if point[0] != "mnist" or there]
    publish("labels_pruned", {"cpu": cpu_description(), "points": points}, write=args.write)


if __name__ == "__main__":
    main()
