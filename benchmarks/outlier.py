"""What one row far out costs all the others: a fit with it beside one without.

    python -m benchmarks.outlier [--write]

writes `results/outlier.json` and the table of `RESULTS.md`. CPU seconds of `KMeans(k,
algorithm="lloyd")` on standard normal float32 rows, 10 steps from given rows, on one thread; one
row, and the centre that begins there, lie at 10^4, 10^6 or 10^8 in every feature. Both fits take
turns; the median of the ratios.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import RESULTS, child_record, cpu_description, save
from benchmarks.tables import write_tables

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
    """Measure all distances with these numbers of features and clusters."""
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


def measured(d: int, k: int) -> dict[str, Any]:
    """The same in a process of its own, on one thread."""
    record = child_record("benchmarks.outlier", [d, k])
    print(record, flush=True)
    return record


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result."""
    lines = [
        "| d | k | " + " | ".join(f"one row at {far:.0e}" for far in FAR) + " |",
        "|---" * 5 + "|",
    ]
    for record in result["records"]:
        cells = [f"{record['ratios'][f'{far:.0e}']:.2f}x" for far in FAR]
        lines.append(f"| {record['d']} | {record['k']} | {' | '.join(cells)} |")
    return "\n".join(
        [
            *lines,
            "",
            f"CPU seconds of {STEPS} steps on {ROWS:,} rows over those without that row, median of "
            f"{REPEATS} pairs. {result['cpu']}. Made by `python -m benchmarks.outlier --write`.",
        ]
    )


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="save results, write the table")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(*json.loads(args.child))))
        return
    records = [measured(d, k) for d in FEATURES for k in CLUSTERS]
    result = {"cpu": cpu_description(), "records": records}
    print(table(result))
    if args.write:
        save("outlier", result, indent=None)
        write_tables("outlier", result)
        print(RESULTS / "outlier.json")


if __name__ == "__main__":
    main()
