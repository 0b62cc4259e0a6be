"""Compare k-means on sparse rows with scikit-learn, on one thread.

    python -m benchmarks.sparse [--cases reuters-50 short-100 ...] [--write]

All methods use the same float32 CSR rows and the same random starting rows, with curves as in
`curves.py`. scikit-learn's KMeans makes the same passes as ours, so its curve is computed from its
seconds per pass, and its lowest energy is that of our runs. `auto` chooses its own start.
Reuters-21578 TF-IDF requires `LARGEK_DATA`; the other sets are generated. `short` has TF-IDF rows
of ten words, half of them from all words and half from one planted topic, both with Zipf
frequencies. `counts` has gene counts of cells.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import largek_dask as lk
from benchmarks.common import child_record, cpu_description, new_parser, parse, read_result
from benchmarks.curves import AUTO, LLOYD, MINIBATCH, NMBATCH, Task, measure
from benchmarks.levels import time_to
from benchmarks.peers import exact_fit, timed
from benchmarks.sets import data_folder, load, starting_centers
from benchmarks.tables import publish, table_of

CASES = ["reuters-50", "reuters-500", "short-100", "counts-50"]
NEAR = 0.02
"""Excess over Lloyd's final energy that must be reached."""
LIMITS = {AUTO: 120.0, LLOYD: 120.0, NMBATCH: 120.0, MINIBATCH: 40.0}
"""Methods with their time limits in CPU seconds."""
STARTS = 10
"""Number of runs of Lloyd's algorithm from other random rows; the lowest energy is kept."""
ROUNDS = 3
"""Number of alternating runs of scikit-learn's KMeans."""
MANY_ROWS = 100_000
"""With more rows, scikit-learn's pass is timed on every tenth row and multiplied by ten."""


def topics(n: int, d: int, n_topics: int = 100, words: int = 88, seed: int = 0) -> Any:
    """Return (n, d) CSR rows of unit length, made in blocks to save memory.

    Half of the words of a row are drawn from all words, and half from the 300 words of its topic.
    The weight of a word depends on the logarithms of its count and of its rarity. 88 drawn words
    are about 75 different words.
    """
    from scipy.sparse import csr_matrix

    r = np.random.default_rng(seed)
    everywhere, of_topic = zipf(d, 10), zipf(300, 2)
    vocabulary = np.stack([r.permutation(d)[:300] for _ in range(n_topics)])
    data, indices, lengths = [], [], []
    for begin in range(0, n, 20_000):
        rows, half = min(20_000, n - begin), words // 2
        topic = r.integers(n_topics, size=(rows, 1))
        own = of_topic[r.integers(len(of_topic), size=(rows, half), dtype=np.uint32)]
        other = everywhere[r.integers(len(everywhere), size=(rows, words - half), dtype=np.uint32)]
        word = np.sort(np.hstack([vocabulary[topic, own], other]).astype(np.int32), axis=1)
        first = np.ones(word.shape, np.bool_)
        first[:, 1:] = word[:, 1:] > word[:, :-1]
        at = np.flatnonzero(first)
        data.append(1 + np.log(np.diff(np.append(at, word.size))).astype(np.float32))
        indices.append(word.ravel()[at])
        lengths.append(first.sum(axis=1))
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    x = csr_matrix((np.concatenate(data), np.concatenate(indices), indptr), shape=(n, d))
    rarity = np.log(n / np.maximum(np.bincount(x.indices, minlength=d), 1)).astype(np.float32)
    x.data *= rarity[x.indices]
    norms = np.sqrt(np.add.reduceat(x.data * x.data, x.indptr[:-1]))
    x.data /= np.repeat(norms, np.diff(x.indptr))
    return x


def counts(n: int = 20_000, d: int = 2_000, n_types: int = 30, seed: int = 0) -> Any:
    """Return (n, d) CSR counts in which each cell type has more of some genes."""
    from scipy.sparse import csr_matrix, vstack

    r = np.random.default_rng(seed)
    other = np.exp(r.normal(0, 1, (n_types, d)) * (r.random((n_types, d)) < 0.1))
    profiles = r.gamma(0.3, 1, d) * other
    profiles /= profiles.sum(axis=1, keepdims=True)
    of, depth = r.choice(n_types, n, p=r.dirichlet(np.full(n_types, 2.0))), r.lognormal(6, 0.4, n)
    parts = []
    for begin in range(0, n, 2_000):
        at = slice(begin, begin + 2_000)
        parts.append(csr_matrix(r.poisson(profiles[of[at]] * depth[at, None]).astype(np.float32)))
    return vstack(parts).tocsr()


MADE: dict[str, Callable[[], Any]] = {
    "short": lambda: topics(200_000, 30_000, n_topics=300, words=11),
    "counts": counts,
}


def zipf(n_words: int, offset: int) -> NDArray[np.int64]:
    """Return words with Zipf-Mandelbrot frequencies."""
    mass = 1.0 / np.arange(offset, n_words + offset)
    return np.repeat(np.arange(n_words), np.ceil(mass / mass.sum() * (1 << 20)).astype(np.int64))


def prepare(name: str, folder: Path) -> Path:
    """Return the file of a set, which is made if it does not exist."""
    if name == "reuters":
        return data_folder() / "reuters_tfidf.npz"
    path = folder / f"{name}.npz"
    if not path.exists():
        from scipy.sparse import save_npz

        save_npz(path, MADE[name](), compressed=False)
    return path


def exact_peer(path: str, k: int) -> float:
    """Return CPU seconds per pass of scikit-learn's KMeans, from a long and a short fit."""
    from threadpoolctl import threadpool_limits

    x = load(path)
    centers, times = starting_centers(x, k), 1
    if x.shape[0] > MANY_ROWS:
        x, times = x[::10], 10
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = exact_fit("scikit-learn", centers)
        fit(x[: 2 * k], 1)
        return (timed(fit, x, 4)[1] - timed(fit, x, 1)[1]) / 3 * times


def lowest(path: str, k: int) -> float:
    """Return the lowest final energy of several runs of Lloyd's algorithm."""
    x = load(path)
    options = {"algorithm": "lloyd", "init": "random", "tol": 0, "max_iter": 300, "n_threads": 1}
    fits = [lk.KMeans(k, random_state=seed, **options).fit(x) for seed in range(STARTS)]
    return min(float(km.inertia_) for km in fits) / x.shape[0]


def child(what: str, path: str, k: int) -> float:
    return exact_peer(path, k) if what == "peer" else lowest(path, k)


def compare(case: str, folder: Path) -> dict[str, Any]:
    name, clusters = case.rsplit("-", 1)
    path, k = str(prepare(name, folder)), int(clusters)
    x = load(path)
    record: dict[str, Any] = {"case": case, "n": x.shape[0], "d": x.shape[1], "k": k, "runs": {}}
    record["stored"] = x.nnz / x.shape[0]
    exact: list[float] = []
    levels: tuple[float, ...] = ()
    for method in (LLOYD, AUTO, NMBATCH, MINIBATCH):
        [run] = measure([Task(method, path, k, limit=LIMITS[method], levels=levels,
                              excesses=(NEAR,))])  # fmt: skip
        if method == LLOYD:
            levels = (run["energies"][-1] * (1 + NEAR),)
        clock = run.pop("clock")
        run["seconds_a_step"] = (clock[-1] - clock[0]) / max(1, len(clock) - 1)
        record["runs"][method] = run
        print(f"{case} {method}: {run['total']:.1f} s, {run['energies'][-1]:.6g}", flush=True)
        if len(exact) < ROUNDS:
            exact.append(child_record("benchmarks.sparse", ["peer", path, k]))
    record["seconds_a_pass"] = float(np.median(exact))
    return record | {"lowest": child_record("benchmarks.sparse", ["lowest", path, k])}


def passes_row(record: dict[str, Any]) -> list[str]:
    lloyd, peer = record["runs"][LLOYD], record["seconds_a_pass"]
    step, whole, n = lloyd["seconds_a_step"], lloyd["total"], lloyd["n_steps"]
    return [
        record["case"].rsplit("-", 1)[0],
        f"{record['n']:,} × {record['d']:,}",
        f"{record['stored']:.0f}",
        f"{record['k']}",
        f"{step:.3f}",
        f"{peer:.3f} ({peer / step:.1f}x)",
        f"{'' if lloyd['ended'] else 'more than '}{n}",
        f"{whole:.1f}",
        f"{peer * n:.1f} ({peer * n / whole:.1f}x)",
    ]


def curves_row(record: dict[str, Any]) -> list[str]:
    lloyd = record["runs"][LLOYD]
    end = lloyd["energies"][-1]
    limit = end * (1 + NEAR)
    passes = zip(lloyd["steps"], lloyd["energies"], strict=True)
    peer = record["seconds_a_pass"] * next(step for step, value in passes if value <= limit)
    cells, times = [record["case"].rsplit("-", 1)[0], f"{record['k']}"], {}
    for method in LIMITS:
        run = record["runs"][method]
        times[method] = at = time_to(run, limit)
        above = 100 * (min(run["energies"]) / end - 1)
        cells.append(f"{'never' if at is None else f'{at:.2f}'} ({above:+.2f} %)")
    cells += [f"{peer:.2f}", f"{100 * (record['lowest'] / end - 1):+.2f} %"]
    ours = times[AUTO] or np.inf
    return [*cells, f"{min(peer, times[MINIBATCH] or np.inf) / ours:.1f}x"]


def table(result: dict[str, Any]) -> str:
    exact = ["set", "rows × features", "nonzeros per row", "k", "Lloyd, seconds per pass",
             "scikit-learn, seconds per pass", "passes until no label changes",
             "Lloyd, total seconds", "scikit-learn, total seconds"]  # fmt: skip
    curves = ["set", "k", *LIMITS, "scikit-learn KMeans", "lowest energy", "speedup of auto"]
    between = (
        "The next table shows the seconds until the energy is within 2 % of the final energy of "
        "Lloyd's algorithm, and in brackets the final energy of each method, relative to that of "
        f"Lloyd's algorithm. The lowest energy is that of {STARTS} runs of Lloyd's algorithm."
    )
    note = (
        "Times are CPU seconds on one thread with float32, from the same random starting rows, and "
        "include the first scan of the rows. In the first table, the numbers in brackets are "
        f"speedups of largek_dask. Processor: {result['cpu']}."
        " This table was made by `python -m benchmarks.sparse --write`."
    )
    records = result["records"]
    lines = [*table_of(exact, [passes_row(r) for r in records]), "", between, ""]
    return "\n".join([*lines, *table_of(curves, [curves_row(r) for r in records]), "", note])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--cases", nargs="*", choices=CASES, metavar="CASE")
    args = parse(parser, child)
    there = [c for c in CASES if c.split("-")[0] in MADE or prepare("reuters", Path()).exists()]
    old = read_result("sparse")
    known = old.get("records", []) if args.cases and old.get("cpu") == cpu_description() else []
    records = {record["case"]: record for record in known}
    with tempfile.TemporaryDirectory() as folder:
        for case in args.cases or there:
            records[case] = compare(case, Path(folder))
            ordered = [records[name] for name in CASES if name in records]
            publish("sparse", {"cpu": cpu_description(), "records": ordered}, write=args.write)


if __name__ == "__main__":
    main()
