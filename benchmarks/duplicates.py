"""Near-duplicates inside clusters: pairs that clusters separate, and cost beside numpy and faiss.

    python -m benchmarks.duplicates [--rows N] [--only recall|cost] [--write]

Rows are unit vectors of 384 numbers: groups of random size about random directions, and copies with
noise of one row in ten. First, 50,000 rows: near-duplicates found inside k clusters, as a share of
those that a comparison of all rows finds. Then N rows in a .npy file and N / 1000 clusters, on two
threads: `lk.near_duplicates` with a fitted model, and the same clusters searched by matrix products
of numpy and by faiss (`IndexFlatIP.range_search`, as SemDeDup's authors use matrix products). Both
are given the rows in memory, the labels and the order, and only decide which rows go; ours reads
the rows, labels them, and reports the most similar row of each row as well.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import (
    child_record,
    cpu_description,
    new_parser,
    parse,
    peak_bytes,
    peer_environments,
    read_result,
    rounded,
)
from benchmarks.tables import publish, table_of

D, THRESHOLD, THREADS = 384, 0.95, 2
RECALL_ROWS, RECALL_CLUSTERS = 50_000, (1, 10, 50, 200)
FIT: dict[str, Any] = {"normalize": "l2", "random_state": 0, "n_threads": THREADS}
METHODS = ("ours", "numpy", "faiss")


def rows_of(n: int, seed: int = 0) -> NDArray[np.float32]:
    """Unit vectors in groups, one row in ten followed by a near-duplicate elsewhere."""
    r = np.random.default_rng(seed)
    n_groups = n // 500
    groups = r.normal(size=(n_groups, D)).astype(np.float32)
    own = r.choice(n_groups, n, p=r.dirichlet(np.full(n_groups, 2.0)))
    x = np.empty((n, D), np.float32)
    for begin in range(0, n, 50_000):
        at = slice(begin, begin + 50_000)
        x[at] = groups[own[at]] + r.standard_normal((len(own[at]), D), np.float32)
        x[at] /= np.linalg.norm(x[at], axis=1, keepdims=True)
    copied, to = r.permutation(n)[: n // 5].reshape(2, -1)
    noise = r.standard_normal((len(to), D), np.float32)
    x[to] = x[copied] + noise * (r.uniform(0.0, 0.4, (len(to), 1)) / np.sqrt(D)).astype("f4")
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x[r.permutation(n)]


def recall() -> list[dict[str, Any]]:
    """Near-duplicates by number of clusters; one cluster compares all rows."""
    import largek_dask as lk

    x, records, removed = rows_of(RECALL_ROWS), list[dict[str, Any]](), 0
    for k in RECALL_CLUSTERS:
        begun = time.process_time()
        model = lk.KMeans(k, effort="fast", **FIT).fit(x).model_
        fit = time.process_time() - begun
        found = lk.near_duplicates(x, THRESHOLD, model=model, n_threads=THREADS, order="id")
        seconds = time.process_time() - begun - fit
        if k == 1:
            # All rows were compared, in the order of the table.
            removed, places = int((~found.kept).sum()), np.flatnonzero(~found.kept)
            first = found.duplicate_of[places]
        together = found.labels[places] == found.labels[first]
        records.append(
            {
                "k": k,
                "removed": int((~found.kept).sum()),
                "share": float((~found.kept).sum() / removed),
                "pairs": float(together.mean()),
                "fit": fit,
                "search": seconds,
            }
        )
        print(records[-1], file=sys.stderr)
    return records


def child(method: str, folder: str) -> dict[str, Any]:
    """Search the clusters of a model; figures of this process alone."""
    import largek_dask as lk

    model = lk.load_model(f"{folder}/model.zarr")
    # Compile before measuring.
    lk.near_duplicates(np.load(f"{folder}/x.npy", mmap_mode="r")[:5000].copy(), model=model)
    x = np.empty((0, D), np.float32) if method == "ours" else np.load(f"{folder}/x.npy")
    clusters = np.load(f"{folder}/order.npy"), np.load(f"{folder}/ends.npy")
    if method == "faiss":
        import faiss

        faiss.omp_set_num_threads(THREADS)
    cpu, begun = time.process_time(), time.perf_counter()
    if method == "ours":
        found = lk.near_duplicates(f"{folder}/x.npy", THRESHOLD, model=model, n_threads=THREADS)
        removed = int((~found.kept).sum())
    else:
        removed = sum(
            _numpy(x[rows]) if method == "numpy" else _faiss(x[rows])
            for rows in np.split(clusters[0], clusters[1][:-1])
        )
    return {
        "method": method,
        "seconds": time.perf_counter() - begun,
        "cpu": time.process_time() - cpu,
        "peak": peak_bytes(),
        "removed": removed,
    }


def _numpy(x: NDArray[np.float32]) -> int:
    """Number of rows with a similar earlier row."""
    return int((np.tril(x @ x.T, -1) >= THRESHOLD).any(axis=1).sum())


def _faiss(x: NDArray[np.float32]) -> int:
    import faiss

    if not len(x):
        return 0
    index = faiss.IndexFlatIP(D)
    index.add(x)
    limits, _, other = index.range_search(x, THRESHOLD)
    own = np.repeat(np.arange(len(x)), np.diff(limits).astype(np.int64))
    return len(np.unique(own[other < own]))


def cost(n: int) -> dict[str, Any]:
    """Search of n rows by every method, each in a process of its own."""
    import largek_dask as lk

    with tempfile.TemporaryDirectory() as folder:
        x = rows_of(n)
        np.save(f"{folder}/x.npy", x)
        begun = time.process_time()
        model = lk.KMeans(n // 1000, effort="fast", **FIT).fit(x).model_
        fit = time.process_time() - begun
        model.save(f"{folder}/model.zarr")
        labels = model.predict(x, n_threads=THREADS)
        far = np.linalg.norm(x - model.centers[labels], axis=1)
        np.save(f"{folder}/order.npy", np.lexsort((-far, labels)))
        np.save(f"{folder}/ends.npy", np.cumsum(np.bincount(labels, minlength=n // 1000)))
        del x
        environment = peer_environments("largek_dask")[""] | dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(THREADS)
        )
        records = []
        for method in METHODS:
            records.append(child_record("benchmarks.duplicates", [method, folder], environment))
            print(records[-1], file=sys.stderr)
    return {"n": n, "k": n // 1000, "fit": fit, "methods": records}


def recall_table(result: dict[str, Any]) -> str:
    """Table of the near-duplicates that clusters separate."""
    head = ["clusters", "rows removed", "share", "pairs in one cluster", "CPU s, fit", "search"]
    rows = [
        [f"{r['k']:,}", f"{r['removed']:,}", f"{r['share']:.4f}", f"{r['pairs']:.4f}",
         f"{r['fit']:.1f}", f"{r['search']:.1f}"]
        for r in result["recall"]
    ]  # fmt: skip
    note = (
        f"The data are {RECALL_ROWS:,} rows of {D} features. "
        f"The threshold is {THRESHOLD}, and rows are compared in the order of the table. "
        "With one cluster, all rows are compared. "
        f"The load average was {result['load']:.1f}. Machine: {result['machine']}. "
        "To repeat the measurement, run `python -m benchmarks.duplicates --only recall --write`."
    )
    return "\n".join([*table_of(head, rows), "", note])


def cost_table(result: dict[str, Any]) -> str:
    """Table of the cost beside other methods."""
    cost, names = result["cost"], {"ours": "`near_duplicates`", "numpy": "numpy", "faiss": "faiss"}
    rows = [
        [names[r["method"]], f"{r['seconds']:.1f}", f"{r['cpu']:.1f}", f"{r['peak'] / 1e9:.2f}",
         f"{r['removed']:,}"]
        for r in cost["methods"]
    ]  # fmt: skip
    note = (
        f"The data are {cost['n']:,} rows of {D} features in {cost['k']:,} clusters. The threshold "
        f"is {THRESHOLD}, and all methods use two threads. `near_duplicates` reads the rows from a "
        "file, assigns them to clusters and finds the most similar earlier row of each row. For "
        "numpy and faiss, rows, labels and order are already in memory, and these methods only "
        f"count near-duplicates. The fit took another {cost['fit']:.0f} CPU seconds. Compare CPU "
        "seconds, because other programs used the machine at the same time (load average "
        f"{result['load']:.1f} on two cores). To repeat the measurement, run "
        f"`python -m benchmarks.duplicates --only cost --rows {cost['n']} --write`."
    )
    return "\n".join(
        [*table_of(["method", "s", "CPU s", "peak GB", "rows removed"], rows), "", note]
    )


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", choices=["recall", "cost"], help="keep the other result")
    args = parse(parser, child)
    result = read_result("duplicates") | {"machine": cpu_description()}
    if args.only != "cost":
        result["recall"] = recall()
    if args.only != "recall":
        result["cost"] = cost(args.rows)
    result["load"] = os.getloadavg()[1]
    result = rounded(result, 5)
    publish("duplicates", result, write=args.write)


if __name__ == "__main__":
    main()
