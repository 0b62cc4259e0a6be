"""Compare `lk.suggest_k` with knees and silhouettes, on sets with and without true clusters.

    python -m benchmarks.elbow [--only CASE ...] [--write]

Planted groups are round Gaussians of equal size, whose centres have a given minimum distance in
standard deviations. The other methods use scikit-learn: a `KMeans` fit for each number of clusters,
for all numbers up to 30, or for 24 numbers that increase geometrically and the true number. The
knee of the inertia is the point farthest below the chord, with both axes scaled to 1 (Satopää et
al., "Finding a kneedle in a haystack", 2011). The silhouette is computed on 2,000 rows. All
methods run in one process on one thread.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import child_record, cpu_description, new_parser, parse, read_result
from benchmarks.sets import at_hand, data_folder
from benchmarks.tables import publish, table_of

Record = dict[str, Any]

ROWS, MANY_ROWS, SHARE, SILHOUETTE_ROWS = 8_000, 20_000, 0.75, 2_000
ALL_COUNTS, MOST_COUNTS = 30, 24
PLANTED = [
    (5, 2, 6.0),
    (5, 16, 3.0),
    (5, 64, 3.0),
    (5, 2, 2.0),
    (20, 2, 3.0),
    (20, 16, 6.0),
    (20, 64, 3.0),
    (20, 2, 2.0),
    (64, 2, 6.0),
    (64, 16, 3.0),
    (300, 16, 6.0),
]
"""Number of groups, number of features, and minimum distance of centres."""
NONE: dict[str, Callable[[np.random.Generator], NDArray[Any]]] = {
    "one Gaussian, d = 2": lambda r: r.normal(size=(ROWS, 2)),
    "one Gaussian, d = 16": lambda r: r.normal(size=(ROWS, 16)),
    "an ellipsoid, d = 8": lambda r: r.normal(size=(ROWS, 8)) * 2.0 ** -np.arange(8),
    "a square": lambda r: r.random((ROWS, 2)),
    "a cube, d = 16": lambda r: r.random((ROWS, 16)),
    "a circle": lambda r: circle(r),
}
SETS = {"eeg": None, "shuttle": 20_000, "pla85900": 20_000, "mnist": 8_000}
"""Public sets, and the number of rows drawn from each; None for all rows."""


def circle(r: np.random.Generator) -> NDArray[Any]:
    angle = r.uniform(0, 2 * np.pi, ROWS)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1) + r.normal(0, 0.05, (ROWS, 2))


def planted(k: int, d: int, apart: float) -> NDArray[Any]:
    """Return rows of k groups in a box that is about equally full in any dimension."""
    r = np.random.default_rng([k, d, int(apart)])
    side, centers = apart * 1.6 * k ** (1 / d), np.empty((0, d))
    while len(centers) < k:
        one = side * r.random(d)
        if (((centers - one) ** 2).sum(axis=1) > apart**2).all():
            centers = np.concatenate([centers, one[None]])
    n = ROWS if k < 100 else MANY_ROWS
    return centers[r.integers(k, size=n)] + r.normal(size=(n, d))


def cases() -> dict[str, tuple[int | None, int]]:
    """Return the true number of clusters of each case, or None, and the largest number tried."""
    most = {5: 30, 20: 30, 64: 128, 300: 512}
    return {
        **{f"{k} groups, d = {d}, {apart:g} apart": (k, most[k]) for k, d, apart in PLANTED},
        **dict.fromkeys(NONE, (None, 30)),
        **dict.fromkeys(SETS, (None, 30)),
    }


def rows_of(case: str) -> NDArray[Any]:
    if case in SETS:
        x = np.load(data_folder() / f"{case}.npz")["X"].astype(np.float32)
        n = SETS[case]
        return x if n is None else x[np.random.default_rng(0).choice(len(x), n, replace=False)]
    if case in NONE:
        return NONE[case](np.random.default_rng(len(case))).astype(np.float32)
    at = [f"{k} groups, d = {d}, {apart:g} apart" for k, d, apart in PLANTED].index(case)
    return planted(*PLANTED[at]).astype(np.float32)


def ours(x: NDArray[Any], k_max: int, sample: int | str) -> Record:
    import largek_dask as lk

    begun = time.process_time()
    found = lk.suggest_k(x, k_max, sample=sample, random_state=0, n_threads=1)
    seconds = time.process_time() - begun
    return {"k": found.k, "range": found.range, "seconds": round(seconds, 3)}


def largest(x: NDArray[Any], k_max: int) -> float:
    """Return the CPU seconds of one fit with the largest number of clusters."""
    import largek_dask as lk

    begun = time.process_time()
    lk.KMeans(k_max, random_state=0, n_threads=1).fit(x)
    return round(time.process_time() - begun, 3)


def peers(x: NDArray[Any], k_max: int, true: int | None) -> Record:
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    counts = set(range(2, k_max + 1))
    if k_max > ALL_COUNTS:
        counts = {round(float(k)) for k in np.geomspace(2, k_max, MOST_COUNTS)} | {true or k_max}
    chosen = np.random.default_rng(0).choice(len(x), SILHOUETTE_ROWS, replace=False)
    sizes = np.array(sorted(counts))
    inertia, silhouettes, seconds, more = [], [], 0.0, 0.0
    for k in sizes.tolist():
        begun = time.process_time()
        km = KMeans(k, n_init=1, random_state=0).fit(x)
        seconds += time.process_time() - begun
        inertia.append(km.inertia_)
        begun = time.process_time()
        labels = km.labels_[chosen]
        # outliers may occupy all other clusters, and a sample may contain none of them
        one = len(np.unique(labels)) < 2
        silhouettes.append(-1.0 if one else float(silhouette_score(x[chosen], labels)))
        more += time.process_time() - begun
    y = np.array(inertia)
    along = (sizes - sizes[0]) / (sizes[-1] - sizes[0])
    below = 1 - along - (y - y[-1]) / (y[0] - y[-1])
    return {
        "knee": int(sizes[np.argmax(below)]),
        "silhouette": int(sizes[np.argmax(silhouettes)]),
        "largest_silhouette": round(max(silhouettes), 3),
        "fits": len(sizes),
        "seconds": round(seconds, 3),
        "silhouette_seconds": round(more, 3),
    }


def measured(case: str) -> Record:
    true, k_max = cases()[case]
    x = rows_of(case)
    record = {"rows": len(x), "features": x.shape[1], "true": true, "k_max": k_max}
    record["ours"] = ours(x, k_max, "auto")
    record["sample"] = ours(x, k_max, int(SHARE * len(x)))
    record["largest"] = largest(x, k_max)
    record["scikit-learn"] = peers(x, k_max, true)
    return record


def child(*asked: str) -> Record:
    warnings.simplefilter("ignore")
    for case in asked[:1]:
        # compile before timing
        x, k_max = rows_of(case), min(cases()[case][1], 30)
        ours(x[:2_000], k_max, "auto")
        ours(x[:2_000], k_max, 1_500)
    found = {}
    for case in asked:
        found[case] = measured(case)
        print(case, json.dumps(found[case]), file=sys.stderr, flush=True)
    return found


def answer(found: Record) -> str:
    """Format a number and its range, or "no clear k"."""
    if found["k"] is None:
        return "no clear k"
    least, most = found["range"]
    return str(found["k"]) if least == most else f"{found['k']} ({least} to {most})"


def table(result: Record) -> str:
    rows = []
    for case, record in result["cases"].items():
        peer = record["scikit-learn"]
        rows.append(
            [
                f"{case} ({record['rows']:,} × {record['features']:,})",
                answer(record["ours"]),
                answer(record["sample"]),
                str(peer["knee"]),
                str(peer["silhouette"]),
                f"{record['ours']['seconds']:.1f}",
                f"{record['sample']['seconds']:.1f}",
                f"{record['largest']:.1f}",
                f"{peer['seconds'] + peer['silhouette_seconds']:.1f}",
            ]
        )
    head = ["rows", "`suggest_k`", "`suggest_k` on a sample", "knee", "silhouette",
            "seconds", "seconds on a sample", "seconds of one fit",
            "seconds of scikit-learn"]  # fmt: skip
    return "\n".join([*table_of(head, rows), "", summary(result)])


def summary(result: Record) -> str:
    """Describe right and wrong answers, and ratios of CPU seconds."""
    records = list(result["cases"].values())
    groups = [r for r in records if r["true"] is not None]
    none = [result["cases"][name] for name in NONE if name in result["cases"]]
    parts = []
    for title, k_of in (
        ("`suggest_k`", lambda r: r["ours"]["k"]),
        ("`suggest_k` on a sample", lambda r: r["sample"]["k"]),
        ("The knee", lambda r: r["scikit-learn"]["knee"]),
        ("The silhouette", lambda r: r["scikit-learn"]["silhouette"]),
    ):
        right = sum(k_of(r) == r["true"] for r in groups)
        wrong = sum(k_of(r) not in (None, r["true"]) for r in groups)
        false = sum(k_of(r) is not None for r in none)
        parts.append(
            f"{title} is right for {right} of {len(groups)} sets with groups, wrong for {wrong}, "
            f"and gives a number for {false} of the {len(none)} sets without groups."
        )
    ratios = [
        (r["scikit-learn"]["seconds"] + r["scikit-learn"]["silhouette_seconds"])
        / r["sample"]["seconds"]
        for r in records
    ]
    fits = [r["sample"]["seconds"] / r["largest"] for r in records]
    return (
        f"{' '.join(parts)} A sample has {SHARE:.0%} of the rows, and is searched by nested "
        'partitions. "6 apart" means that the centres are at least 6 standard deviations apart. '
        "The true number of clusters of the public sets is unknown. Times are CPU seconds on one "
        'thread, one run each. "One fit" is a fit of `KMeans` to all rows with the largest k. '
        f"`suggest_k` on a sample takes {min(fits):.1f} to {max(fits):.1f} times as long as one "
        f"fit (median {np.median(fits):.1f}). scikit-learn makes {MOST_COUNTS} to {ALL_COUNTS} "
        "fits with one start each, and computes a silhouette for each fit. scikit-learn takes "
        f"{min(ratios):.1f} to {max(ratios):.1f} times as long as `suggest_k` on a sample "
        f"(median {np.median(ratios):.1f}). Processor: {result['cpu']}. This table was made by "
        "`python -m benchmarks.elbow --write`."
    )


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--only", nargs="+", metavar="CASE", help="beginnings of names of cases")
    args = parse(parser, child)
    known = read_result("elbow").get("cases", {})
    planted_cases = [case for case in cases() if "groups" in case]
    for kind in (list(NONE), planted_cases, at_hand(SETS)):
        asked = [case for case in kind if not args.only or case.startswith(tuple(args.only))]
        if asked:
            known |= child_record("benchmarks.elbow", asked)
    ordered = {name: known[name] for name in cases() if name in known}
    publish("elbow", {"cpu": cpu_description(), "cases": ordered}, write=args.write)


if __name__ == "__main__":
    main()
