"""Measure time and memory of a fit with up to 100,000 clusters.

    python -m benchmarks.clusters [--write]

`Truncated()` runs on 400,000 × 32 rows in memory, on one thread, for a fixed number of steps and
the last pass. The rows are drawn from overlapping Gaussians, 1.5 times as many as there are
clusters. CPU seconds do not include compilation, and memory does not include that of the process
before the fit.
"""

from __future__ import annotations

import time
from typing import Any

import psutil

from benchmarks.common import child_record, cpu_description, new_parser, parse, peak_bytes
from benchmarks.tables import publish, table_of

ROWS, FEATURES, STEPS = 400_000, 32, 40
CLUSTERS = (12_500, 25_000, 50_000, 100_000)


def child(n: int, k: int, steps: int) -> dict[str, Any]:
    import largek_dask as lk
    from benchmarks.synthetic import generate
    from largek_dask.driver.fit import fit
    from largek_dask.driver.options import FitOptions
    from largek_dask.kernels.compiling import compiled

    # A second copy of the rows would count as memory of the fit.
    x = generate("mixture", n, FEATURES, n_components=k + k // 2, seed=11)
    options = {"algorithm": lk.Truncated(), "seed": 0, "tol": 0.0}
    # Compile and load what most fits need.
    few = lk.open_rows(x[: n // 20])
    fit(few, FitOptions(n_clusters=max(3, k // 100), max_iter=steps, **options), n_threads=1)
    before, begun, made = psutil.Process().memory_info().rss, time.process_time(), compiled()
    found = fit(lk.open_rows(x), FitOptions(n_clusters=k, max_iter=steps, **options), n_threads=1)
    seconds = time.process_time() - begun - compiled().since(made).seconds
    return {"k": k, "all": seconds, "steps": found.n_iter, "memory": peak_bytes() - before}


def table(result: dict[str, Any]) -> str:
    rows = [
        [f"{r['k']:,}", f"{r['all']:.1f} s", f"{r['memory'] / 1e6:,.0f} MB"]
        for r in result["records"]
    ]
    note = (
        f"Each fit clusters {result['rows']:,} rows of {FEATURES} features on one thread, by "
        f"{result['steps']} steps of `Truncated()` and the last pass. Times do not "
        "include compilation. Memory is the amount by which the fit increases the peak memory of "
        f"the process. Processor: {result['cpu']}. This table was made by "
        "`python -m benchmarks.clusters --write`."
    )
    return "\n".join([*table_of(["clusters", "CPU time", "memory"], rows), "", note])


def main() -> None:
    args = parse(new_parser(__doc__), child)
    records = [child_record("benchmarks.clusters", [ROWS, k, STEPS]) for k in CLUSTERS]
    result = {"cpu": cpu_description(), "rows": ROWS, "steps": STEPS, "records": records}
    publish("clusters", result, write=args.write)


if __name__ == "__main__":
    main()
