"""Exact labels beside a dense pass that keeps the smallest score only.

    python -m benchmarks.labels [--write]

CPU seconds of one thread on overlapping blobs, labels wanted, no distances. The same code without
the second score, squared lengths and decisions of rows in doubt runs in turns with it. Medians over
rounds of the ratio of the fastest runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from benchmarks.common import child_record, cpu_description, new_parser, parse
from benchmarks.tables import publish, table_of

FEATURES = (9, 18, 33, 64, 128, 784)
CLUSTERS = (16, 100, 1000, 4000)
FLOPS = 1.5e9
REPEATS = 5
SECONDS = 0.1
ROUNDS = 5


def rows_for(d: int, k: int) -> int:
    """Rows that give about FLOPS operations, in whole panels."""
    return int(np.clip(FLOPS / (2 * d * k), 2000, min(200_000, 3e7 / d))) // 96 * 96


@cache
def smallest_only(dtype: str) -> Callable[..., None]:
    """A pass that packs the same panels and keeps each row's smallest score and its centre."""
    from numba import njit

    from largek_dask.kernels.dense import panels
    from largek_dask.kernels.dense import search as dense
    from largek_dask.kernels.emit.rows import clear
    from largek_dask.kernels.tile import BEST, select_tile

    kind, tile = np.dtype(dtype), select_tile()
    width, fetched = tile.vectors * tile.lanes_of(kind.itemsize), dense.FETCHED
    pack, sweep = panels.pack_rows(kind, width), dense._sweep_products(tile, kind, BEST)

    @njit(nogil=True)
    def run(
        rows: Any, n: Any, d: Any, shift: Any, centers: Any, starts: Any, n_tiles: Any, cut: Any,
        space: Any, out: Any,
    ) -> None:  # fmt: skip
        packed, spare, _, values, labels, sums, _, _, _ = space
        for block in range(0, n, cut[0] * width):
            count = (min(cut[0] * width, n - block) + width - 1) // width
            for p in range(count):
                begin = block + p * width
                pack(rows, begin, min(width, n - begin), d, shift, packed, p * width * d, spare)
                clear(width, 1, 0, values, labels, 2 * p * width)
            later = -1
            if block + cut[0] * width < n and cut[0] * width * d <= fetched:
                later = (block + cut[0] * width) * d
            sweep(
                packed, count, centers, d, starts, n_tiles, cut, False, values, labels, sums, rows,
                later,
            )  # fmt: skip
            for p in range(count):
                begin = block + p * width
                for q in range(min(width, n - begin)):
                    out[begin + q] = max(labels[2 * p * width + q], 0)

    def call(x: Any, packed: Any, out: Any) -> None:
        (n, d), k, form = x.shape, packed.n_clusters, packed.dense
        blocks = panels.blocking(tile, kind.itemsize, d, k)
        space = panels.workspace(tile, kind, False, d, blocks, (0, 0))
        run(
            x.reshape(-1), n, d, form.offsets, form.factors.reshape(-1), form.starts,
            -(-k // tile.centres), blocks.as_tuple(), space, out,
        )  # fmt: skip

    return call


def passes(d: int, k: int, dtype: str) -> dict[str, Callable[[], Any]]:
    """Passes over one set, by name."""
    from largek_dask.kernels.distances import nearest, pack_centers
    from largek_dask.kernels.jit import readonly

    r, n = np.random.default_rng(d * 10_007 + k), rows_for(d, k)
    centers = r.normal(size=(k, d)).astype(dtype)
    x = readonly((centers[r.integers(k, size=n)] + r.standard_normal((n, d))).astype(dtype))
    packed, labels = pack_centers(centers, x.mean(axis=0)), np.empty(n, np.int32)

    def smallest() -> None:
        smallest_only(dtype)(x, packed, labels)

    return {"labels": lambda: nearest(x, packed, labels), "smallest": smallest}


def fastest(run: Callable[[], Any]) -> float:
    """Least CPU seconds of some runs."""
    run()
    times: list[float] = []
    while len(times) < REPEATS or (sum(times) < SECONDS and len(times) < 200):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return min(times)


def child() -> list[dict[str, Any]]:
    """One record for each number of features and clusters."""
    records = []
    for d, k in ((d, k) for d in FEATURES for k in CLUSTERS):
        found, times, ratios = passes(d, k, "f4"), [], []
        for _ in range(ROUNDS):
            times.append(fastest(found["labels"]))
            ratios.append(times[-1] / fastest(found["smallest"]))
        n = rows_for(d, k)
        record: dict[str, Any] = {"d": d, "k": k, "dtype": "f4", "n": n}
        record |= {"nanoseconds": min(times) / n * 1e9, "smallest": float(np.median(ratios))}
        print(record, file=sys.stderr, flush=True)
        records.append(record)
    return records


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result: a line for each number of features."""
    points = {(p["d"], p["k"]): p for p in result["points"] if p["dtype"] == "f4"}
    rows = []
    for d in FEATURES:
        own = [points[d, k] for k in CLUSTERS]
        cells = [f"{p['nanoseconds']:.1f} ({100 * (p['smallest'] - 1):+z.0f} %)" for p in own]
        rows.append([f"{d}", *cells])
    note = (
        "Nanoseconds a row, and how much more that is than keeping the smallest score only takes. "
        f"One thread, float32, labels only; {result['cpu']}. Made by "
        "`python -m benchmarks.labels --write`."
    )
    return "\n".join([*table_of(["d", *(f"k = {k:,}" for k in CLUSTERS)], rows), "", note])


def main() -> None:
    """Measure, and write if asked to."""
    args = parse(new_parser(__doc__), child)
    points = child_record("benchmarks.labels", [])
    publish("labels", {"cpu": cpu_description(), "points": points}, write=args.write)


if __name__ == "__main__":
    main()
