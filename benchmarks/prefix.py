"""Compare searches that begin in few directions with dense searches of nearest centres.

    python -m benchmarks.prefix [--only CASE ...] [--write]

Cases are named "set-features-clusters"; `--only` selects them by the beginning of their names. The
number of rows is such that a dense pass takes `WORK` multiplications, or all rows of a set. Centres
are random rows, moved by a pass of Lloyd's algorithm unless this takes too long. Both searches
alternate in one process on one thread, and their labels are compared. The results are medians of
CPU seconds, which include packing centres and finding directions. As in a fit, directions are
updated from those of the previous pass. faiss and scikit-learn run in separate processes with
their best settings (`benchmarks.kernels`).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import dask.config
import numpy as np
from numpy.typing import NDArray

import largek_dask as lk
from benchmarks.common import child_record, cpu_description, fastest_record, new_parser, parse
from benchmarks.kernels import nearest_of, seconds_of
from benchmarks.peers import EXACT, there
from benchmarks.sets import at_hand, drawn, embeddings, prepare, starting_centers, tight_groups
from benchmarks.tables import publish, table_of
from largek_dask.kernels.bounds.prefix import Prefix
from largek_dask.kernels.bounds.pruned import LEAST_WORK, expect_rows, nearest_pruned
from largek_dask.kernels.distances import nearest, pack_centers

FEATURES = (32, 64, 128, 256, 384, 768, 1_536, 3_072)
CLUSTERS = (256, 1_000, 4_096, 16_384)
STORED = {"A": 64, "C": 784, "glove100k": 50, "mnist": 784, "patches": 3_072, "sift200k": 128}
TIGHT = ("1e-2", "1e-3", "1e-4", "1e-5", "1e-6")
"""Squared distances to the centre, relative to the squared length of a row."""
CASES = (
    *(f"embeddings-{d}-{k}" for d in FEATURES for k in CLUSTERS),
    *(f"{name}-{d}-{k}" for name, d in STORED.items() for k in (500, 1_000, 4_096)),
    *(f"drawn{number}" for number in range(3)),
    *(f"noise-{d}-{k}" for d in (64, 768, 3_072) for k in (1_000, 4_096)),
    *(f"tight{share}-3072-1000" for share in TIGHT),
    "ten-768-16000",
    *(f"{name}-768-{k}" for name in ("sorted", "far") for k in (1_000, 4_096)),
)
"""Cases of ten groups of many centres, of clusters followed by noise, and of one outlier."""
WORK, ROUNDS = 2.0**35, 3


def n_timed(k: int, d: int) -> int:
    """Return the number of rows of a dense pass with `WORK` multiplications."""
    return int(WORK / (k * d)) + 1


def n_fitted(k: int, d: int) -> int:
    """Return the number of rows for centres: four per centre, or one if four take too long."""
    return max(n_timed(k, d), 4 * k if k * k * d <= WORK else k)


def data_of(case: str, folder: Path) -> tuple[NDArray[np.float32], int]:
    if case.startswith("drawn"):
        x, k = drawn(int(case[5:]))
        return x[: n_fitted(k, x.shape[1])], k
    name, d, k = (part if at == 0 else int(part) for at, part in enumerate(case.rsplit("-", 2)))
    n = n_fitted(k, d)
    if name in STORED:
        return np.load(prepare(name, folder))[:n], k
    if name.startswith("tight") or name == "ten":
        share = 1e-2 if name == "ten" else float(name[5:])
        return tight_groups(n, d, 10, k // 10, share), k
    noise = np.random.default_rng(5).standard_normal((n, d), np.float32)
    if name == "noise":
        return noise, k
    x = embeddings(n, d)
    if name == "sorted":
        x[n // 2 :] = noise[n // 2 :] * d**-0.5
    if name == "far":
        x[n // 3] = 1e4
    return x, k


def centers_of(x: NDArray[np.float32], k: int) -> NDArray[np.float32]:
    """Return random rows, moved to the means of their nearest rows if there are enough rows."""
    start: NDArray[np.float32] = starting_centers(x, k)
    if len(x) < 4 * k:
        return start
    km = lk.KMeans(k, init=start, algorithm="lloyd", max_iter=1, empty_clusters="keep")
    return np.asarray(km.fit(x).cluster_centers_, np.float32)


def record_of(case: str, folder: Path) -> dict[str, Any]:
    x, k = data_of(case, folder)
    np.save(folder / "centers.npy", centers_of(x, k))
    x = x[:: max(1, len(x) // n_timed(k, x.shape[1]))]
    np.save(folder / "x.npy", x)
    record: dict[str, Any] = {"case": case, "n": len(x), "d": x.shape[1], "k": k}
    tiles = ("avx512", "avx2") if "avx512f" in cpu_description() else ("avx2",)
    record["tiles"] = {
        tile: child_record("benchmarks.prefix", [tile, str(folder)]) for tile in tiles
    }
    record["peers"] = {
        library: fastest_record(library, "benchmarks.prefix", [library, str(folder)], float)
        for library in EXACT
        if there(library)
    }
    print(record, file=sys.stderr, flush=True)
    return record


def child(what: str, folder: str) -> Any:
    x, centers = (np.load(f"{folder}/{name}.npy") for name in ("x", "centers"))
    if what in EXACT:
        return min(map(seconds_of, nearest_of(what, x, centers)))
    with dask.config.set({"largek.kernels.tile": what}):
        return ours(x, centers)


def ours(x: NDArray[np.float32], centers: NDArray[np.float32]) -> dict[str, Any]:
    """Return seconds of the dense search, our ratio, distances per row, and directions."""
    shift = np.median(x[:: -(-len(x) // 1_000)], axis=0)

    def dense() -> tuple[Any, int]:
        return nearest(x, pack_centers(centers, shift)), len(x) * len(centers)

    def few() -> tuple[Any, int]:
        packed = pack_centers(centers, shift)
        # (a pass that is long enough to compile kernels for it)
        expect_rows(int(LEAST_WORK / centers.size) + 1, packed)
        return nearest_pruned(x, packed)

    sizes, search = [0], Prefix.search

    def watched(prefix: Prefix, *arguments: Any) -> Any:
        sizes.append(prefix.p)
        return search(prefix, *arguments)

    with patch.object(Prefix, "search", watched):
        (labels, every), (found, n_evaluated) = dense(), few()
    np.testing.assert_array_equal(labels, found)
    seconds: dict[str, list[float]] = {"dense": [], "few": []}
    for _ in range(ROUNDS):
        for name, run in (("dense", dense), ("few", few)):
            begin = time.process_time()
            run()
            seconds[name].append(time.process_time() - begin)
    return {
        "dense": float(np.median(seconds["dense"])),
        "ratio": float(np.median(np.array(seconds["few"]) / np.array(seconds["dense"]))),
        "per_row": n_evaluated / len(x),
        "directions": sizes[-1] if n_evaluated < every else 0,
    }


def table(result: dict[str, Any]) -> str:
    rows, tiles = [], list(result["records"][0]["tiles"])
    for r in result["records"]:
        first = r["tiles"][tiles[0]]
        peers = [
            f"{r['peers'][library] / first['dense']:.2f}" if library in r["peers"] else "–"
            for library in EXACT
        ]
        ratios = [f"{r['tiles'][tile]['ratio']:.2f}" for tile in tiles]
        by = "boxes" if first["per_row"] < r["k"] else "dense"
        cells = [r["case"].rsplit("-", 2)[0], f"{r['d']:,}", f"{r['k']:,}", f"{r['n']:,}"]
        cells += [f"{first['dense']:.2f}", *ratios, *peers, f"{first['per_row']:.1f}"]
        rows.append([*cells, f"{first['directions'] or by}"])
    head = ["rows", "d", "k", "n", "dense, s", *(f"few, {tile}" for tile in tiles), *EXACT,
            "distances per row", "directions"]  # fmt: skip
    missing = [library for library in EXACT if library not in result["records"][0]["peers"]]
    note = (
        "The table shows the CPU time of a pass on one thread with float32, for the dense search "
        "in seconds, and for the other searches as a multiple of the time of the dense search. "
        f"Processor: {result['cpu']}; other processes used the second core. "
        + "".join(f"{library} was not installed. " for library in missing)
        + "This table was made by `python -m benchmarks.prefix --write`."
    )
    return "\n".join([*table_of(head, rows), "", note])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--only", nargs="+", metavar="CASE", help="beginnings of names of cases")
    args = parse(parser, child)
    cases = [case for case in CASES if not args.only or case.startswith(tuple(args.only))]
    with TemporaryDirectory() as folder:
        records = [record_of(case, Path(folder)) for case in at_hand(cases)]
    result = {"cpu": cpu_description(), "records": records}
    publish("prefix", result, write=args.write)


if __name__ == "__main__":
    main()
