"""The tables of `benchmarks.vrkm`, computed from its result and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.vcgmm_tables import against, table_of
from benchmarks.vrkm_levels import (
    OF_END,
    after,
    at_base,
    ends,
    excesses,
    median,
    near_base,
    near_end,
    passes_of,
    ratios,
    reach,
    spread,
    to_level,
)
from benchmarks.vrkm_methods import (
    BATCH,
    EPOCHS,
    ETAS,
    LLOYD,
    MOVES,
    NMBATCH,
    ONE_ROW,
    ONE_ROW_TEN,
    RELAXED,
    ROUNDS,
    ROUNDS_ONE,
    SEARCHED,
    TABLE,
    TABLE_ALL,
    TRUNCATED,
    of_epoch,
    of_eta,
    of_svrg,
)

__all__ = [
    "MARKS",
    "OF_RELAXED",
    "SHOWN",
    "auto_table",
    "epoch_table",
    "eta_table",
    "panels_table",
    "published_table",
    "scores_table",
    "sparse_table",
    "storage_table",
    "svrg_table",
    "table_table",
    "told_of_seeds",
    "workers_table",
]

MARKS = (2.0, 4.0, 6.0, 10.0, 20.0)
"""Passes after which objectives are shown."""
OF_RELAXED = (0.01, 0.005, 0.002, 0.0)
"""Energies above that of 20 relaxed passes, as a share of it, to which passes are counted."""
FOUR = ("mnist-50", "sift200k-100", "glove100k-100", "A-100")
SEVEN = (*FOUR, "A-1000", "B-100", "B-1000")
"""Sets that the aims are about."""

Result = dict[str, Any]
Record = dict[str, Any]


# --- what stands beneath tables -------------------------------------------------------------------


def told_of_seeds(sets: dict[str, Record], kind: str = "medians (quartiles)") -> str:
    """How many seeds there are, set by set where they differ."""
    of: dict[int, list[str]] = {}
    for name, record in sets.items():
        of.setdefault(len(record["seeds"]), []).append(name)

    def told(n: int) -> str:
        return "one seed" if n == 1 else f"{kind} of {n} seeds"

    if len(of) == 1:
        return told(next(iter(of)))
    return "; ".join(f"{', '.join(names)}: {told(n)}" for n, names in sorted(of.items()))


def note(sets: dict[str, Record], part: str, text: str, seeds: str | None = None) -> list[str]:
    """What stands beneath a table."""
    machines = ", ".join(dict.fromkeys(record["cpu"] for record in sets.values()))
    seeds = told_of_seeds(sets) if seeds is None else seeds
    return [
        "",
        f"{text} {seeds[:1].upper()}{seeds[1:]}. {machines}. Made by "
        f"`python -m benchmarks.vrkm --only {part} --write`.",
    ]


def held(values: dict[str, float], aim: float, *, least: bool = False) -> str:
    """On how many of the sets a figure reaches its aim."""
    there = [value >= aim if least else value <= aim for value in values.values()]
    return f"{sum(there)} of {len(there)}"


def about(sets: dict[str, Record]) -> str:
    """The sizes of sets."""
    told = [f"{name} {r['n']:,} × {r['d']:,}" for name, r in sets.items()]
    return f"Rows: {', '.join(told)}; the number behind a set is k."


# --- published methods ----------------------------------------------------------------------------


def published_table(part: Result) -> str:
    """The paper's table 3, and what had to come out."""
    sets, rows = part["sets"], []
    for name, record in sets.items():
        for method in record["seeds"][0]["runs"]:
            cells = [name if method == BATCH else "", method]
            cells += [
                spread([median(excesses(record, method, mark))], "+.2f", "diverged")
                for mark in MARKS[:-1]
            ]
            cells.append(spread(excesses(record, method, MARKS[-1]), "+.2f", "diverged"))
            seconds = to_level(record, method, at_base, 1)
            cells += [
                spread(to_level(record, method, near_base, 0), ".1f"),
                spread(to_level(record, method, near_base, 1), ".2f"),
                spread(to_level(record, method, at_base, 0), ".1f"),
                spread(seconds, ".2f"),
                speedup(to_level(record, BATCH, at_base, 1), seconds),
            ]
            rows.append(cells)
    head = ["set", "method", *(f"after {mark:g} passes, %" for mark in MARKS), "to 1.005x: passes",
            "s", "to 1x: passes", "s", "speedup"]  # fmt: skip
    text = (
        "Objective above that of 20 passes of batch KM, and passes and CPU seconds (one thread) "
        "to 1.005 and 1 times that; speedup: batch KM's seconds to 1x over the method's. An epoch "
        "of VRKM++ is two passes, of VRKM three; η is K/n where nothing else is said. SGD-KM and "
        "VRKM without rounds take one row after the other, in the paper's order. All start from "
        f"the same {start_told(sets)}. {about(sets)}"
    )
    whole = [*table_of(head, rows), "", *published_aims(sets)]
    return "\n".join(whole + note(sets, "published", text))


def start_told(sets: dict[str, Record]) -> str:
    """Where starts came from."""
    planned = [name for name, record in sets.items() if record["start"] != "random"]
    other = f" (k-means++ rows on {', '.join(planned)})" if planned else ""
    return f"random rows{other}"


def speedup(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """How many times sooner, in the median of seeds; as in the paper none where one never is."""
    value = median(ratios(ours, theirs))
    return f"{1 / value:.2f}x" if 0 < value < np.inf else "–"


def apart(record: Record) -> float:
    """The largest difference of rounds from one row at a time, in per cent at the same passes."""
    found = 0.0
    for one, many in ((ONE_ROW, ROUNDS_ONE), (ONE_ROW_TEN, ROUNDS)):
        for mark in MARKS:
            gaps = [
                100 * (after(seed["runs"][many], mark) / after(seed["runs"][one], mark) - 1)
                for seed in record["seeds"]
            ]
            found = max(found, abs(median(gaps)))
    return found


def published_aims(sets: dict[str, Record]) -> list[str]:
    """What had to come out of the published methods, with misses in bold."""
    shown = {name: record for name, record in sets.items() if name in SEVEN}

    def passes(method: str, level: Callable[[Record], float]) -> dict[str, float]:
        return {name: median(to_level(r, method, level, 0)) for name, r in shown.items()}

    by_row = {n: r for n, r in shown.items() if ONE_ROW in r["seeds"][0]["runs"]}
    like_lloyd = {
        name: median(
            ratios(
                to_level(r, ONE_ROW if name in by_row else ROUNDS_ONE, near_base, 0),
                to_level(r, BATCH, near_base, 0),
            )
        )
        for name, r in shown.items()
    }
    in_time = {
        name: median(ratios(to_level(r, ROUNDS, near_base, 1), to_level(r, BATCH, near_base, 1)))
        for name, r in shown.items()
    }
    rows_apart = {name: apart(r) for name, r in by_row.items()}
    lines: list[tuple[str, dict[str, float], float, float, str]] = [
        ("η = K/n: passes to 1.005x over batch KM's", like_lloyd, 0.75, 1.25, ".2f"),
        ("rounds, 10 K/n: passes to 1.005x", passes(ROUNDS, near_base), 0, 6, ".1f"),
        ("rounds, 10 K/n: passes to 1x", passes(ROUNDS, at_base), 0, 10, ".1f"),
        ("rounds and one row at a time, same η: apart at most, %", rows_apart, 0, 0.3, ".2f"),
        ("rounds, 10 K/n: seconds to 1.005x over dense Lloyd's", in_time, 0, 0.6, ".2f"),
    ]
    rows = []
    for what, values, least, most, form in lines:
        cells = [
            "–" if name not in values else cell(values[name], form, least, most) for name in shown
        ]
        rows.append([what, f"{least:g} to {most:g}" if least else f"≤ {most:g}", *cells])
    return table_of(["median of seeds", "to hold", *shown], rows)


def cell(value: float, form: str, least: float, most: float) -> str:
    """A figure; in bold where it misses its aim."""
    told = format(value, form) if np.isfinite(value) else "never"
    return told if least <= value <= most else f"**{told}**"


def curves_table(part: Result, name: str, methods: Sequence[str], text: str) -> str:
    """Objectives after passes, a line a set and method."""
    sets, rows = part["sets"], []
    for case, record in sets.items():
        for method in methods:
            cells = [case if method == methods[0] else "", method]
            cells += [
                spread(excesses(record, method, mark), "+.2f", "diverged") for mark in MARKS[1:]
            ]
            cells.append(spread(to_level(record, method, near_base, 0), ".1f"))
            cells.append(spread(to_level(record, method, at_base, 0), ".1f"))
            rows.append(cells)
    head = ["set", "", *(f"after {mark:g} passes, %" for mark in MARKS[1:]), "passes to 1.005x",
            "to 1x"]  # fmt: skip
    return "\n".join(table_of(head, rows) + note(sets, name, text))


def epoch_table(part: Result) -> str:
    """The paper's figure 6."""
    methods = [BATCH, *(of_epoch(share, eta) for eta in (1, 10) for share in EPOCHS)]
    text = (
        "VRKM++ in rounds of n/100 rows, T of them an epoch; objective above that of 20 passes of "
        "batch KM, and passes to 1.005 and 1 times that."
    )
    return curves_table(part, "epoch", methods, text)


def eta_table(part: Result) -> str:
    """The paper's figure 7, and what the guard did."""
    methods = [BATCH, *map(of_eta, ETAS)]
    largest = of_eta(ETAS[-1])
    found = []
    for case, record in part["sets"].items():
        runs = [seed["runs"][largest] for seed in record["seeds"]]
        finite = all(value is not None for run in runs for value in run["energies"])
        halved = median(run["halvings"] for run in runs)
        found.append(f"{case} {halved:g}{'' if finite else ' (**not finite**)'}")
    text = (
        "VRKM++ in rounds of n/100 rows, T = n, with the guard that halves η where the objective "
        "has risen; objective above that of 20 passes of batch KM, and passes to 1.005 and 1 times "
        f"that. How often η was halved at {largest}: {', '.join(found)}."
    )
    return curves_table(part, "eta", methods, text)


def svrg_table(part: Result) -> str:
    """The paper's figure 3, and why."""
    methods = [BATCH, ROUNDS]
    methods += [of_svrg(eta, scaled) for scaled in (False, True) for eta in (1, 10)]
    text = (
        "SVRG without position correction in rounds of n/100 rows: 1/v, with the batch gradient "
        "as a mean over each cluster, as printed; v/n, with that times v/n, as a row drawn from "
        "all has it. Objective above that of 20 passes of batch KM, and passes to 1.005 and 1 "
        "times that; an epoch is two passes."
    )
    return curves_table(part, "svrg", methods, text)


def scores_table(part: Result) -> str:
    """The paper's table 4."""
    sets = part["sets"]
    first = next(iter(sets.values()))
    rows = []
    for method in first["seeds"][0]["runs"]:
        cells = [method]
        for record in sets.values():
            runs = [seed["runs"][method] for seed in record["seeds"]]
            for key in ("acc", "nmi", "purity"):
                values = np.array([run[key] for run in runs])
                cells.append(f"{values.mean():.4f} ({values.std():.4f})")
            cells.append(f"{np.median([run['passes'] for run in runs]):.1f}")
        rows.append(cells)
    head = ["method"]
    for name in sets:
        head += [f"{name}: ACC", "NMI", "purity", "passes"]
    text = (
        f"Against the {first['classes']} digits, each method after the CPU seconds that 20 passes "
        "of batch KM take. ACC matches each digit with one cluster at most, so that more clusters "
        "than digits lower it."
    )
    seeds = told_of_seeds(sets, "means (standard deviations)")
    return "\n".join(table_of(head, rows) + note(sets, "scores", text, seeds))


# --- the table of labels --------------------------------------------------------------------------


def passes_rows(sets: dict[str, Record]) -> list[list[str]]:
    """Passes to the objective of 20 Lloyd passes, and to no change."""
    rows = []
    for name, record in sets.items():
        near, base = (to_level(record, TABLE_ALL, level, 0) for level in (near_base, at_base))
        ours, theirs = (passes_of(record, method) for method in (TABLE, LLOYD))
        aimed = name not in ("shuttle-50", "eeg-25") and record["k"] <= 100
        cells = [
            name,
            spread(to_level(record, LLOYD, near_base, 0), ".0f"),
            bold(near, ".0f", 5, aimed=name != "shuttle-50"),
            spread(to_level(record, LLOYD, at_base, 0), ".0f"),
            bold(base, ".0f", 7, aimed=name != "shuttle-50"),
            spread(theirs, ".0f", "cut"),
            spread(ours, ".1f", "cut"),
        ]
        share = median(ratios(ours, theirs))
        told = f"{share:.2f}" if np.isfinite(share) else "never"
        rows.append([*cells, told if share <= 1 / 3 or not aimed else f"**{told}**"])
    return rows


def bold(values: Sequence[float], form: str, aim: float, *, aimed: bool = True) -> str:
    """Median and quartiles; in bold where the median misses its aim."""
    told = spread(values, form)
    return f"**{told}**" if aimed and median(values) > aim else told


def seconds_rows(sets: dict[str, Record]) -> tuple[list[list[str]], dict[str, dict[str, float]]]:
    """CPU seconds to near Lloyd's end, and the ratios of the table's to its rivals' by set."""
    rivals = (LLOYD, NMBATCH, TRUNCATED)
    rows: list[list[str]] = []
    found: dict[str, dict[str, float]] = {rival: {} for rival in rivals}
    for name, record in sets.items():
        ours = to_level(record, TABLE, near_end, 1)
        cells = [name, spread(ours, ".2f")]
        for rival, aim in zip(rivals, (0.5, 0.6, 1.0), strict=True):
            if rival not in record["seeds"][0]["runs"]:
                cells += ["–", "–"]
                continue
            theirs = to_level(record, rival, near_end, 1)
            share = ratios(ours, theirs)
            if name in SEVEN:
                found[rival][name] = median(share)
            cells += [spread(theirs, ".2f"), bold(share, ".2f", aim, aimed=name in SEVEN)]
        end = ends(record, TABLE)
        cells.append(bold(end, "+.2f", 0.2, aimed=name in SEVEN))
        cells.append(f"{sum(map(np.isinf, ours))}")
        rows.append(cells)
    return rows, found


def table_table(part: Result) -> str:
    """Passes, seconds and ends of the table of labels."""
    sets = part["sets"]
    first = table_of(
        ["set", "Lloyd, passes to 1.005x", "table", "Lloyd, to 1x", "table",
         "Lloyd, to no change", "table", "share"],
        passes_rows(sets),
    )  # fmt: skip
    rows, found = seconds_rows(sets)
    second = table_of(
        ["set", "table, s to +0.2 %", "Lloyd, bounds", "share", "nmbatch", "share", "truncated",
         "share", "ends, % above Lloyd's end", "seeds that never come to +0.2 %"],
        rows,
    )  # fmt: skip
    seven = {name: median(ends(r, TABLE)) for name, r in sets.items() if name in SEVEN}
    few = {name: v for name, v in found[TRUNCATED].items() if not name.endswith("-1000")}
    text = (
        "Passes to 1.005 and 1 times the objective of 20 Lloyd passes are those of a table that "
        "takes all rows from the beginning (to reach: 5 and 7, but on shuttle); all else begins "
        "with few. Passes to no change: at most a third of Lloyd's with k ≤ 100, but on shuttle "
        f"and eeg. CPU seconds to {100 * (OF_END - 1):.1f} % above where Lloyd's algorithm ends, "
        "and the table's as a share of its rivals'; the truncated search has its own start, and "
        "moves. "
        f"At most 0.35 of bounded Lloyd's on {held(found[LLOYD], 0.35)} of these sets (to reach: "
        f"5 of 7), 0.5 on {held(found[LLOYD], 0.5)} (all); 0.6 of nmbatch's on "
        f"{held(found[NMBATCH], 0.6)} (6); not slower than the truncated search on "
        f"{held(few, 1.0)} with k ≤ 100 (3 of 5). Ends at most 0.1 % above Lloyd's on "
        f"{held(seven, 0.1)} (5), 0.2 % on {held(seven, 0.2)} (all). Bold: missed. Starts: "
        f"{start_told(sets)}. {about(sets)}"
    )
    return "\n".join([*first, "", *second, *note(sets, "table", text)])


def sparse_table(part: Result) -> str:
    """The table of labels on sparse rows."""
    sets, rows = part["sets"], []
    for name, record in sets.items():
        for method in record["seeds"][0]["runs"]:
            seconds = to_level(record, method, at_base, 1)
            passes = to_level(record, method, at_base, 0)
            share = ratios(seconds, to_level(record, LLOYD, at_base, 1))
            ours = method == TABLE_ALL
            rows.append(
                [
                    name if method == LLOYD else "",
                    method,
                    spread(to_level(record, method, near_base, 0), ".1f"),
                    bold(passes, ".1f", 7, aimed=ours),
                    spread(seconds, ".2f"),
                    bold(share, ".2f", 1.0, aimed=ours),
                    spread(passes_of(record, method), ".1f", "cut"),
                    spread(ends(record, method), "+.2f"),
                ]
            )
    head = ["set", "method", "passes to 1.005x", "to 1x", "s to 1x", "share of Lloyd's",
            "passes to no change", "ends, % above Lloyd's end"]  # fmt: skip
    text = (
        "Passes and CPU seconds (one thread) to 1.005 and 1 times the objective of 20 Lloyd "
        "passes; the table on all rows is to reach 7 passes, and not to be slower than Lloyd's "
        f"algorithm; bold: missed. {about(sets)}"
    )
    return "\n".join(table_of(head, rows) + note(sets, "sparse", text))


# --- storage, workers, the default ----------------------------------------------------------------


def storage_table(part: Result) -> str:
    """Seconds and readings until the objective of 20 Lloyd passes."""
    sets, rows, lloyd = part["sets"], [], np.inf
    record = next(iter(sets.values()))
    for method, run in record["runs"].items():
        step = run["reached"]
        seconds = np.inf if step is None else run["seconds"][step]
        if method == "Lloyd":
            lloyd = seconds
        passes, readings = ("–", "–")
        if step is not None:
            passes, readings = f"{run['passes'][step]:.2f}", f"{run['readings'][step]:.2f}"
        share = against(seconds / lloyd, 0.4, ".2f", least=False) if method != "Lloyd" else "1"
        told = "never" if step is None else f"{seconds:.1f}"
        rows.append([method, told, share, passes, readings, f"{of_whole_passes(run):.2f}"])
    head = ["method", "s to the objective of 20 Lloyd passes", "share of Lloyd's", "passes",
            "readings of all rows", "s a pass or epoch over all rows"]  # fmt: skip
    run = record["runs"]["Lloyd"]
    text = (
        f"{run['n']:,} × {run['d']} in a shuffled store of {run['gigabytes']:.1f} GB, "
        f"{record['memory'] / 2**30:g} GiB for chunks and row state, k = {record['k']}; wall "
        "seconds on all threads."
    )
    return "\n".join(table_of(head, rows) + note(sets, "storage", text, "one seed"))


def of_whole_passes(run: Record) -> float:
    """Wall seconds of the steps that are over all rows: their median."""
    passes, seconds = np.diff(run["passes"]), np.diff(run["seconds"])
    return median(seconds[np.isclose(passes, 1.0)])


def of_job(runs: Sequence[Record]) -> tuple[float, float]:
    """Wall seconds of a job, and of one of its epochs over all rows: medians."""
    whole = median(run["seconds"] for run in runs)
    most = max(runs[0]["rows"])
    epochs = [
        spent
        for run in runs
        for rows, spent in zip(run["rows"], run["of_steps"], strict=True)
        if rows == most
    ]
    return whole, median(epochs)


def workers_table(part: Result) -> str:
    """One and two workers, and the price of rounds."""
    sets, rows = part["sets"], []
    for record in sets.values():
        found = {
            name: {workers: of_job(several) for workers, several in of.items()}
            for name, of in record["runs"].items()
        }
        for name, of in found.items():
            price = ""
            if name != "Lloyd":
                more = [of[w][1] - found["Lloyd"][w][1] for w in ("1", "2")]
                price = ", ".join(f"{1e3 * m / record['rounds']:.0f}" for m in more)
            faster = of["1"][0] / of["2"][0]
            rows.append(
                [
                    f"{record['n']:,} × {record['d']}, {record['k']:,}" if name == "Lloyd" else "",
                    name,
                    f"{of['1'][0]:.1f}",
                    f"{of['2'][0]:.1f}",
                    f"{faster:.2f}x"
                    if name == "Lloyd"
                    else against(faster, 1.6, ".2f", least=True),
                    f"{of['1'][1]:.2f}, {of['2'][1]:.2f}",
                    price,
                ]
            )
    head = ["rows, k", "", "job, 1 worker, s", "2 workers", "faster", "a pass or epoch, s",
            "a round costs, ms"]  # fmt: skip
    rounds = next(iter(sets.values()))["rounds"]
    text = (
        "Jobs of the service, wall seconds from submit to the last step; the table of labels "
        f"with its start on samples, and {rounds} rounds an epoch. A round costs what an epoch "
        "takes longer than a pass of Lloyd's algorithm without bounds, shared out to its rounds "
        "(1, 2 workers)."
    )
    times = len(next(iter(sets.values()))["runs"]["Lloyd"]["1"])
    return "\n".join(table_of(head, rows) + note(sets, "workers", text, f"medians of {times} runs"))


def behind(seed: Record, method: str) -> float:
    """The largest ratio of seconds to those of the search, over its energies."""
    search, worst = seed["runs"][TRUNCATED], 0.0
    for level in seed["compared"][TRUNCATED]:
        ours, theirs = reach(seed["runs"][method], level), reach(search, level)
        if ours is None:
            return np.inf
        assert theirs is not None
        worst = max(worst, ours[1] / theirs[1])
    return worst


def auto_table(part: Result) -> str:
    """What the search and the table could take from each other."""
    sets, rows = part["sets"], []
    wins = dict.fromkeys((SEARCHED, MOVES), 0)
    for name, record in sets.items():
        cells = [name, spread(ends(record, TRUNCATED), "+.2f")]
        for method in (TABLE, SEARCHED, MOVES):
            worst = [behind(seed, method) for seed in record["seeds"]]
            cells += [
                spread(ends(record, method, TRUNCATED), "+.2f"),
                spread(worst, ".2f", "does not come there"),
            ]
            if method in wins:
                wins[method] += median(worst) < 1
        rows.append(cells)
    head = ["set", "truncated: end above Lloyd's, %"]
    for method in (TABLE, SEARCHED, MOVES):
        head += [f"{method}: end above truncated's, %", "seconds over its, at worst"]
    told = ", ".join(f"{method}: on {n} of {len(sets)} sets" for method, n in wins.items())
    text = (
        "The largest ratio of CPU seconds (one thread) to those of the truncated search, over "
        f"energies on its way down to its end. Sooner at every energy: {told} (to reach: 3)."
    )
    return "\n".join(table_of(head, rows) + note(sets, "auto", text))


def panels_table(part: Result) -> str:
    """Passes of the search's kind, relaxed or in rounds, to the same energies."""
    sets, rows = part["sets"], []
    for name, record in sets.items():
        for method in (RELAXED, SEARCHED):
            cells = [name if method == RELAXED else "", method.split("then ")[1]]
            for excess in OF_RELAXED:
                found = to_level(record, method, above_base(excess), 0)
                cells.append(spread(found, ".1f"))
            rows.append(cells)
    head = ["set", "after the search's start", *(f"passes to +{100 * e:g} %" for e in OF_RELAXED)]
    text = (
        "Passes over all rows and all centres, samples counted, until so far above the energy of "
        "20 passes whose centres go farther than to the means, as the truncated search has them; "
        "the table has its rounds, and expects changes of the other rows. Both begin where that "
        "search comes to all rows."
    )
    return "\n".join(table_of(head, rows) + note(sets, "panels", text))


def above_base(excess: float) -> Callable[[Record], float]:
    """So far above the reference after 20 passes."""
    return lambda seed: float((1 + excess) * seed["base"])


SHOWN: dict[str, Callable[[Result], str]] = {
    "published": published_table,
    "epoch": epoch_table,
    "eta": eta_table,
    "svrg": svrg_table,
    "scores": scores_table,
    "table": table_table,
    "sparse": sparse_table,
    "auto": auto_table,
    "panels": panels_table,
    "storage": storage_table,
    "workers": workers_table,
}
"""What makes the table of a part."""


def _of_part(part: str) -> Callable[[Result], str]:
    """What makes its table of the results of all parts."""

    def made(whole: Result) -> str:
        if part in whole:
            return SHOWN[part](whole[part])
        return f"Not measured: `python -m benchmarks.vrkm --only {part} --write` does."

    return made


of_published, of_epochs, of_etas, of_svrgs, of_scores = map(
    _of_part, ("published", "epoch", "eta", "svrg", "scores")
)
of_table, of_sparse, of_auto, of_panels, of_storage, of_workers = map(
    _of_part, ("table", "sparse", "auto", "panels", "storage", "workers")
)
