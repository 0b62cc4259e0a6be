"""``python -m tests.fuzz``: random cases for some minutes."""

from __future__ import annotations

import dataclasses
import datetime
import faulthandler
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator

import click

from tests.fuzz.cases import Case, draw
from tests.fuzz.trial import close_cluster, faults_of

SEEDS_APART = 10**6
"""First cases of two seeds are so far apart."""
HANGS_AFTER = 600.0
"""Seconds after which a case is taken to go on for ever."""
SMALLER_SECONDS = 20.0
"""How long a smaller case that fails alike is looked for."""
TOLD_OF = ("algorithm", "estimator", "dtype", "layout", "weights", "k", "kind", "source", "also")
"""Fields of a case whose values are counted."""
TOLD_EVERY = 60.0
"""Seconds between two lines that say how far it is."""


def as_test(case: Case, faults: list[str]) -> str:
    """A test to paste."""
    fields = "".join(
        f"        {field.name}={getattr(case, field.name)!r},\n"
        for field in dataclasses.fields(case)
    )
    told = "".join(f"    # {fault}\n" for fault in faults)
    return (
        "from tests.fuzz import Case, faults_of\n\n\n"
        f"def test_case_{case.seed}():\n{told}    case = Case(\n{fields}    )\n"
        "    assert faults_of(case) == []\n"
    )


def _simpler(case: Case) -> Iterator[Case]:
    """Cases with one thing less."""
    plain: dict[str, object] = {
        "also": "",
        "source": "array",
        "layout": "C",
        "weights": "none",
        "init": "auto",
        "tol": 0.0,
        "estimator": "KMeans",
        "effort": "balanced",
        "normalize": False,
        "bad": 0.0,
        "reg_covar": 1e-6,
        "dither": False,
    }
    for name, value in plain.items():
        needed = case.also == "repeats" and name in ("weights", "init")
        if getattr(case, name) != value and not needed:
            yield dataclasses.replace(case, **{name: value})  # type: ignore[arg-type]
    if case.n // 2 >= case.k:
        yield dataclasses.replace(case, n=case.n // 2)
    if case.k > 1:
        yield dataclasses.replace(case, k=(case.k + 1) // 2)
    if case.d > 1:
        yield dataclasses.replace(case, d=(case.d + 1) // 2)
    if case.max_iter > 1:
        yield dataclasses.replace(case, max_iter=1)


def smaller(
    case: Case, faults: list[str], judge: Callable[[Case], list[str]] = faults_of
) -> tuple[Case, list[str]]:
    """The simplest case found that fails in the same way."""
    kind = faults[0].split(":")[0]
    until = time.monotonic() + SMALLER_SECONDS
    found = True
    while found:
        found = False
        for other in _simpler(case):
            if time.monotonic() > until:
                break
            others = judge(other)
            if others and others[0].split(":")[0] == kind:
                case, faults, found = other, others, True
                break
    return case, faults


def _give_up(case: Case) -> None:
    """End everything: a case does not."""
    print(as_test(case, [f"hangs: no end after {HANGS_AFTER:g} s"]), flush=True)
    faulthandler.dump_traceback()
    os._exit(1)


def attempt(case: Case, shrink: bool) -> list[str]:
    """The faults of a case, which are printed."""
    watch = threading.Timer(HANGS_AFTER, _give_up, [case])
    watch.daemon = True
    watch.start()
    try:
        try:
            faults = faults_of(case)
        except Exception:
            faults = ["raised: " + traceback.format_exc().replace("\n", "\n    # ")]
        if faults:
            print(f"\n# seed {case.seed} fails:")
            shown = smaller(case, faults) if shrink else (case, faults)
            print(as_test(*shown), flush=True)
    finally:
        watch.cancel()
    return faults


@click.command()
@click.option("--minutes", default=2.0, show_default=True, help="How long.")
@click.option("--seed", type=int, help="Of the first case; without it: of the day of the week.")
@click.option("--one", type=int, metavar="SEED", help="Only the case of this seed.")
@click.option("--shrink/--no-shrink", default=True, help="Look for simpler cases that fail.")
@click.option("--only", default="", help="Only algorithms whose names begin so, such as mixture.")
def main(minutes: float, seed: int | None, one: int | None, shrink: bool, only: str) -> None:
    """Fit random cases and check them by brute force; exit status 1 if one fails."""
    if one is not None:
        print(draw(one))
        faults = attempt(draw(one), shrink)
        close_cluster()
        sys.exit(1 if faults else 0)
    if seed is None:
        seed = datetime.datetime.now(datetime.UTC).weekday()
        print(f"seed {seed}: that of the day of the week (0 is Monday, UTC)")
    seconds: list[float] = []
    counts: dict[str, Counter[str]] = {}
    failed: dict[int, list[str]] = {}
    drawn = (draw(SEEDS_APART * seed + i) for i in range(SEEDS_APART))
    cases = (case for case in drawn if case.algorithm.startswith(only))
    # The first case compiles what there is; the time counts from then on.
    attempt(next(cases), shrink=False)
    begun = told = time.monotonic()
    while time.monotonic() - begun < 60 * minutes:
        case = next(cases)
        begin = time.monotonic()
        faults = attempt(case, shrink)
        if faults:
            failed[case.seed] = faults
        seconds.append(time.monotonic() - begin)
        if time.monotonic() - told > TOLD_EVERY:
            told = time.monotonic()
            print(f"{len(seconds)} cases, {len(failed)} failed", flush=True)
        for name in TOLD_OF:
            counts.setdefault(name, Counter())[str(getattr(case, name)) or "nothing"] += 1
    close_cluster()
    _tell(seed, seconds, counts, failed)
    sys.exit(1 if failed else 0)


def _tell(
    seed: int, seconds: list[float], counts: dict[str, Counter[str]], failed: dict[int, list[str]]
) -> None:
    for name, counter in counts.items():
        print(f"{name + ':':<11}", ", ".join(f"{key} {n}" for key, n in counter.most_common()))
    middle = sorted(seconds)[len(seconds) // 2]
    print(f"{len(seconds)} cases of seed {seed}, {len(failed)} failed; median {middle:.2f} s")
    for number, faults in failed.items():
        print(f"  --one {number}  {faults[0][:150]}")


if __name__ == "__main__":
    main()
