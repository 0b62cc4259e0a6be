"""Every partition up to k in one fit (`DCDBundle`), beside ten starts for each number of clusters.

    python -m benchmarks.dcd [--only PART ...] [--sets eeg ...] [--methods fast ...] [--write]

Parts:

* curves: all partitions into 2 to 25 clusters of four public sets, by every effort, and by ten
  starts of scikit-learn for each number.
* generated: six sets drawn by the commit's hash, so that nobody has looked at them before.
* stored: 1,000,000 × 18 from a store, to 100 clusters, reading by reading (`dcd_scale.py`).

Runs on a set share a process of one thread (`dcd_runs.py`), in turns. A set that has been measured
is saved at once, among those of earlier runs. Where only some methods are asked for, those of the
last result stay beside them, and the tables say that they were measured apart.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import dcd_scale
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
    DRAWN,
    EFFORTS,
    FAST,
    METHODS,
    PEERS,
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


class Part(NamedTuple):
    """Sets, methods and number of seeds of a part; without methods it is `dcd_scale.stored`."""

    sets: tuple[str, ...]
    methods: tuple[str, ...]
    n_seeds: int


PARTS = {
    "curves": Part(SETS, (*PEERS, *EFFORTS), 5),
    "generated": Part(DRAWN, (TEN_GREEDY, BALANCED), 1),
    "stored": Part(("B",), (), 3),
}


def keep(part: str, case: str, record: Record) -> Record:
    """All results, with the record of a set among the others of its part."""
    whole = read_result("dcd")
    sets = whole.get(part, {}).get("sets", {})
    before = sets.get(case)
    # Another commit draws other rows.
    is_same = part != "generated" or (before and before["commit"] == record["commit"])
    if before and "methods" in record and is_same:
        methods = {**before["methods"], **record["methods"]}
        record["methods"] = {m: methods[m] for m in PARTS[part].methods if m in methods}
    sets[case] = record
    whole[part] = {"sets": {name: sets[name] for name in PARTS[part].sets if name in sets}}
    return {name: whole[name] for name in PARTS if name in whole}


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
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    known = [*SETS, *DRAWN, "B"]
    parser.add_argument("--sets", nargs="*", choices=known, metavar="SET", help=", ".join(known))
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--seeds", type=int, help="instead of each part's own number")
    parser.add_argument("--rows", type=int, help="first rows of each set, for a trial")
    parser.add_argument("--folder", type=Path, help="where stores stay for another run")
    args = parse(parser)
    if args.write and args.rows:
        parser.error("results of a trial are not written: leave --rows out")
    with tempfile.TemporaryDirectory() as folder:
        place = args.folder or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        for name in args.only:
            part = PARTS[name]
            n_seeds = args.seeds or part.n_seeds
            methods = [m for m in part.methods if args.methods is None or m in args.methods]
            for case in at_hand(case for case in part.sets if not args.sets or case in args.sets):
                if not part.methods:
                    record = dcd_scale.stored(place, n_seeds, args.rows)
                elif methods:
                    given = [case, methods, list(COUNTS), n_seeds, args.rows]
                    record = child_record("benchmarks.dcd_runs", given)
                else:
                    continue
                record = rounded(record, DIGITS) | {"cpu": cpu_description()}
                whole = keep(name, case, record)
                publish("dcd", whole, write=args.write)
                if args.write and name == "curves":
                    draw_elbows(whole["curves"], RESULTS / "dcd-elbows.png")


if __name__ == "__main__":
    main()
