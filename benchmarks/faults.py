"""Make the table of faults and their consequences from the result of ``python -m tests.faults``."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.tables import table_of


def table(result: dict[str, Any]) -> str:
    """Return the markdown tables of faults and of scenarios.

    For each kind of fault, ``result["faults"]`` has a description, the consequence, the points at
    which the fault was injected, and for every job the amount of repeated work (``redone``) and the
    seconds until the job continued.
    """
    rows = []
    for kind in result["faults"]:
        seconds = kind["seconds"]
        cells = [kind["what"], kind["follows"], f"{len(kind['moments'])}", f"{len(seconds)}"]
        cells += [f"{median(kind['redone']):.0f}", f"{median(seconds):.2f}", f"{max(seconds):.2f}"]
        rows.append(cells)
    head = ["fault", "what happens", "moments", "jobs", "repeated", "median seconds",
            "longest seconds"]  # fmt: skip
    done = (
        f" For lack of time, {result['left']} combinations of fault, moment and algorithm were "
        "not tested."
        if result["left"]
        else ""
    )
    note = (
        f"Jobs take one or two seconds on {result['workers']} workers, and use all algorithms in "
        'turn. "Moments" is the number of points in a job at which the fault is injected. '
        '"Repeated" is the median number per job of reassigned chunks, rebuilt row states and '
        f"resumed runs. Seconds are from the fault to the end of the next step.{done} The load "
        f"average at the end was {result['load']:.0f}. Processor: {result['cpu']}. This table was "
        "made by `python -m tests.faults --minutes 60 --write`."
    )
    scenarios = table_of(["scenario", "result"], result["scenarios"])
    return "\n".join([*table_of(head, rows), "", *scenarios, "", note])
