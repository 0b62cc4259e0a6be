"""Seconds a pass of exact k-means on sparse rows, beside scikit-learn, on one thread.

    python -m benchmarks.sparse [--write]

Same CSR rows, same starting centres, each library in processes of its own, runs interleaved,
medians of CPU seconds. Reuters-21578 TF-IDF needs `LARGEK_DATA`; the other set is generated: rows
of unit length with up to 75 numbers each, drawn from planted topics by the law of Zipf.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import ROOT, cpu_description, peer_environments, save
from benchmarks.lloyd import data_folder
from benchmarks.tables import write_table

CLUSTERS = (50, 200)
PASSES = 2
ROUNDS = 3
LIBRARIES = ("largek_dask", "scikit-learn")


def topics(n: int, d: int, n_topics: int, numbers: int) -> Any:
    """CSR rows: half of a row's columns from its topic, half from everywhere."""
    from scipy.sparse import csr_matrix
    from sklearn.preprocessing import normalize

    r = np.random.default_rng(0)
    columns = np.minimum(r.zipf(1.2, size=(n, numbers)) - 1, d - 1)
    topic = r.integers(n_topics, size=n)
    order = np.stack([r.permutation(d) for _ in range(n_topics)])
    own = np.arange(numbers) % 2 == 0
    columns[:, own] = np.take_along_axis(order[topic], columns[:, own], axis=1)
    indptr = np.arange(0, n * numbers + 1, numbers)
    data = r.random(n * numbers, dtype=np.float32) + 0.1
    x = csr_matrix((data, columns.reshape(-1), indptr), shape=(n, d))
    x.sum_duplicates()
    return normalize(x)


def prepare(folder: Path) -> dict[str, Path]:
    """Files of the sets, by name."""
    from scipy.sparse import save_npz

    made = folder / "topics.npz"
    save_npz(made, topics(20_000, 47_000, 100, 75))
    found = {"topics": made}
    if (data_folder() / "reuters_tfidf.npz").exists():
        found["reuters"] = data_folder() / "reuters_tfidf.npz"
    return found


def seconds_a_pass(library: str, path: str, k: int) -> float:
    """CPU seconds: a long fit less a short one."""
    import warnings

    from scipy.sparse import load_npz
    from threadpoolctl import threadpool_limits

    x = load_npz(path).tocsr().astype(np.float32)
    x.sum_duplicates()
    centers = x[np.sort(np.random.default_rng(7).choice(x.shape[0], k, replace=False))].toarray()

    def run(passes: int) -> float:
        begun = time.process_time()
        if library == "scikit-learn":
            from sklearn.cluster import KMeans

            km = KMeans(k, init=centers, n_init=1, max_iter=passes, tol=0, algorithm="lloyd")
        else:
            import largek_dask as lk

            km = lk.KMeans(
                k, init=centers, max_iter=passes, tol=0, algorithm=lk.Lloyd(), n_threads=1
            )
        km.fit(x)
        return time.process_time() - begun

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(1)
        return (run(PASSES + 1) - run(1)) / PASSES


def child(library: str, path: Path, k: int) -> float:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.sparse", "--child", library, str(path), str(k)]
    environment = peer_environments(library)[""]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return float(done.stdout.splitlines()[-1])


def compare(folder: Path) -> list[dict[str, Any]]:
    """One record a set and k."""
    from scipy.sparse import load_npz

    records = []
    for name, path in prepare(folder).items():
        x = load_npz(path)
        for k in CLUSTERS:
            times: dict[str, list[float]] = {library: [] for library in LIBRARIES}
            for _ in range(ROUNDS):
                for library in LIBRARIES:
                    times[library].append(child(library, path, k))
            seconds = {library: float(np.median(t)) for library, t in times.items()}
            n, d = x.shape
            records.append(
                {"set": name, "n": n, "d": d, "stored": x.nnz / n, "k": k, "seconds": seconds}
            )
            print(json.dumps(records[-1]), flush=True)
    return records


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result."""
    lines = [
        "| set | rows × features | numbers a row | k | largek_dask, s a pass | scikit-learn | |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in result["records"]:
        ours, theirs = (r["seconds"][library] for library in LIBRARIES)
        lines.append(
            f"| {r['set']} | {r['n']:,} × {r['d']:,} | {r['stored']:.0f} | {r['k']} | {ours:.3f} "
            f"| {theirs:.3f} | {theirs / ours:.1f}x |"
        )
    lines += [
        "",
        f"One thread, float32, mean of {PASSES} passes from the same rows, medians of {ROUNDS} "
        f"interleaved runs; {result['cpu']}. Made by `python -m benchmarks.sparse --write`.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, save, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into DESIGN.md")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        library, path, k = args.child
        print(seconds_a_pass(library, path, int(k)))
        return
    with tempfile.TemporaryDirectory() as folder:
        result = {"cpu": cpu_description(), "records": compare(Path(folder))}
    print(table(result))
    if args.write:
        save("sparse", result)
        write_table(ROOT / "largek_dask" / "DESIGN.md", "sparse", table(result))


if __name__ == "__main__":
    main()
