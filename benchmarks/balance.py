"""Busy time over workers when a nested batch is split evenly over its entry iterations, or not.

    python -m benchmarks.balance [--write]

Newling and Fleuret (2016, section 3.3): rows that have been in the batch for long are cheap,
their bounds spare most distances, and rows that enter are dear. So every worker should hold the
same share of the rows of every entry iteration (even), and not whole entry iterations (naive: each
goes to the worker that holds fewest rows). The batches, centres and bounds of a run are the same
either way; each worker's part of every iteration is timed alone, on one thread.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import largek_dask as lk
from benchmarks.common import RESULTS, cpu_description, save
from benchmarks.tables import write_tables

N_WORKERS = 4
N_CLUSTERS = 1000
N_GROUPS = 16
ITERATIONS = 40
SHAPE = "B"

Part = tuple[NDArray[Any], ...]


class Worker:
    """The rows of one worker, with their labels and bounds."""

    def __init__(self) -> None:
        self.x: NDArray[Any] | None = None
        self.kept: Part = ()
        self.seconds: list[float] = []

    @property
    def n_rows(self) -> int:
        """Rows it holds."""
        return 0 if self.x is None else len(self.x)

    def work(self, entering: NDArray[Any], bounded: Any) -> None:
        """Bring old rows up to date, look at new ones in full; the CPU seconds are noted."""
        from largek_dask.kernels.bounds import bounds

        begun = time.process_time()
        if self.x is not None:
            bounds.assign(self.x, bounded, *self.kept)
        new = bounds.start(entering, bounded)[:3] if len(entering) else ()
        self.seconds.append(time.process_time() - begun)
        if new:
            old = (self.x, *self.kept)
            joined = [
                part if before is None else np.concatenate([before, part])
                for before, part in zip(
                    old if self.kept else [None] * 4, (entering, *new), strict=True
                )
            ]
            self.x, self.kept = joined[0], tuple(joined[1:])


def dealt(x: NDArray[Any], split: str, workers: list[Worker]) -> list[NDArray[Any]]:
    """Who takes which of the rows that enter."""
    if split == "even":
        return [x[w :: len(workers)] for w in range(len(workers))]
    least = min(range(len(workers)), key=lambda w: workers[w].n_rows)
    return [x if w == least else x[:0] for w in range(len(workers))]


def busy(x: NDArray[np.float32]) -> dict[str, list[list[float]]]:
    """Seconds of every worker (columns) in every iteration (rows), by kind of split."""
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.data.sources import open_rows
    from largek_dask.kernels.bounds.groups import BoundedCenters, Drift, group_centers
    from largek_dask.kernels.distances import pack_centers
    from largek_dask.passes.local import LocalPasses

    order = np.random.default_rng(1).permutation(len(x))
    x = x[order]
    algorithm = replace(
        lk.NMBatch.paper(rho=1.0), problem=KMeansProblem(N_CLUSTERS, x[:N_CLUSTERS])
    )
    batches, centers = [], []
    with LocalPasses(open_rows(x), n_threads=2) as passes:
        state = algorithm.init(passes, Rng(0))
        shift = state.shift
        for _ in range(ITERATIONS):
            batches.append(state.rows)
            centers.append(state.centers)
            state, info = algorithm.step(passes, Rng(0), state)
            if info.converged:
                break
    result = {}
    for split in ("even", "naive"):
        workers = [Worker() for _ in range(N_WORKERS)]
        groups, drift, before, rows = None, None, None, 0
        for now, size in zip(centers, batches, strict=True):
            packed = pack_centers(now, shift)
            if groups is None:
                groups = group_centers(now, shift, N_GROUPS)
                drift = Drift.zero(groups)
            else:
                drift = drift.advance(before, packed, groups)
            before = packed
            parts = dealt(x[rows:size], split, workers)
            for worker, part in zip(workers, parts, strict=True):
                worker.work(part, BoundedCenters(packed, groups, drift))
            rows = size
        result[split] = np.array([worker.seconds for worker in workers]).T.tolist()
    return result


def spread(seconds: list[list[float]]) -> tuple[float, float]:
    """Busiest worker's time over the mean, in all; and seconds until the slowest has finished."""
    table = np.array(seconds)
    waited = float(table.max(axis=1).sum())
    return waited / float(table.mean(axis=1).sum()), waited


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result."""
    lines = [
        "| split of a batch over 4 workers | slowest worker / mean | s until the slowest is done |",
        "|---|---|---|",
    ]
    for split, seconds in result["seconds"].items():
        ratio, waited = spread(seconds)
        lines.append(f"| {split} | {ratio:.2f} | {waited:.2f} |")
    return "\n".join(
        [
            *lines,
            "",
            f"Summed over {len(result['seconds']['even'])} iterations of nmbatch on set {SHAPE}, "
            f"k = {N_CLUSTERS}; {result['cpu']}. Made by `python -m benchmarks.balance --write`.",
        ]
    )


def picture(result: dict[str, Any]) -> None:
    """Busy time of every worker in every iteration, for both splits."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2, sharey=True)
    for ax, (split, seconds) in zip(axes, result["seconds"].items(), strict=True):
        for w, line in enumerate(np.array(seconds).T):
            ax.step(range(1, len(line) + 1), line, where="mid", label=f"worker {w + 1}")
        ax.set(title=f"{split} split", xlabel="iteration")
        ax.grid(True, alpha=0.2)
    axes[0].set_ylabel("busy seconds")
    axes[1].legend(fontsize=8)
    RESULTS.mkdir(parents=True, exist_ok=True)
    figure.savefig(RESULTS / "balance.png", dpi=110)


def main() -> None:
    """Measure, draw, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="save results, write the table")
    args = parser.parse_args()
    from largek_dask.data.synthetic import generate

    x = generate(SHAPE)
    busy(x[:20_000])  # compiles and loads
    result = {"cpu": cpu_description(), "seconds": busy(x)}
    print(table(result))
    if args.write:
        picture(result)
        save("balance", result)
        write_tables("balance", result)


if __name__ == "__main__":
    main()
