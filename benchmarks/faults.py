"""The table of faults and their consequences, from the result of ``python -m tests.faults``."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.tables import table_of


def table(result: dict[str, Any]) -> str:
    """The markdown tables: a line for each kind of fault, and for each scenario.

    ``result["faults"]`` has for each kind its description, what follows, the moments at which it
    struck, and for every job what was done again (``redone``) and the seconds until it went on.
    """
    rows = []
    for kind in result["faults"]:
        seconds = kind["seconds"]
        cells = [kind["what"], kind["follows"], f"{len(kind['moments'])}", f"{len(seconds)}"]
        cells += [f"{median(kind['redone']):.0f}", f"{median(seconds):.2f}", f"{max(seconds):.2f}"]
        rows.append(cells)
    head = ["fault", "what happens", "moments", "jobs", "done again", "s, median", "s, worst"]
    done = f"; {result['left']} combinations were left for want of time" if result["left"] else ""
    note = (
        f"Jobs of a second or two on {result['workers']} workers (all algorithms in turns); done "
        "again: chunks handed out once more, row states rebuilt, runs taken up; seconds from the "
        f"strike to the end of the next step{done}; load of the machine at the end: "
        f"{result['load']:.0f}. {result['cpu']}. Made by "
        "`python -m tests.faults --minutes 60 --write`."
    )
    scenarios = table_of(["scenario", "what came of it"], result["scenarios"])
    return "\n".join([*table_of(head, rows), "", *scenarios, "", note])
