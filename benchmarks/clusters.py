"""Where time and memory go with very many clusters: what grows faster than they do.

    python -m benchmarks.clusters [--only steps large] [--minutes 8] [--write]

writes `results/clusters.json` and the table of `RESULTS.md`. `Truncated()` on 400,000 × 32 rows of
overlapping Gaussians, half as many again as there are clusters, in memory, on one thread: a number
of steps that is the same for all, then the last pass. CPU seconds by what is done, without those in
which kernels are compiled; bytes beside what the process has before; and what models since the
last anchor take, which the driver keeps and writes with every checkpoint.

``large`` is a search of 4,000,000 × 32 rows for 100,000 clusters on all threads, for some minutes:
seconds until the energy of 100,000 other rows of the kind is near its end.
"""

from __future__ import annotations

import argparse
import json
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.common import RESULTS, child_record, cpu_description, save
from benchmarks.tables import write_tables

ROWS, FEATURES, STEPS = 400_000, 32, 40
CLUSTERS = (12_500, 25_000, 50_000, 100_000)
LARGE = (4_000_000, 100_000)
OTHERS = 100_000
"""Rows that are not searched, over which energies are told."""
NEAR = (1.05, 1.02, 1.01)
PARTS = {
    "start": "start", "passes": "passes", "neighbours": "tables of neighbours",
    "moves": "moves", "last": "last pass",
}  # fmt: skip


class Spent:
    """CPU seconds of functions while they run, less those of compiling."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.kept = 0
        """Bytes of the models since the last anchor, at most."""
        self.passes_kept = 0

    def counted(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which is watched."""
        from largek_dask.kernels.compiling import compiled

        def watched(*args: Any, **options: Any) -> Any:
            begun, before = time.process_time(), compiled()
            try:
                return function(*args, **options)
            finally:
                spent = time.process_time() - begun - compiled().since(before).seconds
                self.seconds[part] += max(0.0, spent)

        return watched

    def watch(self) -> None:
        """Watch what a fit does from now on."""
        from largek_dask.algorithms.truncated import algorithm, lists
        from largek_dask.driver import starts

        one_pass = self.counted("passes", algorithm.pass_over)

        def pass_over(passes: Any, history: Any, *args: Any, **options: Any) -> Any:
            if len(history) > self.passes_kept:
                self.passes_kept, self.kept = len(history), bytes_of(history)
            return one_pass(passes, history, *args, **options)

        for place, name, watched in (
            (algorithm, "pass_over", pass_over),
            (algorithm, "ask_sample", self.counted("moves", algorithm.ask_sample)),
            (algorithm.Truncated, "init", self.counted("start", algorithm.Truncated.init)),
            (lists.Neighbours, "table", self.counted("neighbours", lists.Neighbours.table)),
            (starts, "label_rows", self.counted("last", starts.label_rows)),
        ):
            setattr(place, name, watched)


def bytes_of(kept: Any) -> int:
    """Bytes of the arrays of an object, each once; nothing is copied."""
    sizes: list[int] = []
    pickle.dumps(kept, protocol=5, buffer_callback=lambda part: sizes.append(part.raw().nbytes))
    return sum(sizes)


def most_memory() -> int:
    """Bytes that this process has held at most."""
    told = Path("/proc/self/status").read_text()
    return 1024 * int(told.partition("VmHWM:")[2].split()[0])


def drawn(n: int, k: int) -> NDArray[np.float32]:
    """The rows; they are never there twice, which would be taken for memory of a fit."""
    from largek_dask.data.synthetic import SyntheticRows

    rows = SyntheticRows("mixture", n, FEATURES, n_components=k + k // 2, seed=11)
    x, at = np.empty((n, FEATURES), np.float32), 0
    for i in range(rows.n_chunks):
        part = rows.read(i)
        x[at : at + len(part)] = part
        at += len(part)
    return x


def child(n: int, k: int, steps: int) -> dict[str, Any]:
    """A fit of n rows with k clusters."""
    import largek_dask as lk
    from largek_dask.driver.fit import fit
    from largek_dask.driver.options import FitOptions
    from largek_dask.kernels.compiling import compiled

    x = drawn(n, k)
    options = {"algorithm": lk.Truncated(), "seed": 0, "tol": 0.0}
    # What most fits need is compiled and loaded.
    few = lk.open_rows(x[: n // 20])
    fit(few, FitOptions(n_clusters=max(3, k // 100), max_iter=steps, **options), n_threads=1)
    spent, before, begun = Spent(), psutil.Process().memory_info().rss, time.process_time()
    spent.watch()
    made = compiled()
    found = fit(lk.open_rows(x), FitOptions(n_clusters=k, max_iter=steps, **options), n_threads=1)
    return {
        "k": k, "seconds": spent.seconds, "all": time.process_time() - begun,
        "compiling": compiled().since(made).seconds,
        "steps": found.n_iter, "memory": most_memory() - before,
        "kept": spent.kept, "passes_kept": spent.passes_kept, "energy": found.value / n,
    }  # fmt: skip


def large_child(n: int, k: int, seconds: float) -> dict[str, Any]:
    """A search of n rows for k clusters, and where it has come to when."""
    import largek_dask as lk
    from benchmarks.auto_scale import search
    from largek_dask.passes.local import available_cpus

    x, others = np.split(drawn(n + OTHERS, k), [n])
    search(lk.open_rows(x[: n // 20]), others[:1000], max(3, k // 100), 5.0)
    before = psutil.Process().memory_info().rss
    found = search(lk.open_rows(x), others, k, seconds)
    about = {"k": k, "rows": n, "threads": available_cpus(), "cpu": cpu_description()}
    return about | {"memory": most_memory() - before, "run": found}


def large_lines(found: dict[str, Any]) -> list[str]:
    """Lines on the search for very many clusters."""
    run, k = found["run"], found["k"]
    end = run["energies"][-1]
    heads = [f"to +{100 * (near - 1):.2g} % of its end" for near in NEAR]
    lines = [f"| k | {' | '.join(heads)} | end | memory beyond the rows |", "|---" * 6 + "|"]
    cells = []
    for near in NEAR:
        hit = next(i for i, energy in enumerate(run["energies"]) if energy <= near * end)
        cells.append(f"{run['seconds'][hit]:.0f} s; CPU {run['cpu'][hit]:.0f} s")
    last = f"{end:.5g} after {run['seconds'][-1]:.0f} s; CPU {run['cpu'][-1]:.0f} s"
    return [
        *lines,
        f"| {k:,} | {' | '.join(cells)} | {last} | {found['memory'] / 1e6:,.0f} MB |",
        "",
        f"{found['rows']:,} × {FEATURES}, {found['threads']} threads, "
        f"{'to its end' if run['ended'] else 'cut by its limit'}; energies of {OTHERS:,} other "
        f"rows. {found['cpu']}. Made by `{found['command']}`.",
    ]


def table(result: dict[str, Any]) -> str:
    """The markdown tables of a result."""
    large = large_lines(result["large"]) if "large" in result else []
    return "\n".join([steps_table(result), *([""] if large else []), *large])


def steps_table(result: dict[str, Any]) -> str:
    """What the same number of steps takes with ever more clusters."""
    heads = ["k", *PARTS.values(), "all else", "memory", "of it models since an anchor"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for record in result["records"]:
        seconds = [f"{record['seconds'][part]:.1f} s" for part in PARTS]
        rest = record["all"] - sum(record["seconds"].values()) - record["compiling"]
        seconds.append(f"{rest:.1f} s")
        kept = f"{record['kept'] / 1e6:,.0f} MB, of {record['passes_kept']} passes"
        cells = [f"{record['k']:,}", *seconds, f"{record['memory'] / 1e6:,.0f} MB", kept]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(
        [
            *lines,
            "",
            f"{result['rows']:,} × {FEATURES}, {result['steps']} steps of `Truncated()` and the "
            f"last pass; CPU time of one thread. {result['cpu']}. Made by "
            "`python -m benchmarks.clusters --write`.",
        ]
    )


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="save results, write the table")
    parser.add_argument("--only", nargs="*", default=["steps", "large"], help="of the two")
    parser.add_argument("--minutes", type=float, default=8.0, help="of the search among all rows")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        kind, *given = json.loads(args.child)
        print(json.dumps({"steps": child, "large": large_child}[kind](*given)))
        return
    file = RESULTS / "clusters.json"
    result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if "steps" in args.only:
        records = []
        for k in CLUSTERS:
            records.append(child_record("benchmarks.clusters", ["steps", ROWS, k, STEPS]))
            print(records[-1], flush=True)
        result |= {"cpu": cpu_description(), "rows": ROWS, "steps": STEPS, "records": records}
    if "large" in args.only:
        given = ["large", *LARGE, 60 * args.minutes]
        result["large"] = child_record("benchmarks.clusters", given)
        command = f"python -m benchmarks.clusters --only large --minutes {args.minutes:g} --write"
        result["large"]["command"] = command
    print(table(result))
    if args.write:
        save("clusters", result, indent=None)
        write_tables("clusters", result)
        print(RESULTS / "clusters.json")


if __name__ == "__main__":
    main()
