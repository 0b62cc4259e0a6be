"""Make the table of `benchmarks.dcd`, and store the lowest known objectives.

These objectives need not be optimal. Those for 2, 3, 5, 10, 15, 20 and 25 clusters come from
hundreds of starts, swaps of centres, single-row moves and recombination; the others come from one
short search each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import table_of

Result = dict[str, Any]
Record = dict[str, Any]
Array = NDArray[np.float64]

BEST = "best"
EFFORTS = ("fast", "balanced", BEST)
TEN, TEN_GREEDY = "ten k-means++ starts", "ten greedy k-means++ starts"
PEERS = (TEN, TEN_GREEDY)
SETS = ("d15112", "eeg", "shuttle", "pla85900")
TABLED = (2, 3, 5, 10, 15, 20, 25)
"""Numbers of clusters in the tables of the paper on DCD-Bundle (Karmitsa, Bagirov, Taheri)."""
COUNTS = tuple(range(2, 26))
_UNITS = (1e11, 1e8, 1e8, 1e15)
_SEEN = """
2    3.68403052     7845.09934     21.3432912     3.74908407
3    2.53239985     1833.88058     10.8541525     2.28057237
4    1.73603152     2.23605499     8.86909725     1.59307737
5    1.32706551     1.338576       7.24479099     1.3396834
6    1.11552736     0.842584349    5.63336889     1.13662699
7    0.932079069    0.677143872    4.33839875     0.97110085
8    0.816951455    0.571311362    3.70712735     0.837740772
9    0.713069566    0.493970876    3.26798061     0.746602414
10   0.644900582    0.453057412    2.83166258     0.68294149
11   0.590882016    0.422969878    2.40593888     0.62751361
12   0.544995223    0.39676564     2.14136367     0.575043782
13   0.50121512     0.378675933    1.92579099     0.531758836
14   0.465454605    0.36106098     1.71056729     0.493128782
15   0.431360035    0.346521412    1.53153807     0.460293737
16   0.400830045    0.332409279    1.37256241     0.433497713
17   0.379354435    0.319432879    1.23694765     0.409968933
18   0.358074201    0.307731915    1.15030312     0.388137331
19   0.339383255    0.298040998    1.0828961      0.368424589
20   0.321771213    0.289849122    1.02117843     0.349810482
21   0.305779627    0.282268804    0.961435113    0.332657299
22   0.289939532    0.276195578    0.903392308    0.319105461
23   0.276130408    0.270540641    0.846899295    0.306022843
24   0.264386416    0.265023817    0.799389004    0.293763913
25   0.252999952    0.259481819    0.758896624    0.282215664
"""
"""Columns: number of clusters, and the lowest objective found on each set, in the unit of the
set."""
LOWEST: dict[str, dict[int, float]] = {
    name: {
        int(words[0]): float(f"{float(words[i]) * unit:.9g}")
        for words in map(str.split, _SEEN.strip().splitlines())
    }
    for i, (name, unit) in enumerate(zip(SETS, _UNITS, strict=True), 1)
}
"""Lowest objectives found, by set and number of clusters."""
IDLE = 0.2
"""Number of cores that other processes may use on an idle machine."""


def values(record: Record, method: str) -> Array:
    """Return (seeds, counts) objectives."""
    return np.array([run["values"] for run in record["methods"][method]["seeds"]])


def seconds(record: Record, method: str) -> Array:
    """Return (seeds,) CPU seconds for all numbers of clusters."""
    return np.array([run["seconds"] for run in record["methods"][method]["seeds"]])


def worst_errors(name: str, record: Record, method: str) -> Array:
    """Return (seeds,) largest excesses over the lowest known objectives in TABLED, in per cent."""
    tabled = [COUNTS.index(k) for k in TABLED]
    lowest = np.array([LOWEST[name][k] for k in TABLED])
    found: Array = (100 * (values(record, method)[:, tabled] / lowest - 1)).max(axis=1)
    return found


def percent(value: float) -> str:
    """Format an error in per cent."""
    return f"{value:z.3f}" if abs(value) < 10 else f"{value:,.0f}"


def of_short(result: Result) -> str:
    """Return a table with the CPU seconds and the worst error of each method on each set."""
    sets = result["curves"]["sets"]
    rows = []
    for method in (*PEERS, *EFFORTS):
        cells = [f"`PartitionPath`, {method}" if method in EFFORTS else f"scikit-learn, {method}"]
        for name, record in sets.items():
            worst = np.median(worst_errors(name, record, method))
            cells.append(f"{np.median(seconds(record, method)):.1f} s, {percent(worst)} %")
        rows.append(cells)
    sizes = ", ".join(f"{name} ({r['n']:,} × {r['d']})" for name, r in sets.items())
    counts = sorted(len(record["methods"][BEST]["seeds"]) for record in sets.values())
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    machines = ", ".join(dict.fromkeys(record["cpu"] for record in sets.values()))
    text = (
        "The table shows CPU seconds on one thread for all partitions into 2 to 25 clusters, and "
        "the largest excess of the objective over the lowest known objective for k = "
        f"{', '.join(map(str, TABLED[:-1]))} and {TABLED[-1]}. Data sets (rows × features): "
        f"{sizes}. Values are medians of {seeds} seeds.{on_others(sets)} Processor: {machines}. "
        "This table was made by `python -m benchmarks.dcd --write`."
    )
    return "\n".join([*table_of(["", *sets], rows), "", text])


def on_others(sets: dict[str, Record]) -> str:
    """Return a sentence about the load by other processes, or an empty string if it is small."""
    busy = {name: record["methods"][BEST]["others"] for name, record in sets.items()}
    parts = [f"{cores:.1f} on {name}" for name, cores in busy.items() if cores > IDLE]
    return f" Cores used by other processes at the same time: {', '.join(parts)}." if parts else ""
