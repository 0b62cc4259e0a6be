"""The tables of `benchmarks.dcd`, computed from its result and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.dcd_known import LOWEST, PAPER, TABLED
from benchmarks.dcd_methods import (
    AUTO,
    BALANCED,
    BEST,
    EFFORTS,
    EVALUATED,
    EVERY,
    PEERS,
    PLAIN,
    STAGES,
    TEN,
    TEN_GREEDY,
)
from benchmarks.dcd_methods import PAPER as PUBLISHED
from benchmarks.vcgmm_tables import table_of

__all__ = [
    "SHOWN",
    "above",
    "auto_table",
    "each_table",
    "errors",
    "generated_table",
    "hundred_table",
    "lower_table",
    "paper_table",
    "short_table",
    "stages_table",
    "stored_table",
    "summary_table",
    "tabled_table",
    "workers_table",
    "worst_errors",
]

Result = dict[str, Any]
Record = dict[str, Any]
Array = NDArray[np.float64]

SLACK = 1e-9
"""Share of an objective by which one may be higher and is still not above another."""
IDLE = 0.2
"""Cores that other processes take on a machine that is said to be idle."""
SECONDS_AIM = {"eeg": 1.5}
"""CPU seconds of "balanced" over those of ten starts; 1 elsewhere."""
WORST_AIM = {BALANCED: (0.15, None), BEST: (0.01, 0.05)}
"""Worst error of the tabled numbers of clusters, in per cent: of the median seed, of the worst."""
BEST_SECONDS = 60.0
HUNDRED_AIM, HUNDRED_SECONDS = 0.3, 120.0
AUTO_AIM = 5.0
GENERATED_AIM = 90.0
STORED_ABOVE, STORED_READINGS, STORED_MEMORY, PASS_SECONDS = 0.1, 25.0, 500.0, 3.0
WORKERS_AIM = 1.6


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


def above(record: Record, method: str, other: str) -> int:
    """At how many numbers of clusters a method ends above another one, by medians of seeds."""
    own, theirs = (np.median(values(record, m), axis=0) for m in (method, other))
    return int(np.sum(own > theirs * (1 + SLACK)))


def bold(told: str, held: bool) -> str:
    """A figure; in bold where it misses its aim."""
    return told if held else f"**{told}**"


def percent(value: float) -> str:
    """An error in per cent as it is written."""
    return f"{value:z.3f}" if abs(value) < 10 else f"{value:,.0f}"


def middle_and_worst(found: Array, form: Callable[[float], str]) -> str:
    """The median, and the worst behind it where they differ as they are written."""
    middle, worst = form(float(np.median(found))), form(float(np.max(found)))
    return middle if middle == worst else f"{middle} ({worst})"


def lower(value: float, known: float) -> bool:
    """Whether a value is below a known one in its nine digits."""
    return float(f"{value:.9g}") < known


# --- what stands beneath tables -------------------------------------------------------------------


def note(sets: dict[str, Record], part: str, text: str, *, worst: bool = False) -> list[str]:
    """What stands beneath a table: how it was measured, and where; ``worst``: seeds are shown."""
    machines = ", ".join(dict.fromkeys(record["cpu"] for record in sets.values()))
    told = [
        text,
        told_of_seeds(sets, worst=worst),
        told_of_turns(sets),
        told_of_others(sets),
        f"{machines}.",
    ]
    command = f"Made by `python -m benchmarks.dcd --only {part} --write`."
    return ["", " ".join([*(line for line in told if line), command])]


def told_of_seeds(sets: dict[str, Record], *, worst: bool) -> str:
    """How many seeds there are, and whether the worst of them is shown."""
    found = {
        len(m["seeds"])
        for record in sets.values()
        for name, m in record.get("methods", {}).items()
        if name not in (PUBLISHED, PLAIN)
    }
    if not found:
        return ""
    if found == {1}:
        return "One seed."
    least, most = min(found), max(found)
    told = f"{most}" if least == most else f"{least} to {most}"
    return f"Medians of {told} seeds{', the worst in brackets' if worst else ''}."


def told_of_turns(sets: dict[str, Record]) -> str:
    """Which methods were not measured in turns with the others."""
    apart = []
    for name, record in sets.items():
        by_time: dict[str, list[str]] = {}
        for method, found in record.get("methods", {}).items():
            by_time.setdefault(found["measured"], []).append(method)
        if len(by_time) > 1:
            groups = " | ".join(", ".join(methods) for methods in by_time.values())
            apart.append(f"{name}: {groups}")
    return f"Not measured in turns, but one after the other: {'; '.join(apart)}." if apart else ""


def told_of_others(sets: dict[str, Record]) -> str:
    """How much other processes did meanwhile, where that is not next to nothing."""
    busy = {
        name: max(
            found.get("others", 0.0) for found in record.get("methods", {"": record}).values()
        )
        for name, record in sets.items()
    }
    told = [f"{cores:.1f} on {name}" for name, cores in busy.items() if cores > IDLE]
    return f"Cores that other processes took: {', '.join(told)}." if told else ""


def sizes(sets: dict[str, Record]) -> str:
    """Rows and features of sets."""
    return ", ".join(f"{name} {r['n']:,} × {r['d']}" for name, r in sets.items())


# --- curves ---------------------------------------------------------------------------------------


def short_table(part: Result) -> str:
    """For a newcomer: a line a method, CPU seconds and the worst error of every set."""
    sets = part["sets"]
    methods = [
        m for m in (TEN, TEN_GREEDY, *EFFORTS) if any(m in r["methods"] for r in sets.values())
    ]
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


def summary_table(part: Result) -> str:
    """Seconds, worst errors, and where methods end above ten starts."""
    rows = []
    for name, record in part["sets"].items():
        for i, method in enumerate(record["methods"]):
            rows.append([name if i == 0 else "", method, *summary_cells(name, record, method)])
    head = ["set", "method", "CPU s, all k", "of ten starts'", "worst E, %",
            f"above {TEN}", f"above {TEN_GREEDY}", "at or below the lowest known",
            "evaluations", "subgradients"]  # fmt: skip
    text = (
        "E: above the lowest objective known, in per cent; the worst of k = "
        f"{', '.join(map(str, TABLED))}. Above and at or below: at how many of k = 2 to 25, by "
        "medians. Of ten starts': CPU seconds over those of the faster kind. Evaluations of f, and "
        "subgradients, of the whole fit. In bold what misses its aim: for balanced no more seconds "
        "than ten starts (1.5 times on eeg), E at most 0.15, at no k above ten starts; for best E "
        f"at most 0.01, of the worst seed 0.05, in {BEST_SECONDS:.0f} s. Rows: "
        f"{sizes(part['sets'])}."
    )
    return "\n".join(table_of(head, rows) + note(part["sets"], "curves", text, worst=True))


def summary_cells(name: str, record: Record, method: str) -> list[str]:
    """A line of it."""
    spent = seconds(record, method)
    peers = [m for m in PEERS if m in record["methods"]]
    cells = [middle_and_worst(spent, lambda v: f"{v:.2f}")]
    if method == BEST:
        cells = [bold(cells[0], float(np.median(spent)) <= BEST_SECONDS)]
    if peers and method not in PEERS:
        share = np.median(spent) / min(np.median(seconds(record, m)) for m in peers)
        in_time = method != BALANCED or float(share) <= SECONDS_AIM.get(name, 1.0)
        cells.append(bold(f"{share:.2f}x", in_time))
    else:
        cells.append("")
    worst = worst_errors(name, record, method)
    middle_aim, worst_aim = WORST_AIM.get(method, (None, None))
    held = middle_aim is None or float(np.median(worst)) <= middle_aim
    held = held and (worst_aim is None or float(np.max(worst)) <= worst_aim)
    cells.append(bold(middle_and_worst(worst, percent), held))
    for other in PEERS:
        if other not in peers or other == method:
            cells.append("")
            continue
        n_above = above(record, method, other)
        cells.append(bold(f"{n_above}", method != BALANCED or n_above == 0))
    middles = np.median(values(record, method), axis=0)
    known = [LOWEST[name][k] for k in counts_of(record, method)]
    # a known value has nine digits
    reached = sum(v <= k * (1 + 5e-9) for v, k in zip(middles, known, strict=True))
    cells.append(f"{reached} of {len(known)}")
    for what in EVALUATED:
        found = [r[what] for r in record["methods"][method]["seeds"] if what in r]
        cells.append(f"{np.median(found):,.0f}" if found else "")
    return cells


def tabled_table(part: Result) -> str:
    """Errors at the paper's numbers of clusters."""
    rows = []
    for name, record in part["sets"].items():
        for i, method in enumerate(record["methods"]):
            found, counts = errors(name, record, method), counts_of(record, method)
            cells = [middle_and_worst(found[:, counts.index(k)], percent) for k in TABLED]
            rows.append([name if i == 0 else "", method, *cells])
    text = "Above the lowest objective known, in per cent."
    head = ["set", "method", *(f"k = {k}" for k in TABLED)]
    return "\n".join(table_of(head, rows) + note(part["sets"], "curves", text, worst=True))


def each_table(part: Result) -> str:
    """Errors at every number of clusters: a line each, a column for every set and method."""
    shown = [(n, r, m) for n, r in part["sets"].items() for m in r["methods"] if m != EVERY]
    names = {TEN: "ten", TEN_GREEDY: "ten greedy"}
    rows = []
    for k in counts_of(*shown[0][1:]):
        cells = [f"{k}"]
        for name, record, method in shown:
            at = counts_of(record, method).index(k)
            cells.append(percent(float(np.median(errors(name, record, method)[:, at]))))
        rows.append(cells)
    text = (
        "Above the lowest objective known, in per cent, at every number of clusters. Ten, ten "
        "greedy: scikit-learn's ten starts."
    )
    head = ["k", *(f"{name}: {names.get(method, method)}" for name, _, method in shown)]
    return "\n".join(table_of(head, rows) + note(part["sets"], "curves", text))


def lower_table(part: Result) -> str:
    """Objectives below the lowest known, to nine digits, and by which method."""
    rows = []
    apart = 0.0
    for name, record in part["sets"].items():
        best: dict[int, tuple[float, str]] = {}
        for method, found in record["methods"].items():
            apart = max([apart, *(run["apart"] for run in found["seeds"])])
            for k, value in zip(found["counts"], values(record, method).min(axis=0), strict=True):
                best[k] = min(best.get(k, (np.inf, "")), (float(value), method))
        for k, (value, method) in sorted(best.items()):
            known = LOWEST[name][k]
            if lower(value, known):
                share = f"{100 * (value / known - 1):.2g}"
                rows.append([name, f"{k}", f"{value:.8e}", f"{known:.8e}", share, method])
    text = (
        f"Lower than what was known: {len(rows)} objectives of these runs. Each is a sum in "
        "double precision by numpy, of the squared distances of all rows to the nearest of the "
        "centres that were found; what the methods themselves tell differs from such sums by "
        f"{apart:.1g} times their value at most."
    )
    head = ["set", "k", "found", "known before", "difference, %", "by"]
    return "\n".join((table_of(head, rows) if rows else []) + note(part["sets"], "curves", text))


def stages_table(part: Result) -> str:
    """What each effort adds, and where its time goes."""
    rows = []
    for name, record in part["sets"].items():
        own = [method for method in EFFORTS if method in record["methods"]]
        for i, method in enumerate(own):
            found = errors(name, record, method)
            cells = [name if i == 0 else "", method]
            cells += [
                f"{np.median(seconds(record, method)):.2f}",
                percent(float(np.median(found.max(axis=1)))),
                percent(float(np.median(found.mean(axis=1)))),
                percent(float(np.median(worst_errors(name, record, method)))),
            ]
            runs = record["methods"][method]["seeds"]
            cells += [stage_cell(runs, stage) for stage in STAGES]
            rows.append(cells)
    head = ["set", "effort", "CPU s", "worst E of all k, %", "mean E of all k, %",
            "worst of the tabled, %", *(f"{stage}: steps, s" for stage in STAGES)]  # fmt: skip
    text = (
        "All partitions into 2 to 25 clusters. Every effort has one stage or two more than the one "
        "before it: how many steps each stage takes, and wall seconds."
    )
    if not rows:
        return "\n".join(note(part["sets"], "curves", "No effort was measured yet.")).strip()
    return "\n".join(table_of(head, rows) + note(part["sets"], "curves", text))


def stage_cell(runs: Sequence[Record], stage: str) -> str:
    """Steps and seconds of a stage, medians of the seeds; nothing where it has no part."""
    found = [run["stages"][stage] for run in runs if stage in run.get("stages", {})]
    if not found:
        return ""
    steps, spent = (np.median([f[key] for f in found]) for key in ("steps", "seconds"))
    return f"{steps:.0f}, {spent:.2f}"


# --- the paper ------------------------------------------------------------------------------------


def paper_table(part: Result) -> str:
    """Published methods against the paper's own figures."""
    rows, missed, counted = [], [], 0
    for name, record in part["sets"].items():
        for i, method in enumerate(record["methods"]):
            counts, [found] = counts_of(record, method), values(record, method)
            cells = [name if i == 0 else "", method]
            for k in TABLED:
                if k not in counts:
                    cells.append("")
                    continue
                value, printed = float(found[counts.index(k)]), PAPER[name][k]
                error = printed.bundle if method == PUBLISHED else printed.dcclust
                held = method != PUBLISHED or value <= printed.bound
                counted += method == PUBLISHED
                if not held:
                    missed.append(f"{name} k = {k}")
                cells.append(
                    bold(f"{100 * (value / printed.best - 1):z.2f}", held) + f" ({error:.2f})"
                )
            [run] = record["methods"][method]["seeds"]
            cells += [f"{run[what]:,.0f}" if what in run else "" for what in EVALUATED]
            rows.append([*cells, f"{run['seconds']:.1f}"])
    told = f"above at {', '.join(missed)}" if missed else "above at none"
    text = (
        "Above the best objective that the paper knows (not the lowest known here), in per cent, "
        "and behind it the paper's own figure; that of DCClust for plain DC, which is our reading "
        f"of a method that the paper cites. Of {counted} points of DCD-Bundle as published {told}. "
        "Evaluations, subgradients and CPU seconds of all partitions up to the last that is shown. "
        "Without chance: one run."
    )
    head = ["set", "method", *(f"k = {k}" for k in TABLED), *EVALUATED, "CPU s"]
    return "\n".join(table_of(head, rows) + note(part["sets"], "paper", text))


# --- other parts ----------------------------------------------------------------------------------


def hundred_table(part: Result) -> str:
    """Errors with a hundred clusters."""
    rows = []
    for name, record in part["sets"].items():
        for i, method in enumerate(record["methods"]):
            found, spent = errors(name, record, method), seconds(record, method)
            cells = [name if i == 0 else "", method]
            told = middle_and_worst(found[:, 0], percent)
            cells.append(bold(told, method != BEST or float(np.median(found)) <= HUNDRED_AIM))
            held = method != BEST or float(np.median(spent)) <= HUNDRED_SECONDS
            cells.append(bold(middle_and_worst(spent, lambda v: f"{v:.1f}"), held))
            value = float(values(record, method).min())
            below = lower(value, LOWEST[name][100])
            rows.append([*cells, f"{value:.8e}" if below else ""])
    text = (
        "k = 100: above the lowest objective known, in per cent, and CPU seconds, of ours for all "
        "partitions into 2 to 100 clusters, of ten starts for the last of them only. Last column: "
        f"what is lower than the lowest known. Aim of best: at most {HUNDRED_AIM} % in "
        f"{HUNDRED_SECONDS:.0f} s."
    )
    head = ["set", "method", "E, %", "CPU s", "lower"]
    return "\n".join(table_of(head, rows) + note(part["sets"], "hundred", text, worst=True))


def auto_table(part: Result) -> str:
    """The default with few clusters where few rows lie far out."""
    rows = []
    counts = [10, 15, 20, 25]
    for name, record in part["sets"].items():
        for i, method in enumerate(record["methods"]):
            found = errors(name, record, method)
            cells = [name if i == 0 else "", f"`{method}`"]
            for column in found.T:
                held = method != AUTO or float(column.max()) <= AUTO_AIM
                cells.append(bold(middle_and_worst(column, percent), held))
            rows.append([*cells, f"{np.median(seconds(record, method)):.2f}"])
    text = (
        "Above the lowest objective known, in per cent; CPU seconds of the four fits together. "
        f"No seed of the default is to end more than {AUTO_AIM:.0f} % above."
    )
    head = ["set", "", *(f"k = {k}" for k in counts), "CPU s"]
    return "\n".join(table_of(head, rows) + note(part["sets"], "auto", text, worst=True))


def generated_table(part: Result) -> str:
    """Sets that nobody has looked at before."""
    rows, held, counted = [], 0, 0
    for name, record in part["sets"].items():
        if not {BALANCED, TEN_GREEDY} <= set(record["methods"]):
            continue
        own, theirs = (np.median(values(record, m), axis=0) for m in (BALANCED, TEN_GREEDY))
        below = own <= theirs * (1 + SLACK)
        held, counted = held + int(below.sum()), counted + len(below)
        ours, peer = (float(np.median(seconds(record, m))) for m in (BALANCED, TEN_GREEDY))
        excess = 100 * (own / theirs - 1)
        rows.append(
            [
                name,
                f"{record['n']:,} × {record['d']}",
                f"{int(below.sum())} of {len(below)}",
                percent(float(excess.max())),
                percent(float(excess.min())),
                f"{ours:.1f}",
                f"{peer:.1f}",
            ]
        )
    if not rows:
        return "\n".join(note(part["sets"], "generated", "Balanced was not measured yet.")).strip()
    share = bold(f"{100 * held / counted:.0f} %", 100 * held / counted >= GENERATED_AIM)
    commits = ", ".join(dict.fromkeys(record["commit"] for record in part["sets"].values()))
    text = (
        f"Balanced against {TEN_GREEDY} (scikit-learn) at each of k = 2 to 25, on sets drawn by "
        f"commit {commits}: at or below at {held} of {counted} points, {share} (to reach: "
        f"{GENERATED_AIM:.0f} %). Difference of the objectives in per cent, CPU seconds for all k."
    )
    head = ["set", "rows", "at or below", "highest above, %", "lowest, %", "balanced, s", "ten, s"]
    return "\n".join(table_of(head, rows) + note(part["sets"], "generated", text))


def stored_table(part: Result) -> str:
    """Every partition of a store."""
    [record] = part["sets"].values()
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
    return "\n".join(
        table_of(["what", "measured", "aim"], rows) + note(part["sets"], "stored", text)
    )


def workers_table(part: Result) -> str:
    """One worker and two."""
    [record] = part["sets"].values()
    one, two = (record["runs"][n] for n in ("1", "2"))

    def middle(runs: Sequence[Record], of: Callable[[Record], float]) -> float:
        return float(np.median([of(run) for run in runs]))

    rows = []
    kinds: Iterable[tuple[str, Callable[[Record], float], float | None]] = (
        ("a whole fit, with labels", lambda run: run["seconds"], WORKERS_AIM),
        ("its steps that go through all rows", lambda run: sum(run["of_readings"]), None),
    )
    for what, of, aim in kinds:
        slow, fast = middle(one, of), middle(two, of)
        if fast == 0:
            continue
        sooner = slow / fast
        told = bold(f"{sooner:.2f}x", aim is None or sooner >= aim)
        rows.append([what, f"{slow:.1f}", f"{fast:.1f}", told, "" if aim is None else f"≥ {aim}x"])
    text = (
        f"{record['n']:,} × {record['d']}, all partitions into 1 to {record['k']} clusters, from a "
        f"Zarr store, local workers of one thread each, wall seconds, medians of {len(one)} turns; "
        "the same bits on both."
    )
    head = ["", "one worker, s", "two workers, s", "sooner", "aim"]
    return "\n".join(table_of(head, rows) + note(part["sets"], "workers", text))


def curves_tables(part: Result) -> str:
    """All tables of the curves, for whoever has measured them."""
    made = (short_table, summary_table, tabled_table, lower_table, stages_table)
    return "\n\n".join(make(part) for make in made)


SHOWN: dict[str, Callable[[Result], str]] = {
    "curves": curves_tables,
    "paper": paper_table,
    "hundred": hundred_table,
    "auto": auto_table,
    "generated": generated_table,
    "stored": stored_table,
    "workers": workers_table,
}
"""What makes the tables of a part."""


def _of_part(part: str, make: Callable[[Result], str]) -> Callable[[Result], str]:
    """What makes a table of the results of all parts."""

    def made(whole: Result) -> str:
        if part in whole:
            return make(whole[part])
        return f"Not measured: `python -m benchmarks.dcd --only {part} --write` does."

    return made


of_short = _of_part("curves", short_table)
of_summary = _of_part("curves", summary_table)
of_tabled = _of_part("curves", tabled_table)
of_each = _of_part("curves", each_table)
of_lower = _of_part("curves", lower_table)
of_stages = _of_part("curves", stages_table)
of_paper = _of_part("paper", paper_table)
of_hundred = _of_part("hundred", hundred_table)
of_auto = _of_part("auto", auto_table)
of_generated = _of_part("generated", generated_table)
of_stored = _of_part("stored", stored_table)
of_workers = _of_part("workers", workers_table)
