"""Recall and training time of IVF indexes with our centres, beside faiss's own training.

    python -m benchmarks.indexes [--write]

`IndexIVFFlat` of faiss over glove100k and sift200k without 1,000 rows drawn as queries, with one
list per centre; exact neighbours are those of a flat index. Trainings run in processes of their
own on one thread and see all rows that are added. faiss is trained with 10 passes, its default for
an index, and with 20, which end at about the error of ``effort="fast"``. Means over three seeds,
which draw the queries, too. Needs `LARGEK_DATA`.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import (
    child_record,
    cpu_description,
    new_parser,
    parse,
    peer_environments,
    rounded,
)
from benchmarks.sets import at_hand, prepare
from benchmarks.tables import publish, table_of

SETS = {"glove100k": (1_000,), "sift200k": (1_024, 4_096)}
"""Numbers of lists by set."""
SEEDS = (0, 1, 2)
QUERIES, NEIGHBOURS, PROBES = 1000, 10, (1, 4, 16, 64)
OURS = 'KMeans(effort="fast")'
FAISS = {"faiss": 10, "faiss, 20 passes": 20}
"""Passes of its trainings; 10 is its default."""


def our_centers(x: Any, k: int, seed: int) -> tuple[Any, float, int]:
    """Centres, CPU seconds of the fit without those of compilation, and its steps."""
    import largek_dask as lk
    from largek_dask.kernels.compiling import compiled

    # Compile and load what most fits need.
    lk.KMeans(k // 10, effort="fast", random_state=0, n_threads=1).fit(x[: len(x) // 10])
    begun, made = time.process_time(), compiled()
    km = lk.KMeans(k, effort="fast", random_state=seed, n_threads=1).fit(x)
    seconds = time.process_time() - begun - compiled().since(made).seconds
    return km.model_.centers, seconds, km.n_iter_


def faiss_centers(x: Any, k: int, seed: int, passes: int) -> tuple[Any, float, int]:
    """Centres, CPU seconds and passes of an index's training."""
    import faiss

    quantizer = faiss.IndexFlatL2(x.shape[1])
    index = faiss.IndexIVFFlat(quantizer, x.shape[1], k)
    index.cp.niter, index.cp.seed = passes, seed
    begun = time.process_time()
    index.train(x)
    return quantizer.reconstruct_n(0, k), time.process_time() - begun, passes


def child(path: str, k: int, seed: int, methods: list[str]) -> dict[str, Any]:
    """Trainings by these methods, and the recall of their indexes."""
    import faiss

    faiss.omp_set_num_threads(1)
    x = np.load(path)
    order = np.random.default_rng(seed).permutation(len(x))
    queries, rows = x[order[:QUERIES]], x[order[QUERIES:]]
    flat = faiss.IndexFlatL2(x.shape[1])
    flat.add(rows)
    exact = flat.search(queries, NEIGHBOURS)[1]
    found = {}
    for method in methods:
        if method == OURS:
            centers, seconds, passes = our_centers(rows, k, seed)
        else:
            centers, seconds, passes = faiss_centers(rows, k, seed, FAISS[method])
        quality = quality_of(centers, rows, queries, exact)
        found[method] = {"seconds": seconds, "passes": passes, **quality}
    return found


def quality_of(centers: Any, rows: Any, queries: Any, exact: Any) -> dict[str, Any]:
    """Error of the centres; recall, and rows compared per query, by number of probes."""
    import faiss

    from largek_dask.algorithms.kmeans import CenterArrays
    from largek_dask.model import Model

    arrays = CenterArrays(centers, np.ones(len(centers)), np.zeros_like(centers[0]))
    index = Model(arrays).to_faiss()
    error = float(index.quantizer.search(rows, 1)[0].mean(dtype=np.float64))
    index.add(rows)
    recall, compared = [], []
    for index.nprobe in PROBES:
        faiss.cvar.indexIVF_stats.reset()
        near = index.search(queries, NEIGHBOURS)[1]
        hits = sum(len(np.intersect1d(*pair)) for pair in zip(near, exact, strict=True))
        recall.append(hits / exact.size)
        compared.append(faiss.cvar.indexIVF_stats.ndis / len(queries))
    return {"error": error, "recall": recall, "compared": compared}


def measure(path: Path, k: int, seed: int) -> dict[str, dict[str, Any]]:
    """All trainings of a seed; each of faiss's in its best environment."""
    runs: dict[str, dict[str, Any]] = {}
    for library, methods in (("largek_dask", [OURS]), ("faiss", [*FAISS])):
        tried = [
            child_record("benchmarks.indexes", [str(path), k, seed, methods], environment)
            for environment in peer_environments(library).values()
        ]
        for method in methods:
            runs[method] = min((one[method] for one in tried), key=lambda run: run["seconds"])
            print(path.stem, seed, method, runs[method], flush=True)
    return runs


def mean(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of every figure over seeds."""
    return {name: np.mean([run[name] for run in runs], axis=0).tolist() for name in runs[0]}


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result."""
    rows = []
    for r in result["records"]:
        for method, run in r["runs"].items():
            cells = [r["set"], f"{r['seeds']}", f"{r['k']:,}", method, f"{run['seconds']:.2f} s"]
            cells += [f"{run['passes']:.0f}", f"{run['error']:.5g}"]
            cells += [f"{100 * recall:.1f} %" for recall in run["recall"]]
            rows.append([*cells, f"{run['compared'][PROBES.index(16)]:,.0f}"])
    head = ["set", "seeds", "lists", "centres of", "training", "passes", "error"]
    head += [f"{n} probe{'s' if n > 1 else ''}" for n in PROBES] + ["rows compared at 16"]
    note = (
        f"The probe columns show recall@{NEIGHBOURS} for {QUERIES:,} queries that are not in the "
        "index. All numbers are averaged over seeds. Training is CPU time on one thread; for "
        "KMeans, it includes labelling all rows. A pass of KMeans may use only a sample of the "
        "rows. Error is the mean squared distance of the rows to their centres. The last column "
        "is the number of rows compared per query with 16 probes. Machine: "
        f"{result['cpu']}. To repeat the measurement, run `python -m benchmarks.indexes --write`."
    )
    return "\n".join([*table_of(head, rows), "", note])


def main() -> None:
    """Measure, and write if asked to."""
    args = parse(new_parser(__doc__), child)
    records = []
    with tempfile.TemporaryDirectory() as folder:
        for name in at_hand(SETS):
            path = prepare(name, Path(folder))
            n, d = np.load(path, mmap_mode="r").shape
            for k in SETS[name]:
                seeds = [measure(path, k, seed) for seed in SEEDS]
                runs = {method: mean([seed[method] for seed in seeds]) for method in seeds[0]}
                record = {"set": name, "n": n, "d": d, "k": k, "seeds": len(SEEDS), "runs": runs}
                records.append(record)
    result = rounded({"cpu": cpu_description(), "records": records}, 6)
    publish("indexes", result, write=args.write)


if __name__ == "__main__":
    main()
