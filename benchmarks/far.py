"""Compare the default with ten scikit-learn starts on sets whose outliers dominate the cost.

    python -m benchmarks.far [--write]

For every set and number of clusters, the results are the excess of the inertia of `KMeans(k)` over
the lowest known inertia, for the worst seed and the median, and the ratio of its median CPU seconds
to those of scikit-learn's `KMeans(k, n_init=10)` (greedy k-means++). Both run alternately on one
thread. The lowest known inertia comes from `LOWEST` for "eeg" and "shuttle" (hundreds of starts,
swaps and recombination), and for generated sets from the best of 50 greedy k-means++ fits by
scikit-learn; negative excesses are lower. Rows have their stored type: float64 ("eeg"), int16
("shuttle", float32 for scikit-learn) and float32 otherwise.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import dcd_tables
from benchmarks.common import child_record, cpu_description, new_parser, parse
from benchmarks.sets import at_hand, data_folder
from benchmarks.tables import publish, table_of

CLUSTERS = (10, 15, 20, 25)
SEEDS = 10
LOWEST = {name: {k: dcd_tables.LOWEST[name][k] for k in CLUSTERS} for name in ("eeg", "shuttle")}
FITS = 50
"""Number of scikit-learn fits; the best gives the lowest known inertia of a generated set."""
STARTS = 10
"""Number of starts of the scikit-learn fit that is timed."""
REPEATS = 3
"""Number of timed repetitions."""


def student(r: np.random.Generator) -> NDArray[np.float64]:
    """Return rows without clusters, with features from Student's t distribution."""
    return r.standard_t(2, (50_000, 10))


def spikes(r: np.random.Generator) -> NDArray[np.float64]:
    """Return round clusters with outliers from Student's t distribution (2 degrees of freedom)."""
    centers = 6 * r.standard_normal((15, 8))
    rows = r.standard_t(2, (40_000, 1)) * r.standard_normal((40_000, 8))
    return centers[r.integers(15, size=40_000)] + rows


def one(r: np.random.Generator) -> NDArray[np.float64]:
    """Return twenty round clusters and one row at 1e6."""
    centers = 6 * r.standard_normal((20, 8))
    x = centers[r.integers(20, size=30_000)] + r.standard_normal((30_000, 8))
    x[12_345] = 1e6
    return x


def lognormal(r: np.random.Generator) -> NDArray[np.float64]:
    """Return rows without clusters, with log-normal features."""
    return r.lognormal(0, 1.5, (40_000, 6))


def unequal(r: np.random.Generator) -> NDArray[np.float64]:
    """Return clusters of very different sizes (Pareto) and widths (log-normal)."""
    size = r.pareto(1.0, 40) + 0.01
    of = r.choice(40, 50_000, p=size / size.sum())
    centers = 3 * r.standard_normal((40, 12))
    return centers[of] + r.standard_normal((50_000, 12)) * r.lognormal(0, 1.5, 40)[of, None]


def groups(r: np.random.Generator) -> NDArray[np.float64]:
    """Return one round cluster, and twelve groups of five rows a thousand times farther out."""
    x = r.standard_normal((60_000, 6))
    far = r.choice(60_000, 60, replace=False)
    x[far] += 1_000 * r.standard_normal((12, 6))[np.arange(60) % 12]
    return x


MADE = {f.__name__: f for f in (student, spikes, one, lognormal, unequal, groups)}
SETS = ("eeg", "shuttle", *MADE)


def rows_of(name: str) -> NDArray[Any]:
    if name in MADE:
        return MADE[name](np.random.default_rng(len(name))).astype(np.float32)
    rows: NDArray[Any] = np.load(data_folder() / f"{name}.npz")["X"]
    return rows


def child(name: str, k: int, n_seeds: int) -> dict[str, Any]:
    from sklearn.cluster import KMeans as Theirs

    import largek_dask as lk

    x = rows_of(name)
    real = x if x.dtype.kind == "f" else x.astype(np.float32)
    known = LOWEST.get(name, {}).get(k)
    lk.KMeans(k, n_threads=1, random_state=n_seeds).fit(x)
    ours: list[float] = []
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    theirs: list[float] = []
    for seed in range(n_seeds):
        begun = time.process_time()
        ours.append(float(lk.KMeans(k, n_threads=1, random_state=seed).fit(x).inertia_))
        seconds["ours"].append(time.process_time() - begun)
        if seed < REPEATS:
            begun = time.process_time()
            theirs.append(float(Theirs(k, n_init=STARTS, random_state=seed).fit(real).inertia_))
            seconds["theirs"].append(time.process_time() - begun)
    if known is None:
        rest = FITS - STARTS * len(theirs)
        theirs.append(float(Theirs(k, n_init=rest, random_state=REPEATS).fit(real).inertia_))
    lowest = min(theirs) if known is None else known
    return {
        "set": name, "n": x.shape[0], "d": x.shape[1], "k": k, "lowest": lowest, "ours": ours,
        "theirs": theirs, "seconds": {who: float(np.median(s)) for who, s in seconds.items()},
    }  # fmt: skip


def cell(record: dict[str, Any]) -> str:
    """Format the worst and the median excess, and the ratio of CPU seconds."""
    above = [100 * (value / record["lowest"] - 1) for value in record["ours"]]
    seconds = record["seconds"]
    ratio = seconds["ours"] / seconds["theirs"]
    return f"{max(above):z.1f} %, {np.median(above):z.1f} %; {ratio:.2f}x"


def table(result: dict[str, Any]) -> str:
    records = {(record["set"], record["k"]): record for record in result["records"]}
    rows = []
    for name in (name for name in SETS if (name, CLUSTERS[0]) in records):
        own = [records[name, k] for k in CLUSTERS]
        rows.append([name, f"{own[0]['n']:,} × {own[0]['d']}", *map(cell, own)])
    seeds = min(len(record["ours"]) for record in result["records"])
    note = (
        "Each cell shows by how much the inertia exceeds the lowest known inertia, for the worst "
        f"and for the median of at least {seeds} seeds. The last number in a cell is the CPU time "
        "on one thread, as a multiple of that of scikit-learn with ten starts. "
        f"Processor: {result['cpu']}. This table was made by "
        "`python -m benchmarks.far --write`."
    )
    head = ["set", "rows × features", *(f"k = {k}" for k in CLUSTERS)]
    return "\n".join([*table_of(head, rows), "", note])


def main() -> None:
    args = parse(new_parser(__doc__), child)
    records = []
    for name in at_hand(SETS):
        for k in CLUSTERS:
            records.append(child_record("benchmarks.far", [name, k, SEEDS]))
            print(f"{name}, k = {k}: {cell(records[-1])}", flush=True)
    publish("far", {"cpu": cpu_description(), "records": records}, write=args.write)


if __name__ == "__main__":
    main()
