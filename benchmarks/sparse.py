"""k-means on sparse rows beside scikit-learn, on one thread: a pass, and energy against seconds.

    python -m benchmarks.sparse [--cases reuters-50 short-100 ...] [--write]

Same float32 CSR rows, same random starting rows, every run in a process of its own. Curves are CPU
seconds after every step (scan of the rows included) and, outside the clock, the energy over ALL
rows; scikit-learn's KMeans makes the same passes as ours, so its curve is its seconds a pass times
Lloyd's passes, and the lowest of its runs is that of ours. `auto` begins by itself, as it does for
users. Reuters-21578 TF-IDF needs `LARGEK_DATA`; the other sets are generated: TF-IDF rows of ten
words, half of them from everywhere and half from one of a row's planted topics, both by the law of
Zipf (`short`); and counts of genes as cells have them (`counts`).
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import largek_dask as lk
from benchmarks.common import (
    child_record,
    cpu_description,
    new_parser,
    parse,
    peer_environments,
    read_result,
)
from benchmarks.levels import time_to
from benchmarks.sets import data_folder
from benchmarks.tables import publish, table_of
from largek_dask.algorithms.auto import Auto

CASES = ["reuters-50", "reuters-500", "short-100", "counts-50"]
AUTO, LLOYD = "auto", "lloyd"
OURS: dict[str, Any] = {AUTO: Auto(), LLOYD: lk.Lloyd(), "nmbatch": lk.NMBatch()}
PEER = "scikit-learn MiniBatchKMeans"
EXACT_PEER = "scikit-learn KMeans"
LOWEST = "lowest"
STARTS = 10
"""Runs of Lloyd's algorithm from other random rows, of which the lowest end is kept."""
ROUNDS = 3
"""Runs of scikit-learn's KMeans, between those of the others."""
MANY_ROWS = 100_000
"""With more rows scikit-learn's pass is timed on every tenth row, and counted ten times."""
MOST_STEPS = 300
MOST_BATCHES = 200
"""Mini-batches of a run."""
MOST_SECONDS = 40.0
"""CPU seconds of a run of mini-batches."""
SNAPSHOTS = 24

Steps = Iterator[tuple[NDArray[np.float32], float, dict[str, Any]]]


def topics(n: int, d: int, n_topics: int = 100, words: int = 88, seed: int = 0) -> Any:
    """(n, d) CSR rows of unit length, in blocks so that little more than the rows is held.

    Half of the words drawn are from everywhere, half from the 300 of the row's topic. A word
    counts by the logarithm of how often it is drawn and of its rarity. 88 words are about 75
    different ones.
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
    """(n, d) CSR counts: each type of cell has more of some genes, a cell of all by its depth."""
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
"""Functions that make the generated sets."""


def zipf(n_words: int, offset: int) -> NDArray[np.int64]:
    """Words in the frequencies of the law of Zipf and Mandelbrot: one is drawn by its place."""
    mass = 1.0 / np.arange(offset, n_words + offset)
    return np.repeat(np.arange(n_words), np.ceil(mass / mass.sum() * (1 << 20)).astype(np.int64))


def prepare(name: str, folder: Path) -> Path:
    """The file of a set, made if need be."""
    if name == "reuters":
        return data_folder() / "reuters_tfidf.npz"
    path = folder / f"{name}.npz"
    if not path.exists():
        from scipy.sparse import save_npz

        save_npz(path, MADE[name](), compressed=False)
    return path


def load(path: str) -> Any:
    """CSR rows in float32."""
    from scipy.sparse import load_npz

    stored: Any = load_npz(path)
    x = stored.tocsr().astype(np.float32)
    x.sum_duplicates()
    return x


def starting_centers(x: Any, k: int) -> NDArray[np.float32]:
    """Distinct random rows, seed 7."""
    chosen: NDArray[np.float32] = x[
        np.sort(np.random.default_rng(7).choice(x.shape[0], k, replace=False))
    ].toarray()
    return chosen


def exact_peer(path: str, k: int) -> float:
    """CPU seconds a pass of scikit-learn's KMeans: a longer fit less a shorter one."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    x = load(path)
    centers, times = starting_centers(x, k), 1
    if x.shape[0] > MANY_ROWS:
        x, times = x[::10], 10

    def seconds(rows: Any, passes: int) -> float:
        km = KMeans(k, init=centers, n_init=1, max_iter=passes, tol=0, algorithm="lloyd")
        begun = time.process_time()
        km.fit(rows)
        return time.process_time() - begun

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seconds(x[: 2 * k], 1)
        return (seconds(x, 4) - seconds(x, 1)) / 3 * times


def steps_of_ours(method: str, x: Any, centers: NDArray[np.float32]) -> Steps:
    """Centres after every step, passes so far, and figures of the step."""
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    rows_of, k = open_rows(x), len(centers)
    algorithm = OURS[method]
    if method == AUTO:
        algorithm = replace(algorithm.choose(rows_of, k).algorithm, problem=KMeansProblem(k))
    else:
        algorithm = replace(algorithm, problem=KMeansProblem(k, centers))
    with LocalPasses(rows_of, n_threads=1) as passes:
        state, rows = algorithm.init(passes, Rng(0)), 0
        for _ in range(MOST_STEPS):
            state, info = algorithm.step(passes, Rng(0), state)
            rows += info.rows
            about: dict[str, Any] = {"changed": info.n_changed}
            if isinstance(algorithm, lk.Lloyd):
                about["cost"] = info.cost
            yield algorithm.model(state).centers, rows / x.shape[0], about
            if info.converged:
                return


def steps_of_scikit_learn(method: str, x: Any, centers: NDArray[np.float32]) -> Steps:
    """The same of scikit-learn's mini-batches, fed in random order."""
    from sklearn.cluster import MiniBatchKMeans
    from threadpoolctl import threadpool_limits

    k, n = len(centers), x.shape[0]
    size = max(10 * k, 4096)
    km = MiniBatchKMeans(k, init=centers, n_init=1, batch_size=size, random_state=0)
    order, rows, begin = np.random.default_rng(0).permutation(n), 0, 0
    with threadpool_limits(1):
        for _ in range(MOST_BATCHES):
            chosen = order[begin : begin + size]
            km.partial_fit(x[chosen])
            rows, begin = rows + len(chosen), begin + size if begin + size < n else 0
            yield km.cluster_centers_, rows / n, {}


def energy(x: Any, centers: NDArray[np.float32]) -> float:
    """Mean squared distance of all rows to their nearest centres."""
    from largek_dask.data.csr_blocks import block_of
    from largek_dask.kernels.distances import nearest, pack_centers, squared_distances

    packed = pack_centers(centers.astype(np.float32), np.zeros(x.shape[1], np.float32))
    rows = block_of(x.data, x.indices, x.indptr, x.shape[1])
    return float(squared_distances(rows, packed, nearest(rows, packed)).mean())


def curve(method: str, path: str, k: int) -> dict[str, Any]:
    """CPU seconds and energies of a run, in this process."""
    x = load(path)
    centers = starting_centers(x, k)
    steps = steps_of_scikit_learn if method == PEER else steps_of_ours
    # A few rows first, so that no compilation or loading of code is timed.
    for number, _ in enumerate(steps(method, x[: max(4 * k, 2_000)], x[:k].toarray())):
        if number == 20:
            break
    kept: list[tuple[float, NDArray[np.float32]]] = []
    costs: list[float] = []
    clock, passes, take = 0.0, 0.0, 1.0
    seconds: list[float] = []
    last: Any = None
    begun = time.process_time()
    for number, (now, at, about) in enumerate(steps(method, x, centers), 1):
        clock += time.process_time() - begun
        seconds.append(clock)
        passes = at
        last = np.array(now, np.float32)
        if "cost" in about:
            # A step's cost is that of the centres before it.
            costs.append(about["cost"] / x.shape[0])
        elif number >= take:
            kept.append((clock, last))
            take = max(number + 1, take * 1.25)
        changed = about.get("changed")
        if method == PEER and clock > MOST_SECONDS:
            break
        begun = time.process_time()
    if costs:
        costs = [*costs[1:], energy(x, last)]
        points = list(zip(seconds, costs, strict=True))
    else:
        if kept[-1][0] < clock:
            kept.append((clock, last))
        points = [(at, energy(x, centers)) for at, centers in kept]
    return {
        "seconds": [at for at, _ in points],
        "energies": [value for _, value in points],
        "steps": len(seconds),
        "passes": passes,
        "seconds_a_step": (seconds[-1] - seconds[0]) / max(1, len(seconds) - 1),
        "ended": changed == 0,
    }


def lowest(path: str, k: int) -> float:
    """The lowest end of some runs of Lloyd's algorithm to a fixed point."""
    x = load(path)
    ends = []
    for seed in range(STARTS):
        km = lk.KMeans(
            k, algorithm="lloyd", init="random", tol=0, max_iter=MOST_STEPS, random_state=seed,
            n_threads=1,
        )  # fmt: skip
        ends.append(float(km.fit(x).inertia_) / x.shape[0])
    return min(ends)


def child(method: str, path: str, k: int) -> Any:
    """A run, or a figure that is no run."""
    if method == EXACT_PEER:
        return exact_peer(path, k)
    return lowest(path, k) if method == LOWEST else curve(method, path, k)


def asked(method: str, path: Path, k: int) -> Any:
    """The same in a process of its own."""
    library = "largek_dask" if method in (*OURS, LOWEST) else "scikit-learn"
    environment = peer_environments(library)[""]
    return child_record("benchmarks.sparse", [method, str(path), k], environment)


def compare(case: str, folder: Path) -> dict[str, Any]:
    """All curves of a case, and scikit-learn's seconds a pass."""
    name, k = case.rsplit("-", 1)
    path = prepare(name, folder)
    x = load(str(path))
    record: dict[str, Any] = {"case": case, "n": x.shape[0], "d": x.shape[1], "k": int(k)}
    record |= {"stored": x.nnz / x.shape[0], "runs": {}}
    exact: list[float] = []
    for method in [*OURS, PEER]:
        record["runs"][method] = run = asked(method, path, int(k))
        print(f"{case} {method}: {run['seconds'][-1]:.1f} s, {run['energies'][-1]:.6g}", flush=True)
        if len(exact) < ROUNDS:
            exact.append(asked(EXACT_PEER, path, int(k)))
    record["seconds_a_pass"] = float(np.median(exact))
    return record | {"lowest": asked(LOWEST, path, int(k))}


def within(record: dict[str, Any], excess: float) -> dict[str, float | None]:
    """CPU seconds of every method to a share above Lloyd's end."""
    lloyd = record["runs"][LLOYD]
    limit = lloyd["energies"][-1] * (1 + excess)
    passes = 1 + next(i for i, value in enumerate(lloyd["energies"]) if value <= limit)
    found = {method: time_to(run, limit) for method, run in record["runs"].items()}
    return found | {EXACT_PEER: passes * record["seconds_a_pass"]}


def passes_rows(records: list[dict[str, Any]]) -> list[list[str]]:
    """A line for each case: exact k-means beside scikit-learn's."""
    rows = []
    for r in records:
        lloyd, peer = r["runs"][LLOYD], r["seconds_a_pass"]
        step, whole = lloyd["seconds_a_step"], lloyd["seconds"][-1]
        rows.append(
            [
                r["case"].rsplit("-", 1)[0],
                f"{r['n']:,} × {r['d']:,}",
                f"{r['stored']:.0f}",
                f"{r['k']}",
                f"{step:.3f}",
                f"{peer:.3f} ({peer / step:.1f}x)",
                f"{'' if lloyd['ended'] else 'more than '}{lloyd['steps']}",
                f"{whole:.1f}",
                f"{peer * lloyd['steps']:.1f} ({peer * lloyd['steps'] / whole:.1f}x)",
            ]
        )
    return rows


def curves_rows(records: list[dict[str, Any]]) -> list[list[str]]:
    """A line for each case: seconds to 2 % above Lloyd's end, and ends."""
    rows = []
    for r in records:
        found, end = within(r, 0.02), r["runs"][LLOYD]["energies"][-1]
        cells = [r["case"].rsplit("-", 1)[0], f"{r['k']}"]
        for method in (*OURS, PEER):
            at = "never" if found[method] is None else f"{found[method]:.2f}"
            least = min(r["runs"][method]["energies"])
            cells.append(f"{at} ({100 * (least / end - 1):+.2f} %)")
        cells += [f"{found[EXACT_PEER]:.2f}", f"{100 * (r['lowest'] / end - 1):+.2f} %"]
        peer = min(found[m] or np.inf for m in (PEER, EXACT_PEER))
        rows.append([*cells, f"{peer / found[AUTO]:.1f}x"])  # type: ignore[operator]
    return rows


def table(result: dict[str, Any]) -> str:
    """The markdown tables of a result."""
    exact = ["set", "rows × features", "numbers a row", "k", "Lloyd, s a pass", "scikit-learn",
             "passes to no change", "Lloyd, s in all", "scikit-learn"]  # fmt: skip
    curves = ["set", "k", *OURS, PEER, EXACT_PEER, "lowest", "auto sooner"]
    between = (
        "CPU seconds to within 2 % of where Lloyd's algorithm ends, and (in brackets) where each "
        f"method ends relative to that. The lowest is that of {STARTS} starts of Lloyd's:"
    )
    note = (
        "One thread, float32, the same random starting rows; the scan of the rows counts. "
        f"{result['cpu']}. Made by `python -m benchmarks.sparse --write`."
    )
    lines = [*table_of(exact, passes_rows(result["records"])), "", between, ""]
    return "\n".join([*lines, *table_of(curves, curves_rows(result["records"])), "", note])


def main() -> None:
    """Measure, save, and write the tables."""
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
    ordered = [records[case] for case in CASES if case in records]
    publish("sparse", {"cpu": cpu_description(), "records": ordered}, write=args.write)


if __name__ == "__main__":
    main()
