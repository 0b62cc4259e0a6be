"""Variance-reduced k-means: the table of labels and the published method, beside their rivals.

    python -m benchmarks.vrkm [--only PART ...] [--sets mnist-50 ...] [--seeds 10] [--write]

Parts:

* table: the table of labels against bounded Lloyd, nested batches and the truncated search.
* published: VRKM++ of Zhao et al., Large-scale k-means clustering via variance reduction, row by
  row and in rounds, against the passes and seconds of Lloyd's algorithm.

Runs on a set share a process of one thread: the same starting rows for all methods but the
truncated search, in turns, for every seed in another order. A set that has been measured is saved
at once, among those of earlier runs; the text below a table counts the seeds in it.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import (
    child_record,
    cpu_description,
    new_parser,
    parse,
    read_result,
    rounded,
)
from benchmarks.curves import (
    AUTO,
    DENSE,
    LLOYD,
    NMBATCH,
    ONE_ROW,
    ONE_ROW_TEN,
    ROUNDS,
    ROUNDS_TEN,
    TABLE,
    Task,
    energies_of,
    follow,
    record_of,
    warm_up,
)
from benchmarks.dcd_runs import in_turn
from benchmarks.levels import SAME, first_at, median, ratios, spread
from benchmarks.sets import at_hand, prepare
from benchmarks.tables import publish, table_of

Record = dict[str, Any]

SEVEN = ("mnist-50", "sift200k-100", "glove100k-100", "A-100", "A-1000", "B-100", "B-1000")
"""Sets that the aims are about."""
LARGER = SEVEN[4:]
SMALL = ("shuttle-50", "eeg-25")
"""Sets that start from k-means++ rows, as random rows would only measure the start."""
TRAINING_ROWS = 60_000
"""Rows of mnist to learn from."""
REFERENCE_PASSES = 20.0
"""Lloyd's passes whose objective is the baseline."""
MARKS = (2.0, 4.0, 6.0, 10.0, 20.0)
"""Passes after which objectives are compared."""
NEAR, OF_END = 1.005, 1.002
"""Multiples of the objective of 20 Lloyd passes, and of Lloyd's end."""
LIMITS = {NMBATCH: 8.0, AUTO: 10.0, TABLE: 40.0, LLOYD: 120.0}
"""CPU seconds after which runs to the end are cut."""


class Part(NamedTuple):
    """Sets and methods of a part; the first method is the reference."""

    sets: tuple[str, ...]
    methods: tuple[str, ...]
    most: float | None = None
    """Passes after which runs are cut."""


PARTS = {
    "table": Part(SEVEN + SMALL, (LLOYD, NMBATCH, AUTO, TABLE)),
    "published": Part(SEVEN, (DENSE, ONE_ROW, ONE_ROW_TEN, ROUNDS, ROUNDS_TEN), REFERENCE_PASSES),
}


# --- runs -----------------------------------------------------------------------------------------


def starts(x: NDArray[np.float32], k: int, seed: int, kind: str) -> NDArray[np.float32]:
    """(k, d) common starting centres; outside of all clocks."""
    if kind == "random":
        return x[np.sort(np.random.default_rng([7, seed]).choice(len(x), k, replace=False))]
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.parts.seeding import initial_centers
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    with LocalPasses(open_rows(x)) as passes:
        return np.array(initial_centers(passes, Rng(seed), k, kind), np.float32)


def compare_once(part: Part, methods: list[str], x: Any, k: int, seed: int, start: str) -> Record:
    """Runs of all methods from one start."""
    centers = starts(x, k, seed, start)
    tasks = {
        name: Task(name, "", k, seed, LIMITS.get(name, 300.0), part.most, marks=MARKS)
        for name in methods
    }
    traces = {name: follow(tasks[name], x, centers) for name in in_turn(methods, seed)}
    energies = {name: energies_of(x, trace) for name, trace in traces.items()}
    reference = traces[methods[0]]
    twenty = reference.last_within(REFERENCE_PASSES)
    assert twenty is not None
    base, end = (energies[methods[0]][i] for i in (twenty, len(reference.met) - 1))
    levels = tuple(SAME * level for level in (NEAR * base, base, OF_END * end, end))
    runs = {
        name: record_of(replace(tasks[name], levels=levels), traces[name], energies[name])
        for name in methods
    }
    return {"base": base, "end": end, "runs": runs}


def child(name: str, case: str, path: str, n_seeds: int, n_rows: int | None) -> Record:
    """Runs of all methods of a part on a set, for all seeds."""
    # Warnings of objectives that rise are of no use here.
    warnings.simplefilter("ignore")
    part, k, x = PARTS[name], int(case.split("-")[1]), np.load(path)[:n_rows]
    # Row by row, a pass over one of the larger sets takes too long.
    skipped = (ONE_ROW, ONE_ROW_TEN) if case in LARGER else ()
    methods = [method for method in part.methods if method not in skipped]
    for method in methods:
        warm_up(method, x, k)
    # A collection of garbage takes 65 ms, in whichever run it happens.
    gc.collect()
    gc.freeze()
    start, seeds = "k-means++" if case in SMALL else "random", []
    for seed in range(n_seeds):
        seeds.append(compare_once(part, methods, x, k, seed, start))
        print(f"{case}, seed {seed}", file=sys.stderr, flush=True)
    n, d = x.shape
    return {"n": n, "d": d, "k": k, "start": start, "seeds": seeds}


# --- figures --------------------------------------------------------------------------------------


def after(run: Record, passes: float) -> float:
    """Energy after ``passes`` at most; NaN before the first step."""
    made = np.searchsorted(run["passes"], passes + 1e-6, side="right")
    return float(run["energies"][made - 1]) if made else np.nan


def to_level(
    record: Record, method: str, level: Callable[[Record], float], which: int
) -> list[float]:
    """Passes (0) or seconds (1) of a method to a level, by seed; infinite if it never comes."""
    found = [first_at(seed["runs"][method], level(seed)) for seed in record["seeds"]]
    return [np.inf if point is None else point[which] for point in found]


def near_base(seed: Record) -> float:
    """1.005 times the objective of 20 Lloyd passes."""
    return float(NEAR * seed["base"])


def at_base(seed: Record) -> float:
    """The objective of 20 Lloyd passes."""
    return float(seed["base"])


def near_end(seed: Record) -> float:
    """A little above Lloyd's end."""
    return float(OF_END * seed["end"])


def ends(record: Record, method: str) -> list[float]:
    """Per cent of the end above Lloyd's, by seed."""
    last = [
        [seed["runs"][name]["energies"][-1] for seed in record["seeds"]] for name in (method, LLOYD)
    ]
    return [100 * (ours / theirs - 1) for ours, theirs in zip(*last, strict=True)]


def passes_of(record: Record, method: str) -> list[float]:
    """Passes until nothing changes; infinite if the run was cut before."""
    runs = [seed["runs"][method] for seed in record["seeds"]]
    return [run["passes"][-1] if run["ended"] else np.inf for run in runs]


def share_of_seconds(record: Record, method: str, other: str) -> list[float]:
    """CPU seconds to near Lloyd's end over those of another method, by seed."""
    return ratios(to_level(record, method, near_end, 1), to_level(record, other, near_end, 1))


# --- tables ---------------------------------------------------------------------------------------


def note(sets: dict[str, Record], part: str, text: str) -> list[str]:
    """Text below a table: sets, starts, seeds, machine and command."""
    planned = [name for name, record in sets.items() if record["start"] != "random"]
    other = f" (k-means++ rows on {', '.join(planned)})" if planned else ""
    rows = ", ".join(f"{name} {r['n']:,} × {r['d']:,}" for name, r in sets.items())
    counts = {name: len(record["seeds"]) for name, record in sets.items()}
    fewer = [f"{n} on {name}" for name, n in counts.items() if n < max(counts.values())]
    seeds = f"{max(counts.values())} seeds" + (f" ({', '.join(fewer)})" if fewer else "")
    machines = ", ".join(dict.fromkeys(record["cpu"] for record in sets.values()))
    return [
        "",
        f"{text} All start from the same random rows{other}. Rows: {rows}; the number behind a set "
        f"is k. Medians (quartiles) of {seeds}. {machines}. Made by "
        f"`python -m benchmarks.vrkm --only {part} --write`.",
    ]


def held(values: dict[str, float], aim: float) -> str:
    """Number of sets on which a figure reaches its aim."""
    return f"{sum(value <= aim for value in values.values())} of {len(values)}"


def of_table(result: Record) -> str:
    """Seconds and ends of the table of labels."""
    sets, rows = result["table"]["sets"], []
    rivals = {LLOYD: 0.5, NMBATCH: 0.6, AUTO: 1.0}
    found: dict[str, dict[str, float]] = {rival: {} for rival in rivals}
    for name, record in sets.items():
        ours = to_level(record, TABLE, near_end, 1)
        cells = [name, spread(ours, ".2f")]
        for rival, aim in rivals.items():
            share = share_of_seconds(record, TABLE, rival)
            if name in SEVEN:
                found[rival][name] = median(share)
            cells.append(spread(to_level(record, rival, near_end, 1), ".2f"))
            cells.append(bold(share, ".2f", aim, aimed=name in SEVEN))
        rows.append([*cells, bold(ends(record, TABLE), "+.2f", 0.2, aimed=name in SEVEN)])
    seven = {name: median(ends(r, TABLE)) for name, r in sets.items() if name in SEVEN}
    few = {name: v for name, v in found[AUTO].items() if not name.endswith("-1000")}
    text = (
        f"CPU seconds to {100 * (OF_END - 1):.1f} % above where Lloyd's algorithm ends, and the "
        "table's as a share of its rivals'; the truncated search has its own start, and moves. At "
        f"most 0.35 of bounded Lloyd's on {held(found[LLOYD], 0.35)} of these sets (to reach: 5 of "
        f"7), 0.5 on {held(found[LLOYD], 0.5)} (all); 0.6 of nmbatch's on "
        f"{held(found[NMBATCH], 0.6)} (6); not slower than the truncated search on "
        f"{held(few, 1.0)} with k ≤ 100 (3 of 5). Ends at most 0.1 % above Lloyd's on "
        f"{held(seven, 0.1)} (5), 0.2 % on {held(seven, 0.2)} (all). Bold: missed."
    )
    head = ["set", "table, s to +0.2 %", "Lloyd, bounds", "share", "nmbatch", "share", "truncated",
            "share", "ends, % above Lloyd's end"]  # fmt: skip
    return "\n".join(table_of(head, rows) + note(sets, "table", text))


def bold(values: Sequence[float], form: str, aim: float, *, aimed: bool = True) -> str:
    """Median and quartiles; in bold where the median misses its aim."""
    text = spread(values, form)
    return f"**{text}**" if aimed and median(values) > aim else text


def apart(record: Record) -> float:
    """The largest difference of rounds from one row at a time, in per cent at the same passes."""
    gaps = [
        median(
            100 * (after(seed["runs"][many], mark) / after(seed["runs"][one], mark) - 1)
            for seed in record["seeds"]
        )
        for one, many in ((ONE_ROW, ROUNDS), (ONE_ROW_TEN, ROUNDS_TEN))
        for mark in MARKS
    ]
    return float(np.nanmax(np.abs(gaps)))


def of_published(result: Record) -> str:
    """Aims of the published methods, with misses in bold."""
    sets = result["published"]["sets"]

    def passes(method: str, level: Callable[[Record], float]) -> dict[str, float]:
        return {name: median(to_level(r, method, level, 0)) for name, r in sets.items()}

    def share(method_of: Callable[[Record], str], which: int) -> dict[str, float]:
        return {
            name: median(
                ratios(
                    to_level(r, method_of(r), near_base, which),
                    to_level(r, DENSE, near_base, which),
                )
            )
            for name, r in sets.items()
        }

    by_row = {n: r for n, r in sets.items() if ONE_ROW in r["seeds"][0]["runs"]}
    like_lloyd = share(lambda r: ONE_ROW if ONE_ROW in r["seeds"][0]["runs"] else ROUNDS, 0)
    lines: list[tuple[str, dict[str, float], float, float, str]] = [
        ("η = K/n: passes to 1.005x over Lloyd's", like_lloyd, 0.75, 1.25, ".2f"),
        ("rounds, 10 K/n: passes to 1.005x", passes(ROUNDS_TEN, near_base), 0, 6, ".1f"),
        ("rounds, 10 K/n: passes to 1x", passes(ROUNDS_TEN, at_base), 0, 10, ".1f"),
        ("rounds and one row at a time, same η: apart at most, %",
         {name: apart(r) for name, r in by_row.items()}, 0, 0.3, ".2f"),
        ("rounds, 10 K/n: seconds to 1.005x over dense Lloyd's",
         share(lambda r: ROUNDS_TEN, 1), 0, 0.6, ".2f"),
    ]  # fmt: skip
    rows = []
    for what, values, least, most, form in lines:
        cells = [what, f"{least:g} to {most:g}" if least else f"≤ {most:g}"]
        for name in sets:
            value = values.get(name, np.nan)
            text = "–" if np.isnan(value) else format(value, form)
            cells.append(text if np.isnan(value) or least <= value <= most else f"**{text}**")
        rows.append(cells)
    text = (
        "VRKM++ with the step size η = K/n, and in rounds of n/100 rows with ten times that. 1x is "
        "the objective of 20 passes of Lloyd's algorithm; an epoch is two passes. Bold: missed."
    )
    head = ["median of seeds", "to hold", *sets]
    return "\n".join(table_of(head, rows) + note(sets, "published", text))


# --- commands -------------------------------------------------------------------------------------


def path_of(name: str, folder: Path) -> str:
    """Path of the rows of a set; of mnist the training rows."""
    path = prepare(name, folder)
    if name == "mnist":
        np.save(folder / "mnist-train.npy", np.load(path)[:TRAINING_ROWS])
        return str(folder / "mnist-train.npy")
    return str(path)


def keep(name: str, case: str, record: Record) -> Record:
    """All results, with the record of a set among the others of its part."""
    whole = read_result("vrkm")
    sets = {**whole.get(name, {}).get("sets", {}), case: record}
    whole[name] = {"sets": {known: sets[known] for known in PARTS[name].sets if known in sets}}
    return whole


def main() -> None:
    """Measure, and write if asked to."""
    parser = new_parser(__doc__)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--sets", nargs="*", metavar="SET", help="such as mnist-50")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rows", type=int, help="first rows of each set, for a trial")
    parser.add_argument("--folder", type=Path, help="where rows stay for another run")
    args = parse(parser, child)
    if args.write and args.rows:
        parser.error("results of a trial are not written: leave --rows out")
    with tempfile.TemporaryDirectory() as place:
        folder = args.folder or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        for name in args.only:
            cases = [c for c in PARTS[name].sets if not args.sets or c in args.sets]
            for case in at_hand(cases):
                given = [name, case, path_of(case.split("-")[0], folder), args.seeds, args.rows]
                record = rounded(child_record("benchmarks.vrkm", given))
                whole = keep(name, case, record | {"cpu": cpu_description()})
                publish("vrkm", whole, write=args.write)


if __name__ == "__main__":
    main()
