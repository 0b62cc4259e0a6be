"""Compare Gaussian mixtures of very many components with k-means and other mixtures.

    python -m benchmarks.vcgmm [--only PART ...] [--seeds 3] [--write]

Parts:

* sets: A and B with 1,000 components, all rows and a coreset of 65,536, compared with Lloyd's
  algorithm in scikit-learn and faiss, and with the authors' C++ program if the environment
  variable LARGEK_VCGMM names it (`vcgmm_authors.cpp` explains how to build it).
* when: held-out log-likelihood and energy of several methods against CPU seconds.
* sublinear: 262,144 rows of 32 features, 1,000 to 32,000 components.
* parts: the parts of the algorithm, changed one at a time.

`vcgmm_runs.py` runs the fits. Our fits share one process per set, and other programs run in
separate processes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import (
    RESULTS,
    child_record,
    cpu_description,
    fastest_record,
    new_parser,
    parse,
    read_result,
    rounded,
)
from benchmarks.curves import AUTO, NMBATCH
from benchmarks.pictures import new_figure
from benchmarks.sets import prepare
from benchmarks.tables import publish
from benchmarks.vcgmm_runs import AUTHORS, BY_DISTANCE, planted

CORESET = 65_536
SCALES = (1_000, 4_000, 8_000, 32_000)
"""Numbers of components of the part "sublinear"."""
LEARNT = {1_000: 20_000, 100: 60_000}
"""Numbers of rows for scikit-learn's mixtures if all rows would take too long."""
COLORS = ("tab:red", "tab:orange", "tab:brown", "black", "tab:blue", "tab:green", "tab:purple")

Record = dict[str, Any]
Job = tuple[str, Record]
"""Name of a job of `vcgmm_runs.py`, and its arguments."""


@dataclass(frozen=True)
class Bench:
    """Folder of the rows, and number of seeds."""

    folder: Path
    n_seeds: int = 3

    def path(self, name: str) -> str:
        """Return the path of the rows of a set."""
        return str(prepare(name, self.folder))

    def keep(self, name: str, x: Any) -> str:
        """Store an array under a name, and return its path."""
        path = self.folder / f"{name}.npy"
        np.save(path, x)
        return str(path)


def jobs(asked: Sequence[Job]) -> list[Record]:
    """Run jobs one after another in a process."""
    records: list[Record] = child_record("benchmarks.vcgmm_runs", list(asked))
    return records


def named(asked: Mapping[str, Job]) -> dict[str, Record]:
    """Run named jobs, and print a line for each."""
    found = dict(zip(asked, jobs(list(asked.values())), strict=True))
    for name, record in found.items():
        print(f"  {name}: {short(record)}", flush=True)
    return found


def peer(name: str, **arguments: Any) -> Record:
    """Run a fit in the fastest environment of its library, in separate processes."""
    records: list[Record] = fastest_record(
        name, "benchmarks.vcgmm_runs", [(name, arguments)], lambda records: records[0]["seconds"]
    )
    return records[0]


def ours(path: str, k: int, seed: int = 0, **more: Any) -> Job:
    """Describe a fit of ours; arguments that are not fields of `Run` go to the job."""
    fields = ("covariance", "parameters", "init", "tol", "most", "limit")
    asked = {name: more.pop(name) for name in fields if name in more}
    return "ours", {"path": path, "asked": {"k": k, "seed": seed} | asked} | more


# --- parts ----------------------------------------------------------------------------------------


def measure_sets(bench: Bench) -> Record:
    """Measure A and B: our fits and, on another core, k-means and the authors' program."""
    paths = {name: bench.path(name) for name in "AB"}
    with ThreadPoolExecutor(2) as pool:
        others = pool.submit(lambda: {name: others_on(name, path) for name, path in paths.items()})
        found = {name: ours_on(bench, path) for name, path in paths.items()}
        return {"sets": {name: found[name] | {"others": others.result()[name]} for name in paths}}


def ours_on(bench: Bench, path: str) -> dict[str, list[Record]]:
    """Fit all rows and coresets; compute log-likelihoods of the first fits."""
    asked: dict[str, Job] = {}
    for seed in range(bench.n_seeds):
        common: Record = {"path": path, "k": 1_000, "seed": seed}
        common |= {"score": seed == 0, "energy": True}
        asked[f"all rows, {seed}"] = ours(**common, last_pass=seed == 0)
        asked[f"coreset, {seed}"] = ours(**common, parameters={"coreset": CORESET})
    own = named(asked)
    return {
        rows: [own[f"{rows}, {seed}"] for seed in range(bench.n_seeds)]
        for rows in ("all rows", "coreset")
    }


def others_on(name: str, path: str) -> dict[str, Record]:
    """Run k-means on a set, and the authors' program."""
    common: Record = {"path": path, "k": 1_000}
    if name == "A":
        others = {"unit": peer("lloyd", **common)}
    else:
        others = {"unit": peer("faiss", passes=40, **common)}
    if AUTHORS in os.environ:
        for rows, size in (("all rows", 0), ("coreset", CORESET)):
            near = 15 if name == "A" and not size else 5
            asked: Record = {"candidates": 5, "near": near, "seed": 0, "coreset": size}
            others[f"authors, {rows}"] = peer("authors", **asked, **common)
    for other, record in others.items():
        print(f"  {other}: {short(record)}", flush=True)
    return others


def short(record: Record) -> str:
    keys = ("seconds", "iterations", "F", "energy", "log_likelihood", "ari")
    return ", ".join(f"{key} {record[key]:.6g}" for key in keys if key in record)


def measure_sublinear(bench: Bench) -> Record:
    """Run ten iterations from a two-level start, and from AFK-MC² if it is fast enough."""
    from benchmarks.synthetic import generate

    x = generate("mixture", 262_144, 32, n_components=10_000, seed=5)
    path, records = bench.keep("sublinear", x), []
    for k in SCALES:
        print(k, flush=True)
        common: Record = {"path": path, "k": k, "most": 10, "tol": 0.0, "score": False}
        asked = {
            f"two-level, {seed}": ours(init="two-level", seed=seed, **common)
            for seed in range(bench.n_seeds)
        }
        asked |= {"k-means": ours(**common), "afk-mc2": ours(init="afk-mc2", **common)}
        found = named(asked)
        two = [found.pop(f"two-level, {seed}") for seed in range(bench.n_seeds)]
        records.append({"k": k, "two-level": two, **found})
    return {"n": len(x), "d": x.shape[1], "records": records}


def measure_when(bench: Bench) -> Record:
    """Compute curves of all methods on set A, with a tenth of the rows held out."""
    x = np.load(bench.path("A"))
    x = x[np.random.default_rng(1).permutation(len(x))]
    path, held_out = bench.keep("learnt", x[20_000:]), bench.keep("held-out", x[:20_000])
    found = {}
    for k in (100, 1_000):
        common: Record = {"path": path, "held_out": held_out, "k": k}
        asked: dict[str, Job] = {
            f"Mixture({kind})": ours(covariance=kind, curve=True, **common)
            for kind in ("iso", "isoflex", "diag")
        }
        for label, method in (("KMeans(auto)", AUTO), ("nmbatch", NMBATCH)):
            asked[label] = ("means", {"method": method, "seed": 0, "limit": 6.0, **common})
        for label, bayesian in (("GaussianMixture", False), ("BayesianGaussianMixture", True)):
            theirs: Record = {
                "covariance": "diag",
                "most": 8 if k == 1_000 else 15,
                "bayesian": bayesian,
                "rows": LEARNT[k],
                "curve": True,
            }
            asked[f"scikit-learn {label}(diag)"] = ("scikit-learn", theirs | common)
        print(k, flush=True)
        found[str(k)] = named(asked)
    return {"n": 180_000, "d": 64, "learnt": {str(k): m for k, m in LEARNT.items()}, "runs": found}


PARTS_OF_IT: dict[str, Record] = {
    "default": {},
    "start: two-level": {"init": "two-level"},
    "start: AFK-MC²": {"init": "afk-mc2"},
    "start: random rows": {"init": "random"},
    "start: no moves": {"changes": {"vcgmm.algorithm.START": {"moves": False}}},
    "no moves of components": {"parameters": {"moves": False}},
    "lists ordered by distance": {"changes": {"vcgmm.passes.nearest_components": BY_DISTANCE}},
    "all components in every tenth iteration": {"changes": {"vcgmm.algorithm.ROW_WORK": 1e6}},
}


def measure_parts(bench: Bench) -> Record:
    """Change one part of the algorithm at a time, on A and on planted rows."""
    cases: dict[str, Record] = {"A": {"path": bench.path("A"), "k": 1_000}}
    for kind in ("isoflex", "diag"):
        rows, of = planted(50_000, 500, 16, kind, 3)
        cases[kind] = {
            "path": bench.keep(f"parts-{kind}", rows[:40_000]),
            "held_out": bench.keep(f"parts-{kind}-test", rows[40_000:]),
            "of": bench.keep(f"parts-{kind}-of", of[40_000:]),
            "k": 500,
            "covariance": kind,
        }
    found: dict[str, dict[str, list[Record]]] = {}
    for case, common in cases.items():
        print(case, flush=True)
        fits = named(
            {
                f"{part}, {seed}": ours(seed=seed, **common, **changed)
                for part, changed in PARTS_OF_IT.items()
                for seed in range(1 if case == "A" else bench.n_seeds)
            }
        )
        found[case] = {
            part: [fits[name] for name in fits if name.rsplit(", ", 1)[0] == part]
            for part in PARTS_OF_IT
        }
    return {"cases": found}


PARTS: dict[str, Callable[[Bench], Record]] = {
    "sets": measure_sets,
    "when": measure_when,
    "sublinear": measure_sublinear,
    "parts": measure_parts,
}


def draw_when(runs: dict[str, Record], path: Path) -> None:
    """Draw held-out log-likelihood and energy against CPU seconds for 1,000 components."""
    figure, (left, right) = new_figure(2, 12, 4.6)
    top = max(max(record["curve"]["log_likelihood"]) for record in runs.values())
    lowest = min(min(record["curve"]["energy"]) for record in runs.values())
    for color, (label, record) in zip(COLORS, runs.items(), strict=False):
        curve = record["curve"]
        style = "--" if label.startswith("scikit") else "-"
        about = {"color": color, "ls": style, "marker": ".", "lw": 1.4, "label": label}
        left.plot(curve["seconds"], curve["log_likelihood"], **about)
        right.plot(curve["seconds"], curve["energy"], **about)
    left.set(ylim=(top - 12, top + 1), ylabel="log-likelihood a held-out row")
    right.set(ylim=(0.995 * lowest, 1.2 * lowest), ylabel="energy of held-out rows")
    for axes in (left, right):
        axes.set(xscale="log", xlabel="CPU seconds, one thread")
        axes.set_title("A, k = 1,000", fontsize=10)
        axes.grid(True, which="both", alpha=0.2)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=3)
    args = parse(parser)
    whole = read_result("vcgmm")
    with tempfile.TemporaryDirectory() as folder:
        for part in args.only:
            found = rounded(PARTS[part](Bench(Path(folder), args.seeds)))
            whole[part] = {"cpu": cpu_description(), "seeds": args.seeds} | found
            if args.write and part == "when":
                draw_when(found["runs"]["1000"], RESULTS / "vcgmm-when-1000.png")
            publish("vcgmm", whole, write=args.write)


if __name__ == "__main__":
    main()
