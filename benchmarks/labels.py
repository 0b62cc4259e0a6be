"""What exact labels cost: a dense pass beside one that keeps the smallest score only.

    git worktree add ../before c97a2ee
    python -m benchmarks.labels [--before ../before] [--features 9 18 ...] [--write]

writes `results/labels.json` and the table of `RESULTS.md`. CPU seconds of one thread on overlapping
blobs (`benchmarks.kernels.data`), labels wanted, no distances. The same code without the second
score, squared lengths and decisions of rows in doubt runs in turns with it in one process; the
package of another checkout (c97a2ee kept the smallest score only, and packed more rows together)
in a process of its own, in turns too. Medians over rounds of the ratio of the fastest runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
FEATURES = (9, 18, 33, 64, 128, 784)
CLUSTERS = (16, 100, 1000, 4000)
DOUBLE = ((18, 100), (64, 1000))
"""Features and clusters that are measured in float64 too."""
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
    """The passes over one set, by name."""
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


def serve() -> None:
    """Measure what is asked for, a line each, until there is no more."""
    point, found = None, {}
    for line in sys.stdin:
        what, *asked = json.loads(line)
        if asked != point:
            point, found = asked, passes(*asked)
        print(fastest(found[what]), flush=True)


class Package:
    """A checkout whose package measures in a process of its own."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "benchmarks" / "labels.py"), "--child"],
            cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def seconds(self, what: str, *point: Any) -> float:
        """CPU seconds of a pass."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([what, *point]), file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def measure(points: list[tuple[int, int, str]], before: Path | None) -> list[dict[str, Any]]:
    """One record a point."""
    here = Package(ROOT)
    other = None if before is None else Package(before)
    records = []
    for point in points:
        ratios: dict[str, list[float]] = {"smallest": [], "before": []}
        times = []
        for _ in range(ROUNDS):
            times.append(here.seconds("labels", *point))
            ratios["smallest"].append(times[-1] / here.seconds("smallest", *point))
            if other is not None:
                ratios["before"].append(times[-1] / other.seconds("labels", *point))
        d, k, dtype = point
        record: dict[str, Any] = {"d": d, "k": k, "dtype": dtype, "n": rows_for(d, k)}
        record["nanoseconds"] = min(times) / record["n"] * 1e9
        record |= {name: float(np.median(some)) for name, some in ratios.items() if some}
        print(record, file=sys.stderr, flush=True)
        records.append(record)
    here.close()
    if other is not None:
        other.close()
    return records


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result."""

    def more(record: dict[str, Any], name: str) -> str:
        return f"{100 * (record[name] - 1):+.0f} %" if name in record else ""

    lines = [
        "| d | k | | ns a row | against the smallest score only | against c97a2ee |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['d']} | {r['k']} | {r['dtype']} | {r['nanoseconds']:.1f} | {more(r, 'smallest')} "
        f"| {more(r, 'before')} |"
        for r in result["points"]
    ]
    made = "Made by `python -m benchmarks.labels --before ../before --write`."
    lines += ["", f"One thread, labels only; {result['cpu']}. {made}"]
    return "\n".join(lines)


def main() -> None:
    """Measure, save, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="folder of another checkout")
    parser.add_argument("--features", type=int, nargs="+", default=FEATURES)
    parser.add_argument("--clusters", type=int, nargs="+", default=CLUSTERS)
    parser.add_argument("--write", action="store_true", help="save results, write the table")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        serve()
        return
    from benchmarks.common import cpu_description, save
    from benchmarks.tables import write_tables

    points = [(d, k, "f4") for d in args.features for k in args.clusters]
    points += [(d, k, "f8") for d, k in DOUBLE]
    before = None if args.before is None else args.before.resolve()
    result = {"cpu": cpu_description(), "points": measure(points, before)}
    print(table(result))
    if args.write:
        save("labels", result)
        write_tables("labels", result)


if __name__ == "__main__":
    main()
