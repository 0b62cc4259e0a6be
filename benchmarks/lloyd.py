"""Compare the time of a pass of exact k-means with scikit-learn and faiss, on one thread.

    python -m benchmarks.lloyd [--sets A B ...] [--write]

All libraries use the same float32 rows and starting centres, and run in separate processes with
their best settings. Runs are interleaved, so that changes of the clock rate affect all libraries
equally, and medians are reported. A pass is one Lloyd iteration with its update of centres, after
the first two. Our passes skip centres by a few directions only after a process has seen enough
work, so a second fit is timed. Times are CPU seconds. sift200k and mnist require `LARGEK_DATA`.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import child_record, cpu_description, new_parser, parse, peer_environments
from benchmarks.peers import EXACT, exact_fit, timed
from benchmarks.sets import at_hand, prepare, starting_centers
from benchmarks.tables import publish, table_of

CASES = ["A-100", "A-1000", "B-100", "B-1000", "C-50", "C-500",
         "sift200k-100", "sift200k-1000", "mnist-50", "mnist-500", "mnist-1000", "patches-500",
         "patches-1000", "embeddings-500", "embeddings-1000", "embeddings-4000"]  # fmt: skip
PASSES = 4
ROUNDS = 3
LIBRARIES = ("largek_dask", *EXACT)


def our_pass(x: np.ndarray, centers: np.ndarray) -> float:
    """Return mean CPU seconds of our passes after the first two."""
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.algorithms.lloyd import Lloyd
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    algorithm = Lloyd().bind(KMeansProblem(len(centers), centers))
    seconds: list[float] = []
    # The first fit is not timed: it compiles or loads kernels, and counts work.
    for rows, n in ((x[: 4 * len(centers)], 2), (x, PASSES + 2), (x, PASSES + 2)):
        with LocalPasses(open_rows(rows), n_threads=1) as passes:
            state = algorithm.init(passes, Rng(0))
            seconds = []
            for _ in range(n):
                begun = time.process_time()
                state, _ = algorithm.step(passes, Rng(0), state)
                seconds.append(time.process_time() - begun)
    return float(np.mean(seconds[2:]))


def child(library: str, path: str, k: int) -> float:
    """Return CPU seconds per pass; for other libraries, a long fit minus a short fit."""
    from threadpoolctl import threadpool_limits

    x = np.load(path)
    centers = starting_centers(x, k)
    if library == "largek_dask":
        return our_pass(x, centers)
    fit = exact_fit(library, centers)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(x, 1)
        return (timed(fit, x, PASSES + 2)[1] - timed(fit, x, 2)[1]) / PASSES


def compare(case: str, folder: Path) -> dict[str, Any]:
    name, clusters = case.split("-")
    path = prepare(name, folder)
    times: dict[str, dict[str, list[float]]] = {library: {} for library in LIBRARIES}
    for _ in range(ROUNDS):
        for library, found in times.items():
            for label, environment in peer_environments(library).items():
                seconds = child_record(
                    "benchmarks.lloyd", [library, str(path), int(clusters)], environment
                )
                found.setdefault(label, []).append(seconds)
    best = {
        library: min(float(np.median(several)) for several in found.values())
        for library, found in times.items()
    }
    n, d = np.load(path, mmap_mode="r").shape
    print(case, best, flush=True)
    return {"set": name, "n": n, "d": d, "k": int(clusters), "seconds": best}


def table(result: dict[str, Any]) -> str:
    rows = []
    for r in result["records"]:
        ours, sk, fs = (r["seconds"][library] for library in LIBRARIES)
        cells = [r["set"], f"{r['n']:,} × {r['d']}", f"{r['k']}", f"{ours:.3f}", f"{sk:.3f}"]
        rows.append([*cells, f"{fs:.3f}", f"{min(sk, fs) / ours:.2f}x"])
    note = (
        "The table shows CPU seconds per pass on one thread with float32. Each run measures the "
        f"mean of {PASSES} passes from the same random rows, and the table shows the median of "
        f"{ROUNDS} "
        "interleaved runs. The speedup is relative to the faster of scikit-learn and faiss. "
        f"Processor: {result['cpu']}. This table was made by "
        "`python -m benchmarks.lloyd --write`."
    )
    head = ["set", "rows × features", "k", "largek_dask, s", "scikit-learn, s", "faiss, s",
            "speedup"]  # fmt: skip
    return "\n".join([*table_of(head, rows), "", note])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--sets", nargs="*", help="sets, such as A; default: all")
    args = parse(parser, child)
    cases = [case for case in CASES if not args.sets or case.split("-")[0] in args.sets]
    with tempfile.TemporaryDirectory() as folder:
        records = [compare(case, Path(folder)) for case in at_hand(cases)]
    publish("lloyd", {"cpu": cpu_description(), "records": records}, write=args.write)


if __name__ == "__main__":
    main()
