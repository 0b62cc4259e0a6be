"""Make the tables of `benchmarks.papers` from its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.dcd_tables import COUNTS, LOWEST, percent
from benchmarks.tables import table_of

Result = dict[str, Any]
Record = dict[str, Any]

NOT_RUN = "not run"
CASES: dict[str, tuple[str, ...]] = {
    "nmbatch": ("mnist-50", "sift200k-50", "A-50"),
    "vrkm": ("mnist-50", "A-50"),
    "vcgmm": ("A-1000", "sift200k-1000", "A-2000", "A-4000"),
    "dcd": ("d15112-25", "eeg-25", "shuttle-25", "pla85900-25"),
}
RHOS = (0.1, 1.0, 10.0, 100.0, 1000.0)
RATES = (3, 10, 100)
"""Multiples of the learning rate K / n in figure 7 of the paper on VRKM."""
LIMITS = {"nmbatch": 2.0, "vrkm": 6.0, "dcd": 20.0}
"""Time limits of runs, in CPU seconds."""
BATCH, PASSES = 5_000, 20
"""Size of the first batch, and number of passes of batch k-means that define the baseline."""
DRAWS, CHAIN = 32_768, 20
"""Number of draws of every coreset, and length of the chains that select seeds."""
CPU = """
d15112   2 0.79 0.93     5 2.55 3.21     10 5.58 8.00      15 10.05 18.18    25 29.37 53.89
eeg      2 0.15 0.44     5 0.76 2.66     10 9.07 18.63     15 23.14 49.07    25 59.31 137.86
shuttle  2 0.40 1.19     5 39.27 21.26   10 138.48 78.65   15 531.97 290.63  25 778.04 774.88
pla85900 2 16.27 15.63   5 62.17 60.87   10 141.46 145.04  15 231.45 254.82  25 450.94 529.44
"""
"""Clusters and CPU seconds of DCD-Bundle and DCClust in tables 3, 4, 6 and 7 of their paper."""
THEIRS = {
    line.split()[0]: np.array(line.split()[1:], float).reshape(-1, 3)
    for line in CPU.strip().splitlines()
}
CLAIMS = {"lloyd": "1", "VRKM": "2.0 to 2.6", "VRKM++": "3.6 to 5.5", "growbatch-rho": "1.3, never"}
"""Speedups in table 3 of the paper on VRKM."""


def seeds_of(result: Result, part: str, case: str) -> list[Record]:
    found = [r for key, r in result["records"].items() if key.startswith(f"{part} {case} ")]
    return found


def sets_of(result: Result, part: str) -> dict[str, list[Record]]:
    found = {name: seeds_of(result, part, name) for name in CASES[part]}
    return {name: records for name, records in found.items() if records}


def note(result: Result, part: str, text: str) -> list[str]:
    sets = sets_of(result, part)
    sizes = {n.split("-")[0]: f"{r[0]['n']:,} × {r[0]['d']}" for n, r in sets.items()}
    rows = ", ".join(f"{name} ({size})" for name, size in sizes.items())
    missing = [name for name in CASES[part] if name not in sets]
    text += f" Not run: {', '.join(missing)}." if missing else ""
    counts = sorted({len(records) for records in sets.values()})
    many = " to ".join(dict.fromkeys(map(str, counts[:1] + counts[-1:])))
    seeds = "from one seed" if counts == [1] else f"medians of {many} seeds"
    return [
        "",
        f"{text} Data sets (rows × features): {rows}. Times are CPU seconds on one thread of a "
        f"shared machine, {seeds}. Processor: {result['cpu']}. This table was made by `python -m "
        f"benchmarks.papers --only {part} "
        "--write`.",
    ]


def middle(records: Sequence[Record], get: Callable[[Record], float | None]) -> float:
    """Return the median over seeds; infinite if most of them lack the value."""
    found = [get(record) for record in records]
    return float(np.median([np.inf if value is None else value for value in found]))


def reached(records: Sequence[Record], method: str, level: str, what: str) -> float:
    return middle(records, lambda r: r["runs"][method]["to"].get(level, {}).get(what))


def written(value: float, form: str = ".2f") -> str:
    """Format a value, or "never" if it is infinite."""
    return format(value, form) if np.isfinite(value) else "never"


def to_level(records: Sequence[Record], method: str, level: str) -> str:
    """Format seconds and millions of distances until an energy."""
    seconds, met = (reached(records, method, level, what) for what in ("seconds", "distances"))
    return f"{seconds:.2f} s, {met / 1e6:.1f} M" if np.isfinite(seconds) else "never"


def of_nmbatch(result: Result) -> str:
    """Make the table of nested batches (figures 2 and 3)."""
    sets, rows = sets_of(result, "nmbatch"), []
    for level, rhos in (("2", (100.0,)), ("1", RHOS)):
        for name in ("lloyd", "mbatch"):
            cells = [to_level(records, name, level) for records in sets.values()]
            rows.append([f"{level} %, {name}", *cells])
        for rho in rhos:
            cells = [f"{level} %, `NMBatch.paper(rho={rho:g})`"]
            for records in sets.values():
                both = [to_level(records, f"rho {rho:g}, {b}", level) for b in ("lower", "None")]
                cells.append(" → ".join(dict.fromkeys(both)))
            rows.append(cells)
    head = ["within, method", *(name.replace("-", ", k = ") for name in sets)]
    text = (
        "The table shows CPU seconds and millions of distances until the energy of a run is within "
        "2 or 1 % of the lowest energy of all runs. All runs start from the same random rows. For "
        "nested batches, the first result is with bounds and the second with `bounds=None`. The "
        f'first batch has {BATCH:,} rows. Runs stop after {LIMITS["nmbatch"]:g} seconds; "never" '
        "means that a run did not reach the energy in this time."
    )
    return "\n".join(table_of(head, rows) + note(result, "nmbatch", text))


METHODS = {
    "lloyd": "batch k-means",
    "mbatch": "mini-batches",
    "SGD-KM": "SGD-KM, `MiniBatch(1)`",
    "growbatch-rho": "growbatch-ρ, `NMBatch.paper()`",
    "VRKM": "`VRKM.paper(plus_plus=False)`",
    "VRKM++": "`VRKM.paper()`, VRKM++",
    "epoch 0.25": "`epoch=0.25` (figure 6)",
    "epoch 0.5": "`epoch=0.5`",
    "epoch 2.0": "`epoch=2.0`",
    "epoch 2^s": '`epoch="2^s"`',
    "eta 3": "η = 3 K / n (figure 7)",
    "eta 10": "η = 10 K / n",
    "eta 100": "η = 100 K / n",
}


def of_vrkm(result: Result) -> str:
    """Make the table of VRKM and batch k-means (table 3, figures 3 and 5 to 7)."""
    sets, rows = sets_of(result, "vrkm"), []
    for method, label in METHODS.items():
        cells = [label, CLAIMS.get(method, "never" if method in ("mbatch", "SGD-KM") else "")]
        for records in sets.values():
            seconds, passes = (reached(records, method, "batch", w) for w in ("seconds", "passes"))
            unit = reached(records, "lloyd", "batch", "seconds")
            lows = [r["runs"][method]["lowest"] / r["levels"]["batch"] for r in records]
            end = 100 * (float(np.median(lows)) - 1)
            speed = f" ({unit / seconds:.2f}x), {passes:.0f}" if np.isfinite(seconds) else ""
            cells += [f"{written(seconds)}{speed}", f"{end:+.2f} %"]
        rows.append(cells)
    rows.append(["no position correction (figure 3)", "diverges"])
    for records in sets.values():
        met = records[0]["uncorrected"]
        rows[-1] += ["energies " + " → ".join(f"{value / met[0]:.3g}" for value in met), ""]
    head = ["method", "speedup in the paper"]
    for name in sets:
        head += [name.replace("-", ", k = ") + ": s (speedup), passes", "lowest energy"]
    text = (
        "The table shows the seconds until a method reaches the energy of batch k-means after "
        f"{PASSES} passes, from the same random rows. The speedup over batch k-means is in "
        "brackets, followed by the number of passes over the rows. A pass is one distance per row "
        f"and centre. The lowest energy in {LIMITS['vrkm']:g} seconds is relative to the energy of "
        f"batch k-means after {PASSES} passes. The last line shows the energies after successive "
        "epochs, as multiples of the first energy."
    )
    return "\n".join(table_of(head, rows) + note(result, "vrkm", text))


def of_vcgmm(result: Result) -> str:
    """Make the table of LWCS and vc-GMM on the same draws (tables 2 and 4)."""
    rows = []
    for case, records in sets_of(result, "vcgmm").items():
        name, k = case.split("-")
        least = middle(records, lambda r: r["runs"]["LWCS"]["energy"])
        for method in dict.fromkeys(m for r in records for m in r["runs"]):
            own = [r["runs"][method] for r in records if method in r["runs"]]
            figures = {key: float(np.median([r[key] for r in own])) for key in own[0]}
            rows.append(
                [
                    f"{name}, {int(k):,}, {method}",
                    f"{figures['seconds']:.2f} ({figures['start']:.2f})",
                    f"{figures['iterations']:.0f}",
                    f"{figures['distances'] / 1e6:,.0f}",
                    f"{figures['F']:.3f}",
                    f"{figures['energy']:.5g}",
                    "" if method == "LWCS" else f"{100 * (figures['energy'] / least - 1):+.1f} %",
                ]
            )
    head = ["set, components, method", "seconds (of these: start)", "iterations", "10⁶ distances",
            "F", "energy", "energy relative to LWCS"]  # fmt: skip
    text = (
        f"LWCS is k-means on the coreset, with the same {DRAWS:,} independent draws and the same "
        f"seeds (AFK-MC² with chains of {CHAIN}) as vc-GMM. Both methods stop when F changes by "
        "less than 1e-4. F is given per training row; for LWCS, F is computed from hard "
        f"assignments. Energies refer to all rows. vc-GMM is `VCGMM.paper(coreset={DRAWS})`; the "
        "lines 3 + 1 add `candidates=3, explore=1`, and var-GMM-S uses `coreset=None`."
    )
    return "\n".join(table_of(head, rows) + note(result, "vcgmm", text))


def of_dcd(result: Result) -> str:
    """Make the table of DCD-Bundle and plain DC (tables 3, 4, 6 and 7)."""
    rows = []
    for name in LOWEST:
        if not (records := seeds_of(result, "dcd", f"{name}-{COUNTS[-1]}")):
            rows.append([name, *[NOT_RUN] * 6])
            continue
        runs = records[0]["runs"]
        k = 1 + min(map(len, runs.values()))
        cells = [name, str(k)]
        at = {method: steps[k - 2] for method, steps in runs.items()}
        ratio = at["bundle"]["seconds"] / at["plain"]["seconds"]
        cells.append(f"{at['bundle']['seconds']:.1f}: {at['plain']['seconds']:.1f}")
        their_k, bundle, plain = THEIRS[name][THEIRS[name][:, 0] <= k][-1]
        cells += [f"{ratio:.2f}", f"{bundle / plain:.2f} (k = {their_k:.0f})"]
        cells.append(": ".join(f"{at[m]['values']:,.0f}" for m in ("bundle", "plain")))
        errors = [
            100 * max(runs[m][i]["inertia"] / LOWEST[name][i + 2] - 1 for i in range(k - 1))
            for m in ("bundle", "plain")
        ]
        cells.append(": ".join(percent(error) for error in errors))
        rows.append(cells)
    head = ["set", "k", "seconds, bundle: plain", "ratio", "ratio in the paper",
            "values of f, bundle: plain", "worst error in %, bundle: plain"]  # fmt: skip
    text = (
        '"Bundle" is `DCDBundle.paper()`, and "plain" is the same with `descent="plain"`, our '
        "interpretation of DCClust. Seconds are for all partitions up to k clusters, where k is "
        f"the largest number that both methods reached in about {LIMITS['dcd']:g} seconds each. "
        "Each evaluation of f computes one distance per row and centre. The worst error is the "
        "largest excess over the lowest known objective."
    )
    return "\n".join(table_of(head, rows) + note(result, "dcd", text))
