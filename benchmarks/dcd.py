"""Every partition up to k in one fit (`PartitionPath`), and ten starts for each number of clusters.

    python -m benchmarks.dcd [--sets eeg ...] [--write]

All partitions into 2 to 25 clusters of four public sets, by every effort, and by scikit-learn's
k-means with ten starts for each number, in double precision, which is its faster one on these sets.
Its "k-means++" is the greedy one, of several candidates for each centre; the plain one has one
candidate. Ours get rows as they are stored. Runs on a set share a process of one thread, in turns,
for every seed in another order. A set that has been measured is saved at once, among those of
earlier runs.

Objectives are those of the centres that a method ends with, outside of all clocks: a sum in double
precision of the squared distances to the nearest of them, by numpy alone and by no code of ours.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import largek_dask as lk
from benchmarks.common import (
    RESULTS,
    child_record,
    commit,
    cpu_description,
    in_turn,
    new_parser,
    parse,
    read_result,
    rounded,
)
from benchmarks.dcd_tables import BEST, COUNTS, EFFORTS, SETS, TEN, TEN_GREEDY, values
from benchmarks.peers import timed
from benchmarks.pictures import new_figure
from benchmarks.sets import at_hand, data_folder
from benchmarks.tables import publish

Record = dict[str, Any]
Rows = NDArray[Any]

STARTS = 10
BLOCK = 1 << 20
"""Differences of rows and centres that are held at a time."""
WARM_ROWS, WARM_CLUSTERS = 2_000, 5
"""Rows and clusters of a first run of all methods, before any is timed."""
DIGITS = 12
"""Digits of numbers in the results: objectives are compared to nine."""
MARKS = {TEN: ("tab:gray", "o"), TEN_GREEDY: ("black", "x")}


@dataclass
class Found:
    """Partitions, and the CPU seconds of all of them together."""

    centers: list[Rows]
    """(k, d) for each number of clusters from 2 on."""
    seconds: float
    about: dict[str, Any] = field(default_factory=dict)
    """Other figures of a fit of ours."""


Method = Callable[[Rows, int, int], Found]
"""``method(rows, k, seed)``: partitions of rows into 2 to k clusters."""


def effort(name: str) -> Method:
    """One fit of ours for all partitions up to the largest."""

    def find(x: Rows, k_max: int, seed: int) -> Found:
        algorithm = lk.PartitionPath(effort=name)
        km = lk.KMeans(k_max, algorithm=algorithm, random_state=seed, n_threads=1)
        km, seconds = timed(km.fit, x)
        bounds = np.asarray(km.path_.lower_bound[1:k_max], float).tolist()
        centers = [np.array(km.path_.centers(k)) for k in range(2, k_max + 1)]
        return Found(centers, seconds, {"bounds": bounds})

    return find


def plain_start(x: Rows, n_clusters: int, random_state: Any) -> Rows:
    """k-means++ with one candidate for each centre."""
    from sklearn.cluster import kmeans_plusplus

    centers, _ = kmeans_plusplus(x, n_clusters, random_state=random_state, n_local_trials=1)
    return np.array(centers)


def ten_starts(init: Any) -> Method:
    """Ten starts for every number of clusters, the best kept, by scikit-learn."""

    def find(x: Rows, k_max: int, seed: int) -> Found:
        from sklearn.cluster import KMeans

        x, found = np.ascontiguousarray(x, np.float64), Found([], 0.0)
        for k in range(2, k_max + 1):
            chance = np.random.RandomState([seed, k])
            fit = KMeans(k, init=init, n_init=STARTS, random_state=chance).fit
            km, seconds = timed(fit, x)
            found.seconds += seconds
            found.centers.append(km.cluster_centers_)
        return found

    return find


METHODS: dict[str, Method] = {
    TEN: ten_starts(plain_start),
    TEN_GREEDY: ten_starts("k-means++"),
    **{name: effort(name) for name in EFFORTS},
}
"""All methods by name."""


def objective(x: Rows, centers: Rows) -> float:
    """The sum of squared distances of all rows to their nearest centres, in double precision."""
    wide = np.asarray(centers, np.float64)
    step, parts = max(1, BLOCK // wide.size), []
    for start in range(0, len(x), step):
        rows = x[start : start + step].astype(np.float64)
        nearest = np.full(len(rows), np.inf)
        for center in wide:
            np.minimum(nearest, ((rows - center) ** 2).sum(axis=1), out=nearest)
        parts.append(float(nearest.sum()))
    return math.fsum(parts)


def child(name: str, n_seeds: int) -> Record:
    """Runs of all methods on a set, for all seeds."""
    # Fewer distinct rows than clusters cause warnings, and do no harm here.
    warnings.simplefilter("ignore")
    x = np.load(data_folder() / f"{name}.npz")["X"]
    for find in METHODS.values():
        find(x[:: max(1, len(x) // WARM_ROWS)], WARM_CLUSTERS, n_seeds)
    # A collection of garbage takes 65 ms, in whichever run it happens.
    gc.collect()
    gc.freeze()
    runs: dict[str, list[Record]] = {method: [] for method in METHODS}
    for seed in range(n_seeds):
        for method in in_turn(list(METHODS), seed):
            found = METHODS[method](x, COUNTS[-1], seed)
            ends = [objective(x, centers) for centers in found.centers]
            runs[method].append({"seconds": found.seconds, "values": ends, **found.about})
            print(f"{name}, seed {seed}, {method}: {found.seconds:.2f} s", file=sys.stderr)
    # One core is that of this process.
    others = round(max(0.0, os.getloadavg()[1] - 1), 2)
    methods = {method: {"others": others, "seeds": several} for method, several in runs.items()}
    return {"n": len(x), "d": x.shape[1], "commit": commit()[:12], "methods": methods}


def draw_elbows(sets: dict[str, Record], path: Path) -> None:
    """Draw a panel for each set: the curve of the highest effort, its bounds, and ten starts."""
    figure, panels = new_figure(len(sets), 3.4 * len(sets), 4)
    for axes, (name, record) in zip(panels, sets.items(), strict=True):
        curve = np.median(values(record, BEST), axis=0)
        axes.plot(COUNTS, curve, color="tab:red", lw=1.6, label=f"PartitionPath, {BEST}")
        bounds = np.array(record["methods"][BEST]["seeds"][0]["bounds"])
        axes.plot(COUNTS, np.where(bounds > 0, bounds, np.nan), color="tab:red", lw=0.8,
                  ls="--", label="lower bound")  # fmt: skip
        lows = [curve.min()]
        for method, (color, marker) in MARKS.items():
            points = np.median(values(record, method), axis=0)
            axes.plot(COUNTS, points, color=color, marker=marker, ms=4, ls="", label=method)
            lows.append(points.min())
        axes.set(yscale="log", xlabel="clusters", ylim=(min(lows) / 3, None))
        axes.set_title(f"{name}: {record['n']:,} × {record['d']}", fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("inertia")
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, and write if asked to."""
    parser = new_parser(__doc__)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=SETS)
    parser.add_argument("--seeds", type=int, default=5)
    args = parse(parser, child)
    for case in at_hand(args.sets):
        record = rounded(child_record("benchmarks.dcd", [case, args.seeds]), DIGITS)
        known = read_result("dcd").get("curves", {}).get("sets", {})
        known[case] = record | {"cpu": cpu_description()}
        sets = {name: known[name] for name in SETS if name in known}
        publish("dcd", {"curves": {"sets": sets}}, write=args.write)
        if args.write:
            draw_elbows(sets, RESULTS / "dcd-elbows.png")


if __name__ == "__main__":
    main()
