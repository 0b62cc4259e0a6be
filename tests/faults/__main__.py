"""``python -m tests.faults --minutes 60``: all faults, all algorithms, all moments, and a table.

The scenarios that take minutes come first; then every combination is done once in a seeded order,
and again until the time is over. With ``--write`` the table goes into `docs/results/service.md`.
With ``--go-on`` what the run before had no time for is done, and its table grows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, cpu_description, save
from benchmarks.faults import table
from benchmarks.tables import write_tables
from largek_dask import fault_injection
from tests.faults.cases import make_cases
from tests.faults.catalogue import FAULTS, Fault, KillScheduler, KillWorker, TermScheduler
from tests.faults.long import LONG, Scenario
from tests.faults.moments import Moment, visited
from tests.faults.rig import Rig
from tests.faults.strikes import Outcome, strike

ENDS = ("claim", "publish", "labels", "renewal", "checkpoint")
"""Points that a job comes to before its first step, after its last one, or at any time."""


def combinations() -> list[Fault]:
    """Every fault at its moment, and kills of scheduler and workers at all others."""
    faults: list[Fault] = [fault() for fault in FAULTS]
    for when, point in itertools.product(("before", "after"), fault_injection.POINTS):
        step = 0 if point in ENDS else 6
        if point in ("chunk", "labels"):
            faults.append(KillWorker(Moment(when, point, "worker", from_step=step)))
        elif point not in ("scatter", "receive"):
            # Nothing this small is scattered unless a worker has been lost.
            faults += [
                kind(Moment(when, point, from_step=step)) for kind in (KillScheduler, TermScheduler)
            ]
    return faults


def result_of(
    found: Mapping[Fault, Sequence[Outcome]],
    told: Mapping[Scenario, str],
    n_workers: int,
    left: int,
) -> dict[str, Any]:
    """All that went well, as JSON."""
    kinds: dict[type[Fault], list[Outcome]] = defaultdict(list)
    moments: dict[type[Fault], set[str]] = defaultdict(set)
    for fault, outcomes in found.items():
        kinds[type(fault)] += outcomes
        moments[type(fault)].add(str(fault.moment))
    return {
        "cpu": cpu_description(),
        "load": os.getloadavg()[0],
        "workers": n_workers,
        "left": left,
        "faults": [
            {
                "what": _first_line(kind),
                "follows": kind.follows,
                "moments": sorted(moments[kind]),
                "redone": [outcome.redone for outcome in outcomes],
                "seconds": [round(outcome.recovery, 3) for outcome in outcomes],
            }
            for kind, outcomes in sorted(kinds.items(), key=lambda item: item[0].__name__)
        ],
        "scenarios": [[_first_line(scenario), what] for scenario, what in told.items()],
    }


def together(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Two results as one."""
    kinds: dict[str, dict[str, Any]] = {}
    for kind in (*earlier["faults"], *later["faults"]):
        same = kinds.setdefault(kind["what"], {**kind, "moments": [], "redone": [], "seconds": []})
        same["moments"] = sorted({*same["moments"], *kind["moments"]})
        for name in ("redone", "seconds"):
            same[name] = [*same[name], *kind[name]]
    return {
        **later,
        "load": max(earlier["load"], later["load"]),
        "faults": list(kinds.values()),
        "scenarios": [*earlier["scenarios"], *later["scenarios"]],
    }


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").split("\n")[0].rstrip(".")


def main() -> int:
    """Run, print, and say whether all was well."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", help="part of the names of faults")
    parser.add_argument("--go-on", action="store_true", help="what the last run has left")
    parser.add_argument("--write", action="store_true", help="save results, write the table")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    found: dict[Fault, list[Outcome]] = defaultdict(list)
    told: dict[Scenario, str] = {}
    wrong = []
    left, begin = 0, 0
    earlier: dict[str, Any] | None = None
    if given.go_on:
        earlier = json.loads((RESULTS / "faults.json").read_text())
    with tempfile.TemporaryDirectory(prefix="largek-faults-") as name:
        folder = Path(name)
        cases = make_cases(folder)
        work = list(itertools.product(combinations(), cases.values()))
        random.Random(given.seed).shuffle(work)
        work = [(f, c) for f, c in work if given.only is None or given.only in str(f)]
        if earlier is not None:
            begin = len(work) - earlier["left"]
        for scenario in LONG if earlier is None else ():
            if given.only is None or given.only in scenario.__name__:
                try:
                    told[scenario] = scenario(folder / scenario.__name__, cases)
                    print(f"{scenario.__name__}: {told[scenario]}", flush=True)
                except Exception as error:
                    wrong.append(f"{scenario.__name__}: {error!r}")
                    print("WRONG", wrong[-1], flush=True)
        with Rig(folder / "rig", n_workers=given.workers) as rig:
            rest = itertools.islice(itertools.cycle(work), begin, None)
            for number, (fault, case) in enumerate(rest, begin):
                if time.monotonic() > until:
                    left = max(0, len(work) - number)
                    break
                try:
                    with rig.connected() as service:
                        outcome = strike(rig, service, case, fault, folder / f"out{number}")
                    outcome.check(fault)
                except Exception as error:
                    wrong.append(f"{fault}, {case.name}: {error!r}")
                    print("WRONG", wrong[-1], flush=True)
                    print(rig.logs(), file=sys.stderr)
                else:
                    found[fault].append(outcome)
                    print(f"{number:4d} {fault}, {case.name}: {outcome}", flush=True)
        missing = {
            (when, p) for when in ("before", "after") for p in fault_injection.POINTS
        } - visited(folder / "rig")
    result = result_of(found, told, given.workers, left)
    if earlier is not None:
        result = together(earlier, result)
    print(table(result))
    if given.write:
        save("faults", result)
        write_tables("faults", result)
    if left:
        wrong.append(f"{left} combinations were not done for want of time")
    if earlier is not None:
        missing = set()
    for line in [*wrong, *(f"no run came to: {when} {point}" for when, point in sorted(missing))]:
        print("WRONG", line)
    return 1 if wrong or (missing and given.only is None) else 0


if __name__ == "__main__":
    sys.exit(main())
