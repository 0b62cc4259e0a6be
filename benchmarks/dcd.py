"""Every partition up to k in one fit (`DCDBundle`), beside ten starts for each number of clusters.

    python -m benchmarks.dcd [--sets eeg ...] [--methods fast ...] [--write]

All partitions into 2 to 25 clusters of four public sets, by every effort, and by ten starts of
scikit-learn for each number. Runs on a set share a process of one thread (`dcd_runs.py`), in turns.
A set that has been measured is saved at once, among those of earlier runs. Where only some methods
are asked for, those of the last result stay beside them, and the tables say that they were measured
apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import (
    RESULTS,
    child_record,
    cpu_description,
    new_parser,
    parse,
    read_result,
    rounded,
)
from benchmarks.dcd_known import COUNTS, SETS
from benchmarks.dcd_runs import (
    BALANCED,
    BEST,
    FAST,
    METHODS,
    TEN,
    TEN_GREEDY,
)
from benchmarks.dcd_tables import counts_of, values
from benchmarks.pictures import new_figure
from benchmarks.sets import at_hand
from benchmarks.tables import publish

Record = dict[str, Any]

DIGITS = 12
"""Digits of numbers in the results: objectives are compared to nine."""
MARKS = {TEN: ("tab:gray", "o"), TEN_GREEDY: ("black", "x")}


def keep(case: str, record: Record) -> Record:
    """All results, with the record of a set among the others."""
    sets = read_result("dcd").get("curves", {}).get("sets", {})
    if before := sets.get(case):
        methods = {**before["methods"], **record["methods"]}
        record["methods"] = {m: methods[m] for m in METHODS if m in methods}
    sets[case] = record
    return {"curves": {"sets": {name: sets[name] for name in SETS if name in sets}}}


def draw_elbows(part: Record, path: Path) -> None:
    """Draw a panel for each set: the curve of the highest effort, its bounds, and ten starts."""
    sets = part["sets"]
    figure, panels = new_figure(len(sets), 3.4 * len(sets), 4)
    for axes, (name, record) in zip(panels, sets.items(), strict=True):
        lows = []
        own = [method for method in (BEST, BALANCED, FAST) if method in record["methods"]]
        for method in own[:1]:
            counts, runs = counts_of(record, method), record["methods"][method]["seeds"]
            curve = np.median(values(record, method), axis=0)
            axes.plot(counts, curve, color="tab:red", lw=1.6, label=f"DCDBundle, {method}")
            bounds = np.array(runs[0]["bounds"])
            axes.plot(counts, np.where(bounds > 0, bounds, np.nan), color="tab:red", lw=0.8,
                      ls="--", label="lower bound")  # fmt: skip
            lows.append(curve.min())
        for method, (color, marker) in MARKS.items():
            if method in record["methods"]:
                points = np.median(values(record, method), axis=0)
                axes.plot(counts_of(record, method), points, color=color, marker=marker, ms=4,
                          ls="", label=method)  # fmt: skip
                lows.append(points.min())
        axes.set(yscale="log", xlabel="clusters", ylim=(min(lows) / 3, None))
        axes.set_title(f"{name}: {record['n']:,} × {record['d']}", fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("inertia")
    shown: dict[str, Any] = {}
    for axes in panels:
        lines, labels = axes.get_legend_handles_labels()
        shown |= dict(zip(labels, lines, strict=True))
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, and write if asked to."""
    parser = new_parser(__doc__)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=SETS)
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, help="first rows of each set, for a trial")
    args = parse(parser)
    if args.write and args.rows:
        parser.error("results of a trial are not written: leave --rows out")
    for case in at_hand(args.sets):
        given = [case, args.methods, list(COUNTS), args.seeds, args.rows]
        record = rounded(child_record("benchmarks.dcd_runs", given), DIGITS)
        whole = keep(case, record | {"cpu": cpu_description()})
        publish("dcd", whole, write=args.write)
        if args.write:
            draw_elbows(whole["curves"], RESULTS / "dcd-elbows.png")


if __name__ == "__main__":
    main()
