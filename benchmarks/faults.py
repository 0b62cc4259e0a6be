"""The table of what happens when things die, from the result of ``python -m tests.faults``."""

from __future__ import annotations

from statistics import median
from typing import Any

__all__ = ["table"]


def table(result: dict[str, Any]) -> str:
    """The markdown table: a line a kind of fault, and a line a scenario.

    ``result["faults"]`` has of each kind what it is, what follows, the moments it struck at,
    and of every job what was done again (``redone``) and the seconds until it went on.
    """
    lines = [
        "| fault | what happens | moments | jobs | done again | s, median | s, worst |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in result["faults"]:
        seconds = kind["seconds"]
        lines.append(
            f"| {kind['what']} | {kind['follows']} | {len(kind['moments'])} | {len(seconds)} "
            f"| {median(kind['redone']):.0f} | {median(seconds):.2f} | {max(seconds):.2f} |"
        )
    lines += ["", "| scenario | what came of it |", "|---|---|"]
    lines += [f"| {what} | {came} |" for what, came in result["scenarios"]]
    done = f"; {result['left']} combinations were left for want of time" if result["left"] else ""
    return "\n".join(
        [
            *lines,
            "",
            f"Jobs of a second or two on {result['workers']} workers (all algorithms in turns); "
            "done again: chunks handed out once more, row states rebuilt, runs taken up; seconds "
            f"from the strike to the end of the next step{done}; load of the machine at the end: "
            f"{result['load']:.0f}. {result['cpu']}. Made by "
            "`python -m tests.faults --minutes 60 --write`.",
        ]
    )
