"""Compare `PartitionPath` with ten k-means starts for each number of clusters.

    python -m benchmarks.dcd [--sets eeg ...] [--write]
    python -m benchmarks.dcd --workers

The benchmark computes all partitions into 2 to 25 clusters of four public sets, with every effort,
and by scikit-learn's k-means with ten starts for each number of clusters in double precision, which
is faster than single precision on these sets. "k-means++" is the greedy variant with several
candidates for each centre; the plain variant has one candidate. `PartitionPath` gets rows in their
stored type. Runs on a set alternate in one process on one thread, in an order that depends on the
seed. Each set is saved as soon as it has been measured.

Objectives are computed from the final centres and are not included in times. They are sums of
squared distances to the nearest centre in double precision, computed by numpy only.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import tempfile
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
from benchmarks.many import crowd
from benchmarks.peers import timed
from benchmarks.pictures import new_figure
from benchmarks.sets import at_hand, data_folder, mixture
from benchmarks.tables import publish

Record = dict[str, Any]
Rows = NDArray[Any]

STARTS = 10
BLOCK = 1 << 20
"""Number of differences of rows and centres in memory at a time."""
WARM_ROWS, WARM_CLUSTERS = 2_000, 5
"""Numbers of rows and clusters of a first run that is not timed."""
DIGITS = 12
"""Number of digits in the results; objectives are compared to nine digits."""
MARKS = {TEN: ("tab:gray", "o"), TEN_GREEDY: ("black", "x")}


@dataclass
class Found:
    """Partitions, and the CPU seconds of all of them together."""

    centers: list[Rows]
    """Arrays of shape (k, d) for 2, 3, … clusters."""
    seconds: float
    about: dict[str, Any] = field(default_factory=dict)
    """Other statistics of a `PartitionPath` fit."""


Method = Callable[[Rows, int, int], Found]
"""Function of rows, k and a seed that computes partitions into 2 to k clusters."""


def effort(name: str) -> Method:
    def find(x: Rows, k_max: int, seed: int) -> Found:
        algorithm = lk.PartitionPath(effort=name)
        km = lk.KMeans(k_max, algorithm=algorithm, random_state=seed, n_threads=1)
        km, seconds = timed(km.fit, x)
        bounds = np.asarray(km.path_.lower_bound[1:k_max], float).tolist()
        centers = [np.array(km.path_.centers(k)) for k in range(2, k_max + 1)]
        return Found(centers, seconds, {"bounds": bounds})

    return find


def plain_start(x: Rows, n_clusters: int, random_state: Any) -> Rows:
    from sklearn.cluster import kmeans_plusplus

    centers, _ = kmeans_plusplus(x, n_clusters, random_state=random_state, n_local_trials=1)
    return np.array(centers)


def ten_starts(init: Any) -> Method:
    """Return a method that keeps the best of ten scikit-learn starts for each k."""

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


def objective(x: Rows, centers: Rows) -> float:
    """Return the sum of squared distances to the nearest centres in double precision."""
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
    # Fewer distinct rows than clusters cause warnings, which are irrelevant here.
    warnings.simplefilter("ignore")
    x = np.load(data_folder() / f"{name}.npz")["X"]
    for find in METHODS.values():
        find(x[:: max(1, len(x) // WARM_ROWS)], WARM_CLUSTERS, n_seeds)
    # A garbage collection takes 65 ms and would distort one of the runs.
    gc.collect()
    gc.freeze()
    runs: dict[str, list[Record]] = {method: [] for method in METHODS}
    for seed in range(n_seeds):
        for method in in_turn(list(METHODS), seed):
            found = METHODS[method](x, COUNTS[-1], seed)
            ends = [objective(x, centers) for centers in found.centers]
            runs[method].append({"seconds": found.seconds, "values": ends, **found.about})
            print(f"{name}, seed {seed}, {method}: {found.seconds:.2f} s", file=sys.stderr)
    # This process uses one core.
    others = round(max(0.0, os.getloadavg()[1] - 1), 2)
    methods = {method: {"others": others, "seeds": several} for method, several in runs.items()}
    return {"n": len(x), "d": x.shape[1], "commit": commit()[:12], "methods": methods}


def draw_elbows(sets: dict[str, Record], path: Path) -> None:
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


def on_workers() -> Record:
    """Return the seconds that a path takes, by process; nothing is compiled in them."""
    with tempfile.TemporaryDirectory() as folder, crowd() as made:
        made.grow(2)
        rows, spent = mixture(1_000_000, 32, 1_000), {}
        for n, k in ((150_000, 5), (len(rows), COUNTS[-1])):
            store = str(Path(folder) / f"{n}.zarr")
            lk.ingest(rows[:n], store, progress=False)
            before = made.clock()
            km = lk.KMeans(k, algorithm="partition-path", random_state=0, client=made.client)
            km.fit(store)
            spent = {kind: np.subtract(now, before[kind]) for kind, now in made.clock().items()}
    return {kind: np.round(seconds, 1).tolist() for kind, seconds in spent.items()}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--workers", action="store_true")
    parser.add_argument("--sets", nargs="*", choices=SETS, default=SETS)
    parser.add_argument("--seeds", type=int, default=5)
    args = parse(parser, child)
    if args.workers:
        print(on_workers())
        return
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
