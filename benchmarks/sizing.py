"""Compute the memory, storage and network that a fit needs, for many sizes.

    python -m benchmarks.sizing [--plans] [--write]

The values are computed by the code of ``largek fit --plan`` for stores without rows. To check these
plans, each algorithm fits a hundredth of 80 million rows on two workers, and their peak memory is
compared with the plan. ``--plans`` keeps the measurements and computes all plans again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import (
    cpu_description,
    local_client,
    new_parser,
    parse,
    peak_bytes,
    read_result,
)
from benchmarks.tables import publish, table_of

if TYPE_CHECKING:
    from largek_dask.data.rows import Rows

ROWS = {"1M": 1_000_000, "10M": 10_000_000, "80M": 80_000_000, "300M": 300_000_000}
FEATURES, CLUSTERS, WORKERS = (32, 128, 768), (1_000, 32_000), (4, 16, 64)
ALGORITHMS = ("minibatch", "truncated", "lloyd", "nmbatch", "incremental", "vc-gmm")
OWN_START = ("truncated", "vc-gmm")
"""Algorithms with their own start; the others start from random rows without a pass."""
THREADS, LIMIT = 8, 64 << 30
"""Number of threads and memory limit of a worker, in bytes."""
CHUNK_ROWS = 65_536
"""Default of ``largek ingest``."""
CHECKED = 100
"""Factor by which the 80 million rows are reduced for measurements."""
STEPS = 6
"""Number of steps of a fit whose memory is measured."""


def algorithm_of(name: str) -> Any:
    from largek_dask.cli.options import choose_algorithm

    return choose_algorithm({"algorithm": name, "settings": ()})


def empty(folder: str, n: int, d: int) -> Rows:
    """Return a store of n rows, none of which has been written."""
    import zarr

    from largek_dask import open_rows

    url = f"{folder}/{n}x{d}.zarr"
    if not Path(url).exists():
        zarr.create_array(url, shape=(n, d), chunks=(CHUNK_ROWS, d), dtype="float32")
    return open_rows(url, count_missing=False)


def planned(
    rows: Rows, k: int, name: str, workers: int, threads: int, limit: int
) -> dict[str, Any]:
    from largek_dask.cli.plan import Machines, make_plan
    from largek_dask.driver.options import FitOptions

    begins = {} if name in OWN_START else {"init": "random"}
    options = FitOptions(n_clusters=k, algorithm=algorithm_of(name), **begins)
    return make_plan(rows, options, Machines(workers, workers * threads, limit, False))


def plans() -> list[dict[str, Any]]:
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.driver.plan import footprint_of, space_needed

    found = []
    with tempfile.TemporaryDirectory() as folder:
        for n in ROWS.values():
            for d in FEATURES:
                rows = empty(folder, n, d)
                for k in CLUSTERS:
                    for name in ALGORITHMS:
                        each = [planned(rows, k, name, w, THREADS, LIMIT) for w in WORKERS]
                        algorithm = algorithm_of(name).bind(KMeansProblem(k))
                        footprint = footprint_of(rows, algorithm)
                        written = space_needed(rows, k, footprint, n_init=1, labels=False)
                        found.append({
                            "n": n, "d": d, "k": k, "algorithm": name,
                            "row_state": each[0]["row_state"], "written": written,
                            "state": [plan["memory_row_state"] for plan in each],
                            "memory": [plan["memory"] for plan in each],
                        })  # fmt: skip
    return found


# --- how far plans can be trusted -----------------------------------------------------------------


def held(url: str, k: int, name: str) -> dict[str, float]:
    """Return planned and peak memory of a worker, without the memory of an idle process."""
    from largek_dask import KMeans, open_rows

    # A process with hardly any rows uses little more memory than an idle process.
    few, most = open_rows(url).read(0)[:1_000], []
    for clusters, steps in ((2, 1), (k, STEPS)):
        with local_client(2) as client:
            begins = {} if name in OWN_START else {"init": "random"}
            fit = KMeans(clusters, algorithm=name, max_iter=steps, random_state=0, client=client)
            fit.set_params(**begins).fit(url if clusters == k else few)
            most.append(max(client.run(peak_bytes).values()))
    plan = planned(open_rows(url), k, name, 2, 1, LIMIT)
    return {"process": most[0], "planned": plan["memory"], "held": most[1]}


def memory() -> dict[str, dict[str, float]]:
    from largek_dask import ingest

    n = ROWS["80M"] // CHECKED
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/rows.zarr"
        x = np.random.default_rng(0).normal(size=(n, FEATURES[0])).astype(np.float32)
        ingest(x, url)
        return {name: held(url, CLUSTERS[0], name) for name in ALGORITHMS}


# --- tables ---------------------------------------------------------------------------------------


def size(n: float) -> str:
    """Format a number of bytes with a unit."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if n >= factor:
            return f"{n / factor:.3g} {unit}"
    return f"{n / 1e3:.3g} kB"


def process_bytes(result: dict[str, Any]) -> float:
    """Return the memory of a worker's process without rows and centres."""
    return max(one["process"] for one in result["memory"].values())


def table(result: dict[str, Any]) -> str:
    base = process_bytes(result)
    memory = {(p["n"], p["d"], p["k"], p["algorithm"]): p["memory"] for p in result["plans"]}
    rows = []
    for label, n in ROWS.items():
        for d in FEATURES:
            for k in CLUSTERS if d == FEATURES[-1] else CLUSTERS[:1]:
                cells = [
                    " / ".join(f"{(base + m) / 1e9:.2g}" for m in memory[n, d, k, name])
                    for name in ALGORITHMS
                ]
                rows.append([f"{label} × {d}, {k:,}", size(4 * n * d), *cells])
    note = (
        f"The table shows GB of memory per worker, with {' / '.join(map(str, WORKERS))} "
        f"workers of {THREADS} threads, for float32 rows in chunks of {CHUNK_ROWS:,} rows. This "
        f"includes {size(base)} for the "
        "process without rows and centres. This table was made by `python -m benchmarks.sizing "
        "--write`."
    )
    head = ["rows × features, clusters", "data", *ALGORITHMS]
    return "\n".join([*table_of(head, rows), "", note])


def storage_table(result: dict[str, Any]) -> str:
    rows = []
    for name in ALGORITHMS:
        mine = [plan for plan in result["plans"] if plan["algorithm"] == name]
        [small] = [p for p in mine if (p["n"], p["d"], p["k"]) == (80_000_000, 32, 1_000)]
        [large] = [p for p in mine if (p["n"], p["d"], p["k"]) == (80_000_000, 768, 32_000)]
        rows.append(
            [
                name,
                f"{small['row_state'] / small['n']:.0f} B",
                size(small["row_state"]),
                " / ".join(map(size, small["state"])),
                size(small["written"]),
                size(large["written"]),
            ]
        )
    head = ["algorithm", "row state per row", "total row state",
            f"per worker, with {' / '.join(map(str, WORKERS))} workers",
            "checkpoints and model", "checkpoints and model, d = 768, k = 32,000"]  # fmt: skip
    note = (
        "The values are for 80 million rows, d = 32 features and k = 1,000 clusters, unless the "
        "column heading gives others. Row state is stored for two passes, because the row state of "
        "the previous pass is kept while a pass runs. Labels take 4 B per row, 320 MB in total. In "
        "each step, a worker receives k × d numbers of 4 B and sends k × (d + 1) numbers of 8 B, "
        "in total "
        f"{size(1_000 * (4 * 32 + 8 * 33))} with 32 features and 1,000 clusters, and "
        f"{size(32_000 * (4 * 768 + 8 * 769))} with 768 features and 32,000 clusters. A worker "
        "needs no scratch space. This table was made by `python -m benchmarks.sizing --write`."
    )
    return "\n".join([*table_of(head, rows), "", note])


def trust_table(result: dict[str, Any]) -> str:
    rows = []
    for name, found in result["memory"].items():
        expected = found["process"] + found["planned"]
        rows.append([f"memory of a worker, {name}", f"{expected / found['held']:.2f}"])
    # One column per value keeps the table short.
    head, cells = ([row[i] for row in rows] for i in (0, 1))
    note = (
        "Each fit clusters 800,000 rows of 32 features into 1,000 clusters, on two workers with "
        "one thread each. "
        f"Processor: {result['cpu']}. This table was made by `python -m benchmarks.sizing --write`."
    )
    return "\n".join([*table_of(head, [cells]), "", note])


def planned_anew() -> dict[str, Any]:
    """Return the last result with new plans and unchanged measurements."""
    result = read_result("sizing")
    with tempfile.TemporaryDirectory() as folder:
        rows = empty(folder, ROWS["80M"] // CHECKED, FEATURES[0])
        for name, one in result["memory"].items():
            one["planned"] = planned(rows, CLUSTERS[0], name, 2, 1, LIMIT)["memory"]
    return {**result, "plans": plans()}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--plans", action="store_true", help="plan without measuring")
    args = parse(parser)
    result = (
        planned_anew()
        if args.plans
        else {"cpu": cpu_description(), "memory": memory(), "plans": plans()}
    )
    publish("sizing", result, write=args.write)


if __name__ == "__main__":
    main()
