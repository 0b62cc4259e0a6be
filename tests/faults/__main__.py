"""``python -m tests.faults --minutes 30``: all faults, all algorithms, all moments, and a table.

Every combination is done once in a seeded order, and then again until the time is over.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from largek_dask import points
from tests.faults.cases import make_cases
from tests.faults.catalogue import FAULTS, Fault, KillScheduler, KillWorker, TermScheduler
from tests.faults.long import LONG
from tests.faults.moments import Moment, visited
from tests.faults.rig import Rig
from tests.faults.strikes import Outcome, strike

ENDS = ("claim", "publish", "labels", "renewal", "checkpoint")
"""Points that a job comes to before its first step, after its last one, or at any time."""


def combinations() -> list[Fault]:
    """Every fault at its moment, and kills of scheduler and workers at all others."""
    faults: list[Fault] = [fault() for fault in FAULTS]
    for when, point in itertools.product(("before", "after"), points.POINTS):
        step = 0 if point in ENDS else 6
        if point in ("chunk", "labels"):
            faults.append(KillWorker(Moment(when, point, "worker", from_step=step)))
        elif point != "scatter":
            # Nothing this small is scattered unless a worker has been lost.
            faults += [
                kind(Moment(when, point, from_step=step)) for kind in (KillScheduler, TermScheduler)
            ]
    return faults


def main() -> int:
    """Run, print, and say whether all was well."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", help="part of the names of faults")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    found: dict[str, list[Outcome]] = defaultdict(list)
    wrong = []
    with tempfile.TemporaryDirectory(prefix="largek-faults-") as name:
        folder = Path(name)
        cases = make_cases(folder)
        work = list(itertools.product(combinations(), cases.values()))
        random.Random(given.seed).shuffle(work)
        work = [(f, c) for f, c in work if given.only is None or given.only in str(f)]
        with Rig(folder / "rig", n_workers=given.workers) as rig:
            for number, (fault, case) in enumerate(itertools.cycle(work)):
                if time.monotonic() > until:
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
                    found[str(fault)].append(outcome)
                    print(f"{number:4d} {fault}, {case.name}: {outcome}", flush=True)
        missing = {(when, p) for when in ("before", "after") for p in points.POINTS} - visited(
            folder / "rig"
        )
        for scenario in LONG:
            if time.monotonic() < until and (given.only is None or given.only in scenario.__name__):
                try:
                    print(f"{scenario.__name__}: {scenario(folder / scenario.__name__, cases)}")
                except Exception as error:
                    wrong.append(f"{scenario.__name__}: {error!r}")
                    print("WRONG", wrong[-1], flush=True)
    print(
        f"\n{'fault':64s} {'jobs':>4s} {'redone':>7s} {'recovered in s, median':>23s} {'worst':>6s}"
    )
    for fault_name, outcomes in sorted(found.items()):
        seconds = [outcome.recovery for outcome in outcomes]
        redone = sum(outcome.redone for outcome in outcomes) / len(outcomes)
        print(
            f"{fault_name:64s} {len(outcomes):4d} {redone:7.1f} {median(seconds):23.2f} "
            f"{max(seconds):6.2f}"
        )
    for line in [*wrong, *(f"no run came to: {when} {point}" for when, point in sorted(missing))]:
        print("WRONG", line)
    return 1 if wrong or (missing and given.only is None) else 0


if __name__ == "__main__":
    sys.exit(main())
