"""Make the tables of `benchmarks.vcgmm` from its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.tables import against, table_of

Result = dict[str, Any]
Record = dict[str, Any]

AIMS: dict[tuple[str, str], tuple[float, float | None, float]] = {
    ("A", "all rows"): (15.0, -102.83, 75.25),
    ("A", "coreset"): (25.0, None, 77.0),
    ("B", "all rows"): (4.0, -34.675, 23.51),
    ("B", "coreset"): (15.0, None, 24.05),
}
"""Minimum speedup over k-means, minimum F and maximum energy, by set and rows."""
AUTHORS_AIM = {"all rows": 8.0, "coreset": 4.0}
UNITS = {"A": "scikit-learn's Lloyd algorithm", "B": "faiss with 40 passes"}
SLOPE, SEEDING = 0.3, 50.0


def note(result: Result, part: str, text: str, seeds: int | str | None = None) -> list[str]:
    n = result["seeds"] if seeds is None else seeds
    count = n if isinstance(n, str) else "from one seed" if n == 1 else f"medians of {n} seeds"
    return [
        "",
        f"{text} Times are CPU seconds on one thread, {count}. Processor: {result['cpu']}. This "
        f"table was made by `python -m benchmarks.vcgmm --only {part} --write`.",
    ]


def middle(records: Sequence[Record], key: str) -> float:
    return float(np.median([record[key] for record in records]))


def of_sets(whole: Result) -> str:
    result, rows = whole["sets"], []
    for name, found in result["sets"].items():
        others = found["others"]
        for kind in ("all rows", "coreset"):
            own = found[kind]
            aim, bound, energy = AIMS[name, kind]
            f, seconds = middle(own, "F"), middle(own, "seconds")
            cells = [
                f"{name}, {kind}",
                f"{seconds:.2f} ({middle(own, 'seconds_of_start'):.2f})",
                f"{middle(own, 'iterations'):.0f}",
                against(others["unit"]["seconds"] / seconds, aim, ".1f", least=True),
                f"{f:.3f}" if bound is None else against(f, bound, ".3f", least=True),
                f"{own[0]['log_likelihood']:.3f}",
                against(middle(own, "energy"), energy, ".3f", least=False),
            ]
            if f"authors, {kind}" in others:
                theirs = others[f"authors, {kind}"]
                factor = theirs["seconds"] / seconds
                cells += [
                    f"{theirs['seconds']:.2f}, {theirs['energy']:.3f}",
                    against(factor, AUTHORS_AIM[kind], ".1f", least=True),
                ]
            rows.append([*cells, *["–"] * (9 - len(cells))])
    head = ["rows", "seconds (of these: start)", "iterations", "speedup over k-means",
            "F per row", "log-likelihood", "energy", "authors' C++: seconds, energy",
            "speedup over the authors' C++"]  # fmt: skip
    text = (
        "Models have 1,000 components with one common variance. Values after ≥ or ≤ are targets; "
        f"bold values miss them. {on_others(result)} F refers to the training rows (all rows, or "
        "a coreset of 65,536 draws). The exact log-likelihood per row and the energy refer to all "
        "rows."
    )
    return "\n".join(table_of(head, rows) + note(result, "sets", text))


def on_others(result: Result) -> str:
    sets = result["sets"]
    units = " and ".join(
        f"{UNITS[name]} on {name} ({found['others']['unit']['seconds']:.1f} s, energy "
        f"{found['others']['unit']['energy']:.3f})"
        for name, found in sets.items()
    )
    last = " and ".join(
        f"{found['all rows'][0]['seconds_of_last_pass']:.1f} s on {name}"
        for name, found in sets.items()
    )
    return (
        f"The k-means implementation is {units}. Computing labels and exact densities of all rows "
        f"takes another {last}, which are not included in the times."
    )


def of_when(whole: Result) -> str:
    result = whole["when"]
    runs = result["runs"]
    rows = []
    for label in next(iter(runs.values())):
        cells = [label]
        for several in runs.values():
            curve = several[label]["curve"]
            cells.append(f"{several[label]['seconds']:.2f}")
            cells += [f"{curve[key][-1]:.3f}" for key in ("log_likelihood", "energy")]
        rows.append(cells)
    learnt = ", ".join(f"{m:,} for k = {int(k):,}" for k, m in result["learnt"].items())
    text = (
        "The table shows the log-likelihood and the energy per row for 20,000 held-out rows of set "
        "A. The k-means models are treated as mixtures with one common variance. scikit-learn's "
        f"mixtures are fitted to fewer rows ({learnt})."
    )
    head = ["method"]
    for k in runs:
        head += [f"k = {int(k):,}: seconds", "log-likelihood", "energy"]
    return "\n".join(table_of(head, rows) + note(result, "when", text, 1))


def slope_of(records: Sequence[Record], start: str) -> float:
    """Return the slope of log seconds per iteration against the log number of components."""
    seconds = [middle(record[start], "an_iteration") for record in records]
    components = [record["k"] for record in records]
    return float(np.polyfit(np.log(components), np.log(seconds), 1)[0])


def of_sublinear(whole: Result) -> str:
    result = whole["sublinear"]
    n, records, rows = result["n"], result["records"], []
    for record in records:
        two, full, afk = record["two-level"], record["k-means"], record["afk-mc2"]
        evaluations = middle(two, "distances_of_em") / middle(two, "iterations") / n
        seeding = afk["seconds_of_init"] / middle(two, "seconds_of_init")
        rows.append(
            [
                f"{record['k']:,}",
                f"{middle(two, 'an_iteration'):.3f}",
                f"{evaluations:.1f}",
                f"{middle(two, 'seconds_of_init'):.2f} s, {middle(two, 'F'):.3f}",
                f"{full['seconds_of_start']:.2f} s, {full['F']:.3f}",
                f"{afk['seconds_of_init']:.2f} s, {afk['F']:.3f}",
                against(seeding, SEEDING, ".0f", least=True)
                if record is records[-1]
                else f"{seeding:.0f}",
            ]
        )
    head = ["components", "seconds per iteration", "evaluations per row", "two-level start, F",
            "k-means start, F", "AFK-MC² start, F", "speedup over AFK-MC²"]  # fmt: skip
    slope = against(slope_of(records, "two-level"), SLOPE, ".2f", least=False)
    text = (
        f"The data are {n:,} synthetic rows of {result['d']} features. For each start, the table "
        "shows its seconds and F per row after 10 iterations. The time of an iteration includes "
        "neighbour tables and searches over all components, and grows as the number of components "
        f"to the power {slope}. Values after ≥ or ≤ are targets; bold values miss them."
    )
    seeds = (
        f"medians of {result['seeds']} seeds for the two-level start, and from one seed for the "
        "other starts"
    )
    return "\n".join(table_of(head, rows) + note(result, "sublinear", text, seeds))


def of_parts(whole: Result) -> str:
    result = whole["parts"]
    cases = result["cases"]
    heads = {"A": "A, 1,000, iso", "isoflex": "planted, 500, isoflex", "diag": "planted, 500, diag"}
    rows = []
    for part in next(iter(cases.values())):
        cells = []
        for name, parts in cases.items():
            found = parts[part]
            last = (
                f"ARI {middle(found, 'ari'):.3f}"
                if name != "A"
                else f"energy {middle(found, 'energy'):.3f}"
            )
            cells.append(
                f"{middle(found, 'seconds'):.2f} s, {middle(found, 'log_likelihood'):.3f}, {last}"
            )
        rows.append([part, *cells])
    head = ["", *(heads[name] for name in cases)]
    text = (
        "Each cell shows seconds, the exact log-likelihood per row, and the energy (A) or the "
        "adjusted Rand index (planted rows). On planted rows, the log-likelihood is that of "
        "held-out rows. On A, the log-likelihood is from one seed."
    )
    return "\n".join(table_of(head, rows) + note(result, "parts", text))
