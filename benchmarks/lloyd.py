"""Seconds a pass of exact k-means, beside scikit-learn and faiss, on one thread.

    python -m benchmarks.lloyd [--sets A B ...] [--write]

Same float32 rows, same starting centres, every library in processes of its own with its best
setting, runs interleaved so that a drifting clock hits all alike, medians. A pass is one Lloyd
iteration with its centroid update, all distances computed, after the first two; time is CPU time
of the process. Sets A, B, C come from `LARGEK_DATA/synthetic.py` where that exists, else sets of
the same shape are generated; sift200k and mnist need `LARGEK_DATA`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import cpu_description, peer_environments, save
from benchmarks.tables import write_tables

CASES = [("A", 100), ("A", 1000), ("B", 100), ("B", 1000), ("C", 50), ("C", 500)]
REAL = [("sift200k", 100), ("sift200k", 1000), ("mnist", 50), ("mnist", 500)]
PASSES = 4
ROUNDS = 3
LIBRARIES = ("largek_dask", "scikit-learn", "faiss")
ROOT = Path(__file__).parent.parent


def data_folder() -> Path:
    """Where real data lie, if they do."""
    return Path(os.environ.get("LARGEK_DATA", ROOT.parent / "shared" / "data"))


def prepare(name: str, folder: Path) -> Path:
    """Write one set as float32 .npy and return its path."""
    out = folder / f"{name}.npy"
    if out.exists():
        return out
    source = data_folder()
    if name in "ABC" and (source / "synthetic.py").exists():
        subprocess.run([sys.executable, str(source / "synthetic.py"), str(folder)], check=True)
    elif name in "ABC":
        from largek_dask.data.synthetic import generate

        np.save(out, generate(name))
    else:
        np.save(out, np.load(source / f"{name}.npz")["X"].astype(np.float32))
    return out


def starting_centers(x: np.ndarray, k: int) -> np.ndarray:
    """K distinct random rows, seed 7."""
    return x[np.random.default_rng(7).choice(len(x), k, replace=False)]


def run_largek_dask(x: np.ndarray, centers: np.ndarray) -> list[float]:
    """CPU seconds of each pass after the first two."""
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.algorithms.lloyd import Lloyd
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    algorithm = Lloyd(bounds=None, problem=KMeansProblem(len(centers), centers))
    seconds = []
    # A few rows first, so that no compilation or loading of code is timed.
    for rows, n in ((x[: 4 * len(centers)], 2), (x, PASSES + 2)):
        with LocalPasses(open_rows(rows), n_threads=1) as passes:
            state = algorithm.init(passes, Rng(0))
            seconds = []
            for _ in range(n):
                start = time.process_time()
                state, _ = algorithm.step(passes, Rng(0), state)
                seconds.append(time.process_time() - start)
    return seconds[2:]


def run_scikit_learn(x: np.ndarray, centers: np.ndarray) -> list[float]:
    """CPU seconds a pass: a long fit less a short one."""
    import warnings

    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    def seconds(passes: int) -> float:
        km = KMeans(len(centers), init=centers, n_init=1, max_iter=passes, tol=0, algorithm="lloyd")
        start = time.process_time()
        km.fit(x)
        assert km.n_iter_ == passes
        return time.process_time() - start

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seconds(1)
        return [(seconds(PASSES + 2) - seconds(2)) / PASSES]


def run_faiss(x: np.ndarray, centers: np.ndarray) -> list[float]:
    """CPU seconds a pass: a long training less a short one."""
    import faiss

    faiss.omp_set_num_threads(1)
    n, d = x.shape

    def seconds(passes: int) -> float:
        km = faiss.Kmeans(d, len(centers), niter=passes, max_points_per_centroid=n, verbose=False)
        start = time.process_time()
        km.train(x, init_centroids=centers)
        return time.process_time() - start

    seconds(1)
    return [(seconds(PASSES + 2) - seconds(2)) / PASSES]


RUNNERS = {"largek_dask": run_largek_dask, "scikit-learn": run_scikit_learn, "faiss": run_faiss}


def measure(library: str, path: Path, k: int, environment: dict[str, str]) -> float:
    """Mean CPU seconds of a pass in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.lloyd", "--child", library, str(path), str(k)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return float(np.mean(json.loads(done.stdout.splitlines()[-1])))


def compare(names: list[str] | None, folder: Path) -> list[dict[str, Any]]:
    """One record a set and k."""
    cases = CASES + [c for c in REAL if (data_folder() / f"{c[0]}.npz").exists()]
    records = []
    for name, k in cases:
        if names and name not in names:
            continue
        path = prepare(name, folder)
        settings = {library: peer_environments(library) for library in LIBRARIES}
        times: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for library, environments in settings.items():
                for label, environment in environments.items():
                    key = f"{library} {label}".strip()
                    times.setdefault(key, []).append(measure(library, path, k, environment))
        medians = {key: float(np.median(t)) for key, t in times.items()}
        best = {
            library: min(t for key, t in medians.items() if key.split()[0] == library)
            for library in LIBRARIES
        }
        n, d = np.load(path, mmap_mode="r").shape
        record = {"set": name, "n": n, "d": d, "k": k, "seconds": best, "all": medians}
        print(json.dumps(record), flush=True)
        records.append(record)
    return records


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result."""
    lines = [
        "| set | rows × features | k | largek_dask, s a pass | scikit-learn | faiss "
        "| faster than the better peer |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in result["records"]:
        ours, sk, fs = (r["seconds"][library] for library in LIBRARIES)
        lines.append(
            f"| {r['set']} | {r['n']:,} × {r['d']} | {r['k']} | {ours:.3f} | {sk:.3f} | {fs:.3f} "
            f"| {min(sk, fs) / ours:.2f}x |"
        )
    lines.append("")
    lines.append(
        f"One thread, float32, mean of {PASSES} passes from the same random rows, medians of "
        f"{ROUNDS} interleaved runs; {result['cpu']}. Made by `python -m benchmarks.lloyd --write`."
    )
    return "\n".join(lines)


def main() -> None:
    """Measure, save, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="*")
    parser.add_argument("--write", action="store_true", help="save results, write the table")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        library, path, k = args.child
        x = np.load(path)
        print(json.dumps(RUNNERS[library](x, starting_centers(x, int(k)))))
        return
    with tempfile.TemporaryDirectory() as folder:
        result = {"cpu": cpu_description(), "records": compare(args.sets, Path(folder))}
    if args.write:
        save("lloyd", result)
        write_tables("lloyd", result)


if __name__ == "__main__":
    main()
