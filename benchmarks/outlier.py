"""A fit with one row far out, beside the same fit without it.

    python -m benchmarks.outlier [--write]

CPU seconds of `KMeans(k, algorithm="lloyd")` on standard normal float32 rows, 10 steps from given
rows, on one thread; one row, and the centre that begins there, lie at 10^4, 10^6 or 10^8 in every
feature. Both fits take turns; the median of the ratios.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import child_record, cpu_description, new_parser, parse
from benchmarks.tables import publish

ROWS, STEPS, REPEATS = 50_000, 10, 7
FEATURES, CLUSTERS, FAR = (9, 32, 64), (10, 100), (1e4, 1e6, 1e8)


def seconds(x: NDArray[Any], init: NDArray[Any]) -> float:
    """CPU seconds of a fit."""
    import largek_dask as lk

    options: dict[str, Any] = {"init": init, "max_iter": STEPS, "tol": 0, "n_threads": 1}
    begun = time.process_time()
    lk.KMeans(len(init), algorithm=lk.Lloyd(bounds=None), **options).fit(x)
    return time.process_time() - begun


def child(d: int, k: int) -> dict[str, Any]:
    """Ratios for some numbers of features and clusters."""
    warnings.simplefilter("ignore")
    r = np.random.default_rng(d)
    x = r.standard_normal((ROWS, d), np.float32)
    chosen = r.choice(ROWS, k, replace=False)
    seconds(x, x[chosen])
    ratios: dict[str, list[float]] = {f"{far:.0e}": [] for far in FAR}
    for _ in range(REPEATS):
        for far in FAR:
            with_it = x.copy()
            with_it[chosen[0]] = far
            pair = seconds(x, x[chosen]), seconds(with_it, with_it[chosen])
            ratios[f"{far:.0e}"].append(pair[1] / pair[0])
    return {"d": d, "k": k, "ratios": {far: float(np.median(v)) for far, v in ratios.items()}}


def main() -> None:
    """Measure, and write if asked to."""
    args = parse(new_parser(__doc__), child)
    records = [child_record("benchmarks.outlier", [d, k]) for d in FEATURES for k in CLUSTERS]
    print(*records, sep="\n")
    publish("outlier", {"cpu": cpu_description(), "records": records}, write=args.write)


if __name__ == "__main__":
    main()
