"""Compare the claims of the papers with measurements of their published forms.

    python -m benchmarks.papers [--only PART ...] [--seeds 3] [--write]

The parts are ``nmbatch``, ``vrkm``, ``vcgmm`` and ``dcd``. Each set and seed is measured in a
separate process and saved at once. ``--write`` skips what has been measured, so an interrupted run
can be repeated. Times do not include the computation of energies. `papers_tables.py` makes the
tables.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import largek_dask as lk
from benchmarks.common import child_record, cpu_description, new_parser, parse, read_result, rounded
from benchmarks.curves import METHODS, SNAPSHOTS, Energies, Task, Trace, chosen, follow, warm_up
from benchmarks.papers_tables import BATCH, CASES, CHAIN, DRAWS, LIMITS, PASSES, RATES, RHOS
from benchmarks.sets import at_hand, data_folder, prepare
from benchmarks.tables import publish
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.path_problem import PathProblem
from largek_dask.algorithms.starts.afk_mc2 import afk_mc2_start
from largek_dask.algorithms.starts.coresets import draw_coreset
from largek_dask.algorithms.starts.rows_in_place import rows_of_coreset
from largek_dask.data.sources import open_rows
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.passes.local import LocalPasses

Record = dict[str, Any]
Rows = NDArray[Any]

ROWS = {"mnist": 40_000, "A": 100_000, "sift200k": 100_000}
"""Number of rows of each set; methods that process rows one by one use a fifth of them."""
PLAIN: Any = {"lloyd": lk.Lloyd(), "mbatch": lk.MiniBatch(BATCH)}
NESTED: dict[str, Any] = PLAIN | {
    f"rho {rho:g}, {bounds}": lk.NMBatch.paper(BATCH, rho, bounds)
    for rho in RHOS
    for bounds in ("lower", None)
}
REDUCED: dict[str, Any] = (
    PLAIN
    | {
        "SGD-KM": lk.MiniBatch(1),
        "growbatch-rho": lk.NMBatch.paper(BATCH),
        "VRKM": lk.VRKM.paper(plus_plus=False),
        "VRKM++": lk.VRKM.paper(),
    }
    | {f"epoch {size}": lk.VRKM.paper(epoch=size) for size in (0.25, 0.5, 2.0, "2^s")}
)


def figures(trace: Trace, step: int, n: int, k: int) -> dict[str, float]:
    """Return seconds, passes and distances of the first steps of a run."""
    shares = [about.get("share", about["rows"] / n) for about in trace.said[: step + 1]]
    own = {"seconds": trace.clock[step], "passes": trace.passes[step]}
    return own | {"distances": n * k * sum(shares)}


def compared(
    x: Rows, k: int, seed: int, methods: Mapping[str, Any], limit: float, level: Callable[..., Any]
) -> Record:
    """Run methods from the same random rows, to levels computed from their energies."""
    centers = x[np.sort(np.random.default_rng([7, seed]).choice(len(x), k, replace=False))]
    METHODS.update(methods)
    traces: dict[str, Trace] = {}
    for name in methods:
        warm_up(name, x, k)
        traces[name] = follow(Task(name, "", k, seed, limit), x, centers)
    energies = {name: Energies(x, trace.met) for name, trace in traces.items()}
    for name, trace in traces.items():
        for i in chosen(len(trace.met), SNAPSHOTS):
            energies[name][i]
    levels, found = level(energies), {}
    for name, trace in traces.items():
        own = energies[name]
        to = {
            at: figures(trace, step, len(x), k)
            for at, value in levels.items()
            if (step := own.first_within(value)) is not None
        }
        found[name] = {"lowest": min(own.known.values()), "to": to}
    return {"levels": levels, "runs": found}


def run_nmbatch(x: Rows, k: int, seed: int) -> Record:
    """Measure seconds to 2 and 1 % above the lowest energy (figures 2 and 3)."""

    def level(energies: Mapping[str, Energies]) -> dict[str, float]:
        lowest = min(min(own.known.values()) for own in energies.values())
        return {"2": 1.02 * lowest, "1": 1.01 * lowest}

    return compared(x, k, seed, NESTED, LIMITS["nmbatch"], level)


def run_vrkm(x: Rows, k: int, seed: int) -> Record:
    """Measure seconds to the energy of batch k-means (table 3, figures 3 and 5 to 7)."""
    methods = REDUCED | {f"eta {by}": lk.VRKM.paper(eta=by * k / len(x)) for by in RATES}

    def level(energies: Mapping[str, Energies]) -> dict[str, float]:
        return {"batch": energies["lloyd"][min(PASSES, len(energies["lloyd"].met)) - 1]}

    found = compared(x, k, seed, methods, LIMITS["vrkm"], level)
    return found | {"uncorrected": uncorrected(x, k, seed)}


def uncorrected(x: Rows, k: int, seed: int, epochs: int = 3) -> list[float]:
    """Return energies of SVRG without position correction (figure 3)."""
    draw = np.random.default_rng([7, seed])
    c = x[np.sort(draw.choice(len(x), k, replace=False))].astype(np.float64)
    shift = x.mean(axis=0, dtype=np.float64).astype(x.dtype)
    eta, met = k / len(x), [c.astype(x.dtype)]
    for _ in range(epochs):
        labels, snapshot = nearest(x, pack_centers(met[-1], shift)), c.copy()
        sums, v = np.zeros(c.shape), np.bincount(labels, minlength=k)[:, None]
        np.add.at(sums, labels, x)
        gradient = np.where(v > 0, c - sums / np.maximum(v, 1), 0.0)
        for i in draw.integers(len(x), size=len(x)):
            a, b = labels[i], ((c - x[i]) ** 2).sum(axis=1).argmin()
            c[b] -= eta * (c[b] - x[i])
            c[a] += eta * (snapshot[a] - x[i])
            c -= eta * gradient
        met.append(c.astype(x.dtype))
    energies = Energies(x, met)
    return [energies[i] for i in range(len(met))]


def run_vcgmm(x: Rows, k: int, seed: int) -> Record:
    """Run LWCS and vc-GMM on the same coreset with the same seeds (figure 1, tables 2 and 4)."""
    forms: dict[str, Any] = {
        "LWCS": None,
        "vc-GMM": lk.VCGMM.paper(coreset=DRAWS, chain=CHAIN),
        "vc-GMM, 3 + 1": lk.VCGMM.paper(coreset=DRAWS, chain=CHAIN, candidates=3, explore=1),
    }
    if k == 1_000 and seed == 0:
        forms["var-GMM-S"] = lk.VCGMM.paper(coreset=None, chain=CHAIN)
    return {"runs": {name: coreset_fit(x, k, seed, form) for name, form in forms.items()}}


def coreset_fit(x: Rows, k: int, seed: int, algorithm: Any) -> Record:
    """Run one fit until F changes by 1e-4; without an algorithm, k-means (LWCS)."""
    rng, begun, bounds, counted = Rng(seed), time.process_time(), [-np.inf], 0.0
    with LocalPasses(open_rows(x), n_threads=1) as passes:
        rows: Any = passes
        if algorithm is None:
            rows = rows_of_coreset(passes, draw_coreset(passes, rng, DRAWS, independent=True))
            centers, n_seeding = afk_mc2_start(rows, rng, k, CHAIN)
            counted += passes.n_rows + n_seeding
            algorithm = lk.Lloyd().bind(KMeansProblem(k, centers))
        else:
            algorithm = algorithm.bind(KMeansProblem(k))
        state = algorithm.init(rows, rng)
        start = time.process_time() - begun
        while len(bounds) < 3 or abs(bounds[-1] - bounds[-2]) >= 1e-4 * abs(bounds[-1]):
            state, info = algorithm.step(rows, rng, state)
            told, weight, d = info.extra, rows.statistics.total_weight, x.shape[1]
            hard = -np.log(k) - d / 2 * np.log(2 * np.pi * np.e * info.cost / (d * weight))
            bounds.append(told.get("lower_bound", hard))
            counted += told.get("evaluations", rows.n_rows * k) + told.get("evaluations_start", 0)
        seconds = time.process_time() - begun
        centers = np.array(algorithm.model(state).centers, np.float32)
    return {
        "seconds": seconds,
        "start": start,
        "iterations": len(bounds) - 1,
        "F": float(bounds[-1]),
        "distances": float(counted),
        "energy": Energies(x, [centers])[0],
    }


def run_dcd(x: Rows, k: int, seed: int) -> Record:
    """Compute all partitions up to k, with and without bundle (tables 3, 4, 6 and 7)."""
    for descent in ("plain", "bundle"):
        path_of(x[:: len(x) // 500], 5, descent)  # compiles
    return {"runs": {descent: path_of(x, k, descent) for descent in ("plain", "bundle")}}


def path_of(x: Rows, k: int, descent: str) -> list[Record]:
    """Return statistics of each partition that is reached within the time limit."""
    form: Any = lk.DCDBundle.paper()
    algorithm: Any = replace(form, descent=descent).bind(PathProblem(k))
    steps: list[Record] = []
    values = 0.0
    rng, seconds, begun = Rng(0), 0.0, time.process_time()
    with LocalPasses(open_rows(x), n_threads=1) as passes:
        state = algorithm.init(passes, rng)
        while len(steps) < k - 1 and seconds < LIMITS["dcd"]:
            state, info = algorithm.step(passes, rng, state)
            seconds = time.process_time() - begun
            values += info.extra.get("evaluations", 0.0)
            steps.append({"seconds": seconds, "inertia": info.cost, "values": values})
    return steps


RUNS = {"nmbatch": run_nmbatch, "vrkm": run_vrkm, "vcgmm": run_vcgmm, "dcd": run_dcd}


def child(part: str, case: str, path: str, seed: int) -> Record:
    warnings.simplefilter("ignore")
    name, k = case.split("-")
    x = np.load(path)
    x = x["X"] if part == "dcd" else x[: ROWS[name] // (5 if part == "vrkm" else 1)]
    if part == "vcgmm":
        run_vcgmm(x[:2_000], 50, 1)
    found = RUNS[part](x, int(k), seed)
    return {"n": len(x), "d": x.shape[1]} | found


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--only", nargs="*", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--seeds", type=int, default=3)
    args = parse(parser, child)
    asked = [
        (part, case, seed)
        for seed in range(args.seeds)
        for part in args.only
        for case in at_hand(CASES[part])
        if part != "dcd" or seed == 0
    ]
    with tempfile.TemporaryDirectory() as folder:
        for part, case, seed in asked:
            key = f"{part} {case} {seed}"
            if args.write and key in read_result("papers").get("records", {}):
                continue
            name = case.split("-")[0]
            stored = data_folder() / f"{name}.npz" if part == "dcd" else prepare(name, Path(folder))
            record = rounded(child_record("benchmarks.papers", [part, case, str(stored), seed]), 6)
            records = read_result("papers").get("records", {}) | {key: record}
            publish("papers", {"cpu": cpu_description(), "records": records}, write=args.write)


if __name__ == "__main__":
    main()
