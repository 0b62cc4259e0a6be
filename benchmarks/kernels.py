"""Compare nearest-centre kernels with the peak of the machine, faiss and scikit-learn.

    python -m benchmarks.kernels [--write]

Every library runs the same sizes on the same float32 arrays, on one thread in separate processes,
with its best settings. Rounds are interleaved, so that changes of the clock rate affect all
libraries equally, and medians of the rounds are reported. Rates are 2 n d k floating-point
operations divided by CPU seconds. The peak is measured next to every point. Our kernels and faiss
return labels and distances, and scikit-learn only labels. Centres are packed or indexed before the
measurement.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import child_record, cpu_description, new_parser, parse, peer_environments
from benchmarks.tables import publish, table_of

FEATURES = (2, 8, 18, 64, 128, 784, 3072)
CLUSTERS = (50, 1000, 8000)
SUMS = ((200_000, 64, 1000), (400_000, 18, 1000), (60_000, 784, 500), (60_000, 128, 4000))
LIBRARIES = ("largek_dask", "faiss", "scikit-learn")
FLOPS = 3e9
REPEATS = 3
ROUNDS = 3


def data(n: int, d: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    r = np.random.default_rng(d * 10_007 + k)
    centers = r.normal(size=(k, d)).astype(np.float32)
    x = centers[r.integers(k, size=n)] + r.standard_normal((n, d), np.float32)
    return x, centers


def rows_for(d: int, k: int) -> int:
    """Return the number of rows that give about FLOPS operations."""
    return int(np.clip(FLOPS / (2 * d * k), 4000, min(500_000, 6e7 / d)))


def nearest_of(library: str, x: np.ndarray, centers: np.ndarray) -> list[Callable[[], Any]]:
    """Return functions of a library that find nearest centres; the fastest one counts."""
    if library == "largek_dask":
        from largek_dask.kernels.distances import nearest, pack_centers

        packed = pack_centers(centers, x.mean(axis=0))
        labels = np.empty(len(x), np.int32)
        return [lambda: nearest(x, packed, labels)]
    if library == "faiss":
        import faiss

        faiss.omp_set_num_threads(1)
        index = faiss.IndexFlatL2(x.shape[1])
        index.add(centers)
        return [lambda: index.search(x, 1)]
    from sklearn.cluster import KMeans
    from sklearn.metrics import pairwise_distances_argmin_min

    km = KMeans(len(centers), init=centers, n_init=1, max_iter=1).fit(centers)
    km.cluster_centers_, km._n_threads = centers, 1
    return [lambda: km.predict(x), lambda: pairwise_distances_argmin_min(x, centers)]


def seconds_of(run: Callable[[], Any]) -> float:
    run()
    times = []
    for _ in range(REPEATS):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return float(np.median(times))


def grid(library: str) -> list[dict[str, Any]]:
    """Return one record per point: the rate and, for our kernels, the peak."""
    records = []
    for d in FEATURES:
        for k in CLUSTERS:
            n = rows_for(d, k)
            x, centers = data(n, d, k)
            record: dict[str, Any] = {"d": d, "k": k, "n": n}
            if library == "largek_dask":
                from benchmarks.peak import fma_peak

                before = fma_peak()
                seconds = seconds_of(nearest_of(library, x, centers)[0])
                record["peak"] = (before + fma_peak()) / 2
            else:
                seconds = min(map(seconds_of, nearest_of(library, x, centers)))
            records.append(record | {"rate": 2 * n * d * k / seconds / 1e9})
    return records


def sums() -> list[dict[str, Any]]:
    """Measure exact sums of all rows as a fraction of a dense pass."""
    from largek_dask.kernels.distances import nearest, pack_centers
    from largek_dask.kernels.exact.statistics import RowScan
    from largek_dask.kernels.exact.sums import ClusterSums

    records = []
    for n, d, k in SUMS:
        x, centers = data(n, d, k)
        scan = RowScan(d, x.dtype)
        scan.add(x)
        statistics = scan.finish()
        packed = pack_centers(centers, statistics.shift)
        labels = nearest(x, packed)
        total = ClusterSums(k, d, statistics.grid)
        dense = seconds_of(lambda x=x, packed=packed: nearest(x, packed))
        exact = seconds_of(lambda t=total, x=x, labels=labels: t.add(x, labels))
        records.append({"n": n, "d": d, "k": k, "share": exact / dense})
    return records


def child(what: str) -> list[dict[str, Any]]:
    return sums() if what == "sums" else grid(what)


def measure() -> dict[str, Any]:
    rounds: dict[str, list[list[dict[str, Any]]]] = {}
    shares = []
    for turn in range(ROUNDS):
        for library in LIBRARIES:
            for label, environment in peer_environments(library).items():
                print(f"round {turn + 1} of {ROUNDS}: {library} {label}", file=sys.stderr)
                rounds.setdefault(f"{library} {label}".strip(), []).append(
                    child_record("benchmarks.kernels", [library], environment)
                )
        shares.append(child_record("benchmarks.kernels", ["sums"]))
    points = []
    for i, first in enumerate(rounds["largek_dask"][0]):
        rates = {
            key: float(np.median([run[i]["rate"] for run in runs])) for key, runs in rounds.items()
        }
        ours = rounds["largek_dask"]
        fraction = float(np.median([run[i]["rate"] / run[i]["peak"] for run in ours]))
        best = {
            library: max(rate for key, rate in rates.items() if key.split()[0] == library)
            for library in LIBRARIES
        }
        peak = float(np.median([run[i]["peak"] for run in ours]))
        point = {"d": first["d"], "k": first["k"], "n": first["n"], "peak": peak}
        points.append(point | {"fraction": fraction, "rates": best})
    exact = [
        first | {"share": float(np.median([run[i]["share"] for run in shares]))}
        for i, first in enumerate(shares[0])
    ]
    return {"cpu": cpu_description(), "points": points, "sums": exact}


def table(result: dict[str, Any]) -> str:
    points = {(point["d"], point["k"]): point for point in result["points"]}
    rows = []
    for d in FEATURES:
        cells = [f"{d:,}"]
        for point in (points[d, k] for k in CLUSTERS):
            ours, faiss, sklearn = (point["rates"][library] for library in LIBRARIES)
            ratio = ours / max(faiss, sklearn)
            cells.append(f"{point['fraction']:.2f}, {ours:.1f} GF/s, {ratio:.2f}x")
        rows.append(cells)
    peak = float(np.median([point["peak"] for point in result["points"]]))
    exact = ", ".join(
        f"{100 * r['share']:.1f} % ({r['n']:,} × {r['d']}, k = {r['k']})" for r in result["sums"]
    )
    note = (
        f"Each cell shows the fraction of the processor's measured peak ({peak:.0f} GF/s), the "
        "rate in GF/s (10⁹ floating-point operations per second), and the speedup over the faster "
        "of faiss and scikit-learn. Kernels run on one thread with float32; times include packing "
        "of rows. The exact sums of all rows take the following shares of the time of a dense "
        f"pass: {exact}. Processor: {result['cpu']}. This table was made by "
        "`python -m benchmarks.kernels --write`."
    )
    return "\n".join([*table_of(["d", *(f"k = {k:,}" for k in CLUSTERS)], rows), "", note])


def main() -> None:
    args = parse(new_parser(__doc__), child)
    publish("kernels", measure(), write=args.write)


if __name__ == "__main__":
    main()
