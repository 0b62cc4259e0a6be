"""Every benchmark in one evening, and what has become worse since the committed results.

    python -m benchmarks.all [--only NAME ...] [--anew]

Runs one after the other with ``--write``, each in a process of its own; nothing else should run
beside. What is done stands in ``build/benchmarks.json``: begun again, it goes on after the last
that has ended, unless another commit is checked out, or with ``--anew``. One that fails is named,
and the next begins. After each, and in the end, it prints which figures of its tables are more than
15 % more seconds or bytes than in the commit ("worse"), and which other numbers have changed by as
much ("another": nobody says which way is better). Where results come from another machine, seconds
are not compared. The exit status is 1 if one has failed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import ROOT, commit
from benchmarks.tables import TABLES

NAMES = (
    "guard", "kernels", "labels", "labels_pruned", "outlier", "overhead", "start", "sizes",
    "durability", "balance", "lloyd", "auto_parts", "directions", "first", "cores", "far", "sparse",
    "workers", "many", "service", "observe", "sizing", "elbow", "clusters", "figures", "nmbatch",
    "auto_scale", "auto", "vrkm", "vcgmm", "vcgmm_scale", "dcd", "large",
)  # fmt: skip
"""In this order: what is over soon comes first."""
DONE = ROOT / "build" / "benchmarks.json"
MORE = 1.15
"""Times what it was, and it is told."""
SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
BYTES = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
FIGURE = re.compile(r"(?<![\w.])([-+]?\d[\d,]*(?:\.\d+)?)(?: ?(ms|s|min|h|kB|MB|GB|%|x)(?!\w))?")
HEADS = {"seconds": re.compile(r"second|\bs\b"), "bytes": re.compile(r"bytes|\b[kMG]B\b")}
"""Heads of columns whose figures have no unit of their own."""


class Figure(NamedTuple):
    """One number of a table."""

    value: float
    kind: str
    """"seconds", "bytes", "%", "x", or "" where nothing says what it is."""
    row: str
    column: str


def figures_of(markdown: str) -> dict[tuple[int, int, int], Figure]:
    """The numbers of a table by row, column and place in the cell; none if it is no table."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    heads, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines or "|")
    found = {}
    for i, cells in enumerate(rows[1:]):
        row = ", ".join(filter(None, cells[:2]))
        for j, (head, cell) in enumerate(zip(heads, cells, strict=False)):
            for place, (number, unit) in enumerate(FIGURE.findall(cell)):
                value, kind = _in_one_unit(float(number.replace(",", "")), unit, head)
                found[i, j, place] = Figure(value, kind, row, head or "figure")
    return found


def _in_one_unit(value: float, unit: str, head: str) -> tuple[float, str]:
    for kind, units in (("seconds", SECONDS), ("bytes", BYTES)):
        if unit in units:
            return value * units[unit], kind
        if not unit and HEADS[kind].search(head):
            return value, kind
    return value, unit


def changes(before: str, after: str, *, same_machine: bool) -> Iterator[str]:
    """What of a table is worse, or another number, in words.

    Parameters
    ----------
    before, after : str
        The markdown. Numbers that only one of them has are told, too.
    same_machine : bool
        Whether seconds can be compared.
    """
    were, are = figures_of(before), figures_of(after)
    if were.keys() != are.keys():
        yield f"another table: {len(are.keys() - were.keys())} numbers are new in their places"
    for place in sorted(were.keys() & are.keys()):
        was, now = were[place], are[place]
        if was.kind != now.kind or (now.kind == "seconds" and not same_machine):
            continue
        low, high = sorted((abs(was.value), abs(now.value)))
        # A share in percent is told to a tenth or a hundredth: less than a whole one is noise.
        if high <= MORE * low or (now.kind == "%" and high - low <= 1):
            continue
        costs = now.kind in ("seconds", "bytes")
        if not costs or now.value > was.value:
            unit = f" {now.kind}" if costs else now.kind
            yield (
                f"{'worse' if costs else 'another'}: {now.row}: {now.column}: "
                f"{was.value:,.4g}{unit} -> {now.value:,.4g}{unit}"
            )


def committed(name: str) -> dict[str, Any] | None:
    """The result of a benchmark as it is in the commit; None: there is none."""
    told = subprocess.run(
        ["git", "show", f"HEAD:benchmarks/results/{name}.json"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return json.loads(told.stdout) if told.returncode == 0 else None


def compared(name: str) -> list[str]:
    """What has changed in the tables of a benchmark since the commit, in words."""
    before = committed(name)
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    if before is None or not path.exists():
        return []
    after = json.loads(path.read_text())
    same = before.get("cpu") == after.get("cpu")
    told = [] if same else [f"{name}: another machine, seconds are not compared"]
    for marker, table in TABLES.items():
        if table.result == name:
            both = (table.made(result) for result in (before, after))
            told += [f"{marker}: {line}" for line in changes(*both, same_machine=same)]
    return told


def read_done(path: Path, anew: bool) -> dict[str, Any]:
    """What has ended at this commit, by name; the rest is forgotten."""
    if anew or not path.exists():
        return {}
    known = json.loads(path.read_text())
    return dict(known["done"]) if known["commit"] == commit() else {}


def write_done(path: Path, done: dict[str, Any]) -> None:
    """Keep it for whoever goes on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"commit": commit(), "done": done}, indent=1))
    new.replace(path)


def run_all(names: Sequence[str], path: Path, *, anew: bool) -> bool:
    """Run what has not ended yet; whether none has failed."""
    done = read_done(path, anew)
    for name in names:
        if done.get(name, {}).get("status") == 0:
            print(f"{name}: ended before, after {done[name]['seconds']:,.0f} s", flush=True)
            continue
        begun = time.monotonic()
        ran = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--write"], cwd=ROOT)
        seconds = round(time.monotonic() - begun, 1)
        done[name] = {"status": ran.returncode, "seconds": seconds}
        write_done(path, done)
        print(f"{name}: status {ran.returncode} after {seconds:,.0f} s", flush=True)
        print(*compared(name), sep="\n", flush=True)
    print("\nAll of them:")
    for name in names:
        failed = done[name]["status"] != 0
        print(*([f"{name}: failed"] if failed else []), *compared(name), sep="\n")
    return all(done[name]["status"] == 0 for name in names)


def main() -> None:
    """Run, compare, and say so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--anew", action="store_true")
    args = parser.parse_args()
    if not run_all(args.only, DONE, anew=args.anew):
        sys.exit(1)


if __name__ == "__main__":
    main()
