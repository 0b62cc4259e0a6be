"""The tables of `benchmarks.dcd`, computed from its result."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.dcd_known import LOWEST, TABLED
from benchmarks.dcd_runs import EFFORTS, PEERS
from benchmarks.tables import table_of

Result = dict[str, Any]
Record = dict[str, Any]
Array = NDArray[np.float64]

IDLE = 0.2
"""Cores that other processes take on a machine that is called idle."""


# --- figures --------------------------------------------------------------------------------------


def values(record: Record, method: str) -> Array:
    """(seeds, counts) objectives."""
    return np.array([run["values"] for run in record["methods"][method]["seeds"]])


def seconds(record: Record, method: str) -> Array:
    """(seeds,) CPU seconds for all numbers of clusters."""
    return np.array([run["seconds"] for run in record["methods"][method]["seeds"]])


def counts_of(record: Record, method: str) -> list[int]:
    """Numbers of clusters that a method was asked for."""
    return list(record["methods"][method]["counts"])


def errors(name: str, record: Record, method: str) -> Array:
    """(seeds, counts) objectives above the lowest known, in per cent."""
    lowest = np.array([LOWEST[name][k] for k in counts_of(record, method)])
    found: Array = 100 * (values(record, method) / lowest - 1)
    return found


def worst_errors(name: str, record: Record, method: str) -> Array:
    """(seeds,) the worst error of the tabled numbers of clusters."""
    tabled = [k in TABLED for k in counts_of(record, method)]
    found: Array = errors(name, record, method)[:, tabled].max(axis=1)
    return found


def percent(value: float) -> str:
    """An error in per cent as it is written."""
    return f"{value:z.3f}" if abs(value) < 10 else f"{value:,.0f}"


# --- notes ----------------------------------------------------------------------------------------


def note(sets: dict[str, Record], text: str) -> list[str]:
    """Text below a table: how it was measured, and where."""
    machines = ", ".join(dict.fromkeys(record["cpu"] for record in sets.values()))
    parts = [text, on_seeds(sets), on_turns(sets), on_others(sets), f"{machines}."]
    command = "Made by `python -m benchmarks.dcd --write`."
    return ["", " ".join([*(line for line in parts if line), command])]


def on_seeds(sets: dict[str, Record]) -> str:
    """Number of seeds."""
    found = {len(m["seeds"]) for r in sets.values() for m in r.get("methods", {}).values()}
    if found in (set(), {1}):
        return "One seed." if found else ""
    least, most = min(found), max(found)
    count = f"{most}" if least == most else f"{least} to {most}"
    return f"Medians of {count} seeds."


def on_turns(sets: dict[str, Record]) -> str:
    """Sets whose methods were not all measured in turns."""
    apart = [
        name
        for name, record in sets.items()
        if len({found["measured"] for found in record.get("methods", {}).values()}) > 1
    ]
    return f"Not all methods were measured in turns on {', '.join(apart)}." if apart else ""


def on_others(sets: dict[str, Record]) -> str:
    """Load by other processes meanwhile, unless it is next to nothing."""
    busy = {
        name: max(
            found.get("others", 0.0) for found in record.get("methods", {"": record}).values()
        )
        for name, record in sets.items()
    }
    parts = [f"{cores:.1f} on {name}" for name, cores in busy.items() if cores > IDLE]
    return f"Cores that other processes took: {', '.join(parts)}." if parts else ""


def sizes(sets: dict[str, Record]) -> str:
    """Rows and features of sets."""
    return ", ".join(f"{name} {r['n']:,} × {r['d']}" for name, r in sets.items())


# --- tables ---------------------------------------------------------------------------------------


def of_short(result: Result) -> str:
    """For a newcomer: a line a method, CPU seconds and the worst error of every set."""
    sets = result["curves"]["sets"]
    methods = [m for m in (*PEERS, *EFFORTS) if any(m in r["methods"] for r in sets.values())]
    rows = []
    for method in methods:
        cells = [f"`DCDBundle`, {method}" if method in EFFORTS else f"scikit-learn, {method}"]
        for name, record in sets.items():
            if method not in record["methods"]:
                cells.append("–")
                continue
            worst = np.median(worst_errors(name, record, method))
            cells.append(f"{np.median(seconds(record, method)):.1f} s, {percent(worst)} %")
        rows.append(cells)
    text = (
        "CPU seconds for all partitions into 2 to 25 clusters, one thread, and how far the worst "
        f"of k = {', '.join(map(str, TABLED[:-1]))} and {TABLED[-1]} ends above the lowest "
        f"objective known. Rows: {sizes(sets)}."
    )
    return "\n".join(table_of(["", *sets], rows) + note(sets, text))
