"""Mixtures of very many Gaussians, beside k-means libraries, other mixtures and the paper.

    python -m benchmarks.vcgmm [--only PART ...] [--seeds 3] [--write]

writes `results/vcgmm.json`, the pictures, and the tables of the documents. Parts:

* sets: A and B with 1,000 components, all rows and a coreset of 65,536, against scikit-learn's
  Lloyd and faiss, the authors' C++ where the environment variable LARGEK_VCGMM names its program
  (`vcgmm_authors.cpp` says how it is made), and their `vamm` where it can be imported.
* sklearn: an iteration of `GaussianMixture` and its memory; planted unequal variances.
* table4: the paper's Table 4 in form, on sets of LARGEK_DATA.
* sublinear: 262,144 rows of 32 features, 1,000 to 32,000 components.
* when: which method when: held-out log-likelihood and energy against CPU seconds.
* parts: what the parts of the algorithm are worth.
* coresets: beside as many uniform rows.
* price: what a mixture costs beside the k-means that it begins from.

Every fit is one of `vcgmm_runs.py`. Fits of ours share a process a set; peers have their own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import RESULTS, child_record, cpu_description, peer_environments, save
from benchmarks.curves import AUTO, NMBATCH
from benchmarks.lloyd import data_folder, prepare
from benchmarks.nmbatch import rounded
from benchmarks.tables import write_tables
from benchmarks.vcgmm_runs import AUTHORS, BY_DISTANCE, UNIFORM, planted
from benchmarks.vcgmm_tables import PICTURES, SHOWN

CORESET = 65_536
SCALES = (1_000, 4_000, 8_000, 32_000)
"""Components of the part "sublinear"."""
TABLE4 = {"d15112": 200, "pla85900": 500, "mnist": 200, "glove100k": 500, "sift200k": 500}
"""Sets of LARGEK_DATA, and components."""
CORESETS = (4, 8, 16, 32)
"""Rows a component."""
PLANTED_SEEDS = 5
LEARNT = {1_000: 20_000, 100: 60_000}
"""Rows that scikit-learn's mixtures learn from where all are too many, by components."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """Where rows lie, and how often everything is done."""

    folder: Path
    n_seeds: int = 3
    sets: tuple[str, ...] = tuple(TABLE4)
    """Those of the part "table4"."""

    def path(self, name: str) -> str:
        """Path of the rows of a set."""
        return str(prepare(name, self.folder))

    def keep(self, name: str, x: Any) -> str:
        """Path of an array that is stored under a name."""
        path = self.folder / f"{name}.npy"
        np.save(path, x)
        return str(path)


Job = tuple[str, Record]


def jobs(asked: Sequence[Job]) -> list[Record]:
    """Fits one after the other in a process."""
    environment = peer_environments("largek_dask")[""]
    told = child_record("benchmarks.vcgmm_runs", list(asked), environment)
    found: list[Record] = told["records"]
    return found


def named(asked: Mapping[str, Job]) -> dict[str, Record]:
    """The same, by name; a line of each on the screen."""
    found = dict(zip(asked, jobs(list(asked.values())), strict=True))
    for name, record in found.items():
        print(f"  {name}: {short(record)}", flush=True)
    return found


def peer(name: str, **arguments: Any) -> Record:
    """One fit in the best of the environments of its library, a process of its own each."""
    library = name if name == "faiss" else "largek_dask"
    asked = [(name, arguments)]
    environments = peer_environments(library).values()
    told = [child_record("benchmarks.vcgmm_runs", asked, e) for e in environments]
    best: Record = min(
        (found["records"][0] for found in told), key=lambda record: record["seconds"]
    )
    return best


def ours(path: str, k: int, seed: int = 0, **more: Any) -> Job:
    """A fit of ours to ask for; what is no field of `Run` goes to the job."""
    fields = ("covariance", "paper", "parameters", "init", "tol", "most", "limit")
    asked = {name: more.pop(name) for name in fields if name in more}
    return "ours", {"path": path, "asked": {"k": k, "seed": seed} | asked} | more


# --- parts ----------------------------------------------------------------------------------------


def measure_sets(bench: Bench) -> Record:
    """A and B: ours, and beside it, on another core, the units and the authors' programs."""
    paths = {name: bench.path(name) for name in "AB"}
    with ThreadPoolExecutor(2) as pool:
        others = pool.submit(lambda: {name: others_on(name, path) for name, path in paths.items()})
        found = {name: ours_on(bench, path) for name, path in paths.items()}
        return {"sets": {name: found[name] | {"others": others.result()[name]} for name in paths}}


def ours_on(bench: Bench, path: str) -> dict[str, list[Record]]:
    """Fits to all rows and to coresets; log-likelihoods of the first ones."""
    asked: dict[str, Job] = {}
    for seed in range(bench.n_seeds):
        common: Record = {"path": path, "k": 1_000, "seed": seed, "curve": seed == 0}
        common |= {"score": seed == 0, "energy": True}
        asked[f"all rows, {seed}"] = ours(**common, last_pass=seed == 0)
        asked[f"coreset, {seed}"] = ours(**common, parameters={"coreset": CORESET})
    own = named(asked)
    return {
        rows: [own[f"{rows}, {seed}"] for seed in range(bench.n_seeds)]
        for rows in ("all rows", "coreset")
    }


def others_on(name: str, path: str) -> dict[str, Record]:
    """The unit of a set, and what the paper's authors have published."""
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
    if name == "A" and importlib.util.find_spec("vamm") is not None:
        others["vamm"] = peer("vamm", seed=0, **common)
    for other, record in others.items():
        print(f"  {other}: {short(record)}", flush=True)
    return others


def short(record: Record) -> str:
    """A line for the screen."""
    keys = ("seconds", "iterations", "F", "energy", "log_likelihood", "ari")
    return ", ".join(f"{key} {record[key]:.6g}" for key in keys if key in record)


def measure_sklearn(bench: Bench) -> Record:
    """An iteration's time and memory, and planted mixtures."""
    x = np.load(bench.path("A"))
    x = x[np.random.default_rng(0).permutation(len(x))[:50_000]]
    path, k = bench.keep("A50k", x), 1_000
    start = bench.keep("A50k-start", x[:k])
    np.savez(
        bench.folder / "A50k.npz",
        means=x[:k],
        weights=np.full(k, 1 / k),
        variances=np.full((k, 64), 1.2),
    )
    common: Record = {"path": path, "score": False}
    asked: Record = {"start": start, "k": k, "covariance": "isoflex", "tol": 0.0, "most": 12}
    own, few = (
        jobs([ours(parameters=parameters, **asked, **common)])[0]
        for parameters in ({}, {"candidates": 5})
    )
    theirs = peer(
        "scikit-learn",
        k=k,
        covariance="spherical",
        start=str(bench.folder / "A50k.npz"),
        most=5,
        tol=0.0,
        **common,
    )
    plants = [
        plant(bench, kind, k, seed)
        for kind in ("isoflex", "diag")
        for k in (50, 500)
        for seed in range(bench.n_seeds if bench.n_seeds == 1 else PLANTED_SEEDS)
    ]
    compared = {"ours": own, "ours, 5 candidates": few, "scikit-learn": theirs}
    return {"an_iteration": compared, "planted": plants}


def plant(bench: Bench, kind: str, k: int, seed: int) -> Record:
    """Ours and scikit-learn's on planted rows; theirs from the means that our start has found."""
    n, name = 40_000, f"planted-{kind}-{k}-{seed}"
    rows, of = planted(n + 10_000, k, 16, kind, seed)
    about = {
        "path": bench.keep(name, rows[:n]),
        "held_out": bench.keep(f"{name}-test", rows[n:]),
        "of": bench.keep(f"{name}-of", of[n:]),
    }
    start = str(bench.folder / f"{name}-start.npz")
    print(name, flush=True)
    other: Record = {
        "k": k,
        "covariance": "spherical" if kind == "isoflex" else "diag",
        "start": start,
        "most": 100 if k == 50 else 15,
    }
    found = named(
        {
            "ours": ours(k=k, seed=seed, covariance=kind, save_start=start, **about),
            "scikit-learn": ("scikit-learn", other | about),
        }
    )
    floor = 1e-6 * float(rows[:n].var(axis=0).mean())
    return {"kind": kind, "k": k, "seed": seed, "floor": floor, **found}


def rows_of_table4(bench: Bench, name: str) -> str:
    """Path of a set; pixels are dithered, as in the paper."""
    path = bench.path(name)
    if name == "mnist":
        x = np.load(path)[:60_000]
        return bench.keep("mnist-dithered", x + np.random.default_rng(0).random(x.shape, "f4"))
    return path


def measure_table4(bench: Bench) -> Record:
    """The published methods and ours, all of them stopped by the paper's rule but ours."""
    found = {}
    for name, k in TABLE4.items():
        if name not in bench.sets or not (data_folder() / f"{name}.npz").exists():
            continue
        path, turns = rows_of_table4(bench, name), []
        n, d = np.load(path, mmap_mode="r").shape
        for seed in range(min(bench.n_seeds, 2)):
            print(name, seed, flush=True)
            turns.append(turn_of_table4(bench, path, n, k, seed))
        found[name] = {"n": n, "d": d, "k": k, "turns": turns}
    return {"sets": found}


def turn_of_table4(bench: Bench, path: str, n: int, k: int, seed: int) -> dict[str, Record]:
    """All methods once."""
    labels = str(bench.folder / "partition.npy")
    common: Record = {"path": path, "k": k, "seed": seed}
    compared = {"partition": labels, **common}
    asked: dict[str, Job] = {"k-means++, Lloyd": ("by rule", {"save_labels": labels, **common})}
    sizes = [m * k for m in CORESETS if m * k < n]
    for m in sizes:
        asked[f"LWCS {m // k}, Lloyd"] = (
            "by rule",
            {"init": "afk-mc2", "coreset": m, **compared},
        )
    for kind, more in (("5", {"candidates": 5}), ("3 + 1", {"candidates": 3, "explore": 1})):
        published: Record = {"paper": True, "tol": 0.0, **compared}
        asked[f"var-GMM-S {kind}"] = ours(parameters=more, **published)
        for m in sizes:
            parameters = more | {"coreset": m}
            asked[f"vc-GMM {m // k}, {kind}"] = ours(parameters=parameters, **published)
    asked["ours, all rows"] = ours(**compared)
    for m in sizes[-1:]:
        asked[f"ours, {m // k}"] = ours(parameters={"coreset": m}, **compared)
    return named(asked)


def measure_sublinear(bench: Bench) -> Record:
    """Ten iterations from a two-level start, and from AFK-MC² where that can be waited for."""
    from largek_dask.data.synthetic import generate

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
    """Curves of all methods on set A, a tenth of it held out."""
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
    "as it is": {},
    "start: two-level": {"init": "two-level"},
    "start: AFK-MC²": {"init": "afk-mc2"},
    "start: random rows": {"init": "random"},
    "start: no moves": {"changes": {"vcgmm.algorithm.START": {"moves": False}}},
    "no moves of components": {"parameters": {"moves": False}},
    "lists by distance": {"changes": {"vcgmm.passes.nearest_components": BY_DISTANCE}},
    "all components every tenth time": {"changes": {"vcgmm.algorithm.ROW_WORK": 1e6}},
    "as published": {"paper": True, "tol": 0.0},
}
"""What is changed in each line of the part "parts"."""


def measure_parts(bench: Bench) -> Record:
    """One part of the algorithm changed at a time, on A and on planted variances."""
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
        told = named(
            {
                f"{part}, {seed}": ours(seed=seed, **common, **changed)
                for part, changed in PARTS_OF_IT.items()
                for seed in range(1 if case == "A" else bench.n_seeds)
            }
        )
        found[case] = {
            part: [told[name] for name in told if name.rsplit(", ", 1)[0] == part]
            for part in PARTS_OF_IT
        }
    return {"cases": found}


def rows_far_out(bench: Bench) -> str:
    """Set A, and one row more at 1e6 in all features."""
    x = np.load(bench.path("A"))
    return bench.keep("far-out", np.vstack([x, np.full((1, x.shape[1]), 1e6, x.dtype)]))


def measure_coresets(bench: Bench) -> Record:
    """A coreset and as many uniform rows, where tails are heavy and where they are not."""
    paths = {"A": bench.path("A"), "B": bench.path("B"), "A and a row at 1e6": rows_far_out(bench)}
    for name in ("shuttle", "eeg"):
        if (data_folder() / f"{name}.npz").exists():
            paths[name] = bench.path(name)
    found = {}
    for name, path in paths.items():
        k, m = (100, 4_096) if name in ("shuttle", "eeg") else (1_000, CORESET)
        common: Record = {"path": path, "k": k, "parameters": {"coreset": m}}
        print(name, flush=True)
        told = named(
            {
                f"{kind}, {seed}": ours(seed=seed, changes=changes, **common)
                for kind, changes in DRAWS.items()
                for seed in range(bench.n_seeds)
            }
        )
        found[name] = {"k": k, "rows": m, "n": len(np.load(path, mmap_mode="r"))} | {
            kind: [told[f"{kind}, {seed}"] for seed in range(bench.n_seeds)] for kind in DRAWS
        }
    return {"sets": found}


DRAWS: dict[str, Record] = {"coreset": {}, "uniform": {"vcgmm.algorithm.draw_coresets": UNIFORM}}
PRICED = {"A": (100, 1_000, 10_000), "B": (1_000,), "pla85900": (1_000,)}
"""Sets of `auto.py`, and components, of the part "price"."""


def measure_price(bench: Bench) -> Record:
    """What a mixture costs beside the fit of k-means that it begins from, and beside `auto`."""
    found = []
    for name, sizes in PRICED.items():
        if name not in "AB" and not (data_folder() / f"{name}.npz").exists():
            continue
        path = bench.path(name)
        for k in sizes:
            print(name, k, flush=True)
            common: Record = {"path": path, "k": k, "score": False, "last_pass": True}
            told = named(
                {
                    "auto": ("auto", {"path": path, "k": k, "seed": 0}),
                    "iso": ours(**common),
                    "diag": ours(covariance="diag", **common),
                }
            )
            found.append({"name": name, "k": k, **told})
    return {"records": found}


PARTS: dict[str, Callable[[Bench], Record]] = {
    "sets": measure_sets,
    "sklearn": measure_sklearn,
    "table4": measure_table4,
    "sublinear": measure_sublinear,
    "when": measure_when,
    "parts": measure_parts,
    "coresets": measure_coresets,
    "price": measure_price,
}


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="save results, write the tables")
    parser.add_argument("--sets", nargs="*", default=list(TABLE4), help="of the part table4")
    parser.add_argument("--folder", type=Path, help="where rows stay for another run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for part in args.only:
            begun = os.times()
            found = rounded(
                PARTS[part](Bench(args.folder or Path(folder), args.seeds, tuple(args.sets)))
            )
            about = {"cpu": cpu_description(), "seeds": args.seeds}
            print(SHOWN[part](about | found))
            print(f"{part}: {spent_since(begun):.0f} CPU seconds", flush=True)
            if args.write:
                keep_part(part, about | found)


def spent_since(begun: os.times_result) -> float:
    """CPU seconds of this process and those that it started."""
    return sum(os.times()[:4]) - sum(begun[:4])


def keep_part(part: str, result: Record) -> None:
    """Save a part among the others, draw it, and write the tables."""
    file = RESULTS / "vcgmm.json"
    whole = json.loads(file.read_text()) if file.exists() else {}
    whole[part] = result
    save("vcgmm", whole, indent=None)
    if part in PICTURES:
        PICTURES[part](result, RESULTS)
    write_tables("vcgmm", whole)


if __name__ == "__main__":
    main()
