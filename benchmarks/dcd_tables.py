"""The tables of `benchmarks.dcd`, computed from its result."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.dcd_known import LOWEST, TABLED
from benchmarks.dcd_runs import BALANCED, EFFORTS, PEERS, TEN_GREEDY
from benchmarks.tables import table_of

Result = dict[str, Any]
Record = dict[str, Any]
Array = NDArray[np.float64]

SLACK = 1e-9
"""Share of an objective by which one may be higher and is still not above another."""
IDLE = 0.2
"""Cores that other processes take on a machine that is called idle."""
GENERATED_AIM = 90.0
STORED_ABOVE, STORED_READINGS, STORED_MEMORY, PASS_SECONDS = 0.1, 25.0, 500.0, 3.0


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


def bold(told: str, held: bool) -> str:
    """A figure; in bold where it misses its aim."""
    return told if held else f"**{told}**"


def percent(value: float) -> str:
    """An error in per cent as it is written."""
    return f"{value:z.3f}" if abs(value) < 10 else f"{value:,.0f}"


# --- notes ----------------------------------------------------------------------------------------


def note(sets: dict[str, Record], part: str, text: str) -> list[str]:
    """Text below a table: how it was measured, and where."""
    machines = ", ".join(dict.fromkeys(record["cpu"] for record in sets.values()))
    parts = [text, on_seeds(sets), on_turns(sets), on_others(sets), f"{machines}."]
    command = f"Made by `python -m benchmarks.dcd --only {part} --write`."
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
    return "\n".join(table_of(["", *sets], rows) + note(sets, "curves", text))


def of_generated(result: Result) -> str:
    """Sets that nobody has looked at before, in a sentence."""
    sets, held, counted = result["generated"]["sets"], 0, 0
    ends: list[float] = []
    for record in sets.values():
        own, theirs = (np.median(values(record, m), axis=0) for m in (BALANCED, TEN_GREEDY))
        held += int(np.sum(own <= theirs * (1 + SLACK)))
        counted += len(own)
        ends += (100 * (own / theirs - 1)).tolist()
    share = bold(f"{100 * held / counted:.0f} %", 100 * held / counted >= GENERATED_AIM)
    commits = ", ".join(dict.fromkeys(record["commit"] for record in sets.values()))
    text = (
        f"On sets drawn by commit {commits}, balanced is at or below {TEN_GREEDY} (scikit-learn) "
        f"at {held} of {counted} points of k = 2 to 25, {share} (to reach: {GENERATED_AIM:.0f} %): "
        f"{percent(max(ends))} % above at most, {percent(min(ends))} % at best. Sets: "
        f"{sizes(sets)}."
    )
    return "\n".join(note(sets, "generated", text))


def of_stored(result: Result) -> str:
    """Every partition of a store."""
    sets = result["stored"]["sets"]
    [record] = sets.values()
    path, lloyd = record["path"], record["lloyd"]
    rival = float(np.median([run["value"] for run in lloyd]))
    over = 100 * (path["value"] / rival - 1)
    longest = max(path["of_readings"], default=0.0)
    rows = [
        ["partitions", f"{path['partitions']}", f"{record['k']}"],
        [f"k = {record['k']} above greedy k-means++ with Lloyd's algorithm, %",
         bold(percent(over), over <= STORED_ABOVE), f"≤ {STORED_ABOVE:g}"],
        ["readings of the store", bold(f"{path['readings']:.1f}",
         path["readings"] <= STORED_READINGS), f"≤ {STORED_READINGS:.0f}"],
        ["memory beside a chunk, MB", bold(f"{path['memory'] - path['chunk']:.0f}",
         path["memory"] - path["chunk"] <= STORED_MEMORY), f"≤ {STORED_MEMORY:.0f}"],
        ["longest step that reads all rows, CPU s", bold(f"{longest:.2f}",
         longest <= PASS_SECONDS), f"≤ {PASS_SECONDS:.0f}"],
        ["CPU s, all partitions", f"{path['seconds']:.1f}", ""],
        [f"CPU s, Lloyd's algorithm, k = {record['k']} alone",
         f"{np.median([run['seconds'] for run in lloyd]):.1f}", ""],
    ]  # fmt: skip
    text = (
        f"Set B, {path['n']:,} × {path['d']}, balanced, from a Zarr store of which nothing stays "
        f"in memory; Lloyd's algorithm on the rows in memory, median of {len(lloyd)} seeds. One "
        "thread."
    )
    return "\n".join(table_of(["what", "measured", "aim"], rows) + note(sets, "stored", text))
