"""Tables and pictures of `benchmarks.vcgmm`, from its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "PICTURES",
    "SHOWN",
    "coresets_table",
    "parts_table",
    "price_table",
    "sets_table",
    "sklearn_table",
    "sublinear_table",
    "table4_table",
    "when_table",
]

Result = dict[str, Any]
Record = dict[str, Any]

AIMS: dict[tuple[str, str], tuple[float, float | None, float]] = {
    ("A", "all rows"): (15.0, -102.83, 75.25),
    ("A", "coreset"): (25.0, None, 77.0),
    ("B", "all rows"): (4.0, -34.675, 23.51),
    ("B", "coreset"): (15.0, None, 24.05),
}
"""By set and rows: how many times sooner than the unit, F at least, energy at most."""
AUTHORS_AIM = {"all rows": 8.0, "coreset": 4.0}
UNITS = {"A": "scikit-learn's Lloyd", "B": "faiss, 40 passes"}
SLOPE, SEEDING = 0.3, 50.0
PRICE = 1.3


def note(result: Result, part: str, text: str, seeds: int | str | None = None) -> list[str]:
    """What stands beneath a table; ``seeds`` where it is not all that the benchmark was given."""
    n = result["seeds"] if seeds is None else seeds
    told = n if isinstance(n, str) else "one seed" if n == 1 else f"medians of {n} seeds"
    return [
        "",
        f"{text} CPU seconds on one thread, {told}; {result['cpu']}. Made by "
        f"`python -m benchmarks.vcgmm --only {part} --write`.",
    ]


def table_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A markdown table."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def middle(records: Sequence[Record], key: str) -> float:
    """Median of a figure."""
    return float(np.median([record[key] for record in records]))


def against(value: float, aim: float, form: str, *, least: bool) -> str:
    """A figure beside its aim; a missed one is set in bold."""
    held = value >= aim if least else value <= aim
    told, sign = format(value, form), "≥" if least else "≤"
    return f"{told if held else f'**{told}**'} ({sign} {aim:g})"


def sets_table(result: Result) -> str:
    """A and B beside the units and the authors' programs."""
    rows = []
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
                    f"{theirs['seconds']:.2f}: {theirs['energy']:.3f}",
                    against(factor, AUTHORS_AIM[kind], ".1f", least=True),
                ]
            rows.append([*cells, *["–"] * (9 - len(cells))])
    head = ["rows", "seconds (start)", "iterations", "sooner than the unit", "F a row",
            "log-likelihood", "energy", "authors' C++, s: energy", "sooner"]  # fmt: skip
    text = (
        "1,000 components of one variance; in brackets what is to be reached, bold where it is "
        f"not. {told_of_others(result)} F is over the rows that are learnt from (a coreset of "
        "65,536 draws), the exact log-likelihood and the energy over all rows."
    )
    return "\n".join(table_of(head, rows) + note(result, "sets", text))


def told_of_others(result: Result) -> str:
    """Sentences about the units, `vamm` and the last pass."""
    sets = result["sets"]
    units = "; ".join(
        f"{UNITS[name]} on {name}, {found['others']['unit']['seconds']:.1f} s, energy "
        f"{found['others']['unit']['energy']:.3f}"
        for name, found in sets.items()
    )
    said = [f"The unit: {units}."]
    for name, found in sets.items():
        if "vamm" in found["others"]:
            theirs = found["others"]["vamm"]
            said.append(
                f"The authors' `vamm` on {name}: {theirs['seconds']:.1f} s, energy "
                f"{theirs['energy']:.3f}."
            )
    last = " and ".join(
        f"{found['all rows'][0]['seconds_of_last_pass']:.1f} s on {name}"
        for name, found in sets.items()
    )
    return " ".join([*said, f"Labels and exact densities of all rows take {last} more."])


def sklearn_table(result: Result) -> str:
    """An iteration, and planted mixtures."""
    compared = result["an_iteration"]
    other = compared["scikit-learn"]
    rows = [
        [
            what,
            f"{ours['median_iteration']:.3f} s (mean {ours['an_iteration']:.3f}), "
            f"{ours['peak_mb']:.0f} MB",
            f"{other['an_iteration']:.3f} s, {other['peak_mb']:,.0f} MB",
            against(other["an_iteration"] / ours["median_iteration"], 25, ".1f", least=True),
            "",
            "",
            "",
        ]
        for what, ours in (
            ("50,000 × 64 of A, 1,000, isoflex, an iteration", compared["ours"]),
            ("the same with 5 candidates", compared["ours, 5 candidates"]),
        )
    ]
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in result["planted"]:
        groups.setdefault((record["kind"], record["k"]), []).append(record)
    for (kind, k), records in groups.items():
        pair = [[record[who] for record in records] for who in ("ours", "scikit-learn")]
        seconds = [float(np.mean([r["seconds"] for r in several])) for several in pair]
        likely = [float(np.mean([r["log_likelihood"] for r in several])) for several in pair]
        ari = [float(np.mean([r["ari"] for r in several])) for several in pair]
        at_floor = [
            sum(r[who]["least_variance"] <= 1.001 * r["floor"] for r in records)
            for who in ("ours", "scikit-learn")
        ]
        factor = seconds[1] / seconds[0]
        iterations = [middle(several, "iterations") for several in pair]
        rows.append(
            [
                f"planted, {kind}, {k}",
                f"{seconds[0]:.2f} s, {iterations[0]:.0f}",
                f"{seconds[1]:.2f} s, {iterations[1]:.0f}",
                against(factor, 15, ".1f", least=True) if k == 500 else f"{factor:.1f}",
                f"{likely[0]:.3f}, {likely[1]:.3f}",
                f"{ari[0]:.3f}, {ari[1]:.3f}",
                f"{at_floor[0]}, {at_floor[1]}",
            ]
        )
    head = ["data, components", "ours: seconds, iterations", "scikit-learn's", "sooner",
            "log-likelihood of held-out rows", "ARI", "runs with any at the floor"]  # fmt: skip
    text = (
        "An iteration is the median of 12 or 5; every fourth of ours also looks for moves, which "
        "is in the mean. Planted: 40,000 rows × 16 of components of unequal variances and weights, "
        f"means of {len(next(iter(groups.values()), []))} seeds, 10,000 rows held out; "
        "scikit-learn begins from the means, weights and variances that our start has found, "
        "which is in our seconds "
        "and not in its, and is cut after 15 iterations at 500 components (100 at 50)."
    )
    return "\n".join(table_of(head, rows) + note(result, "sklearn", text, "iterations of one seed"))


def table4_table(result: Result) -> str:
    """The form of the paper's Table 4."""
    rows = []
    for name, about in result["sets"].items():
        turns = about["turns"]
        base = [turn["k-means++, Lloyd"] for turn in turns]
        energy = float(np.mean([r["energy"] for r in base]))
        for method in turns[0]:
            found = [turn[method] for turn in turns]
            errors = np.array([100 * (r["energy"] / energy - 1) for r in found])
            seconds = middle(base, "seconds") / middle(found, "seconds")
            distances = middle(base, "distances") / middle(found, "distances")
            share = float(np.median([r["seconds_of_init"] / r["seconds"] for r in found]))
            nmi = f"{middle(found, 'nmi'):.3f}" if "nmi" in found[0] else "–"
            rows.append(
                [
                    f"{name}, {about['k']}" if method == "k-means++, Lloyd" else "",
                    method,
                    f"{errors.mean():+.2f} ± {errors.std():.2f} %",
                    f"{seconds:.1f}x",
                    f"{distances:.1f}x",
                    f"{middle(found, 'iterations'):.0f}",
                    f"{100 * share:.0f} %",
                    nmi,
                    f"{middle(found, 'log_likelihood'):.3f}",
                ]
            )
    head = ["set, clusters", "method", "energy", "time", "distances", "iterations",
            "coreset and seeding", "NMI", "log-likelihood"]  # fmt: skip
    text = (
        "Relative to k-means++ with Lloyd, stopped by the same rule (a change of F below 1e-4 of "
        "it), as are var-GMM-S and vc-GMM as published; ours has its own start and stop. Numbers "
        "behind a method: rows of the coreset a component, and candidates. NMI: with Lloyd's "
        "partition. The log-likelihood is over all rows and components. mnist is dithered."
    )
    return "\n".join(table_of(head, rows) + note(result, "table4", text, len(turns)))


def slope_of(records: Sequence[Record], start: str) -> float:
    """Slope of seconds an iteration over components, both logarithmic."""
    seconds = [middle(record[start], "an_iteration") for record in records]
    components = [record["k"] for record in records]
    return float(np.polyfit(np.log(components), np.log(seconds), 1)[0])


def sublinear_table(result: Result) -> str:
    """Seconds and evaluations an iteration over components."""
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
                f"{middle(two, 'seconds_of_init'):.2f}: {middle(two, 'F'):.3f}",
                f"{full['seconds_of_start']:.2f}: {full['F']:.3f}",
                f"{afk['seconds_of_init']:.2f}: {afk['F']:.3f}",
                against(seeding, SEEDING, ".0f", least=True)
                if record is records[-1]
                else f"{seeding:.0f}",
            ]
        )
    head = ["components", "seconds an iteration", "evaluations a row", "two-level start: s, F",
            "k-means start: s, F", "AFK-MC²: s, F", "two-level sooner"]  # fmt: skip
    slope = against(slope_of(records, "two-level"), SLOPE, ".2f", least=False)
    text = (
        f"{n:,} synthetic rows × {result['d']}; F a row after 10 iterations, tables of neighbours "
        f"and searches over all components in the seconds. Slope, both logarithmic: {slope}."
    )
    seeds = f"medians of {result['seeds']} seeds for the start on two levels, one for others"
    return "\n".join(table_of(head, rows) + note(result, "sublinear", text, seeds))


def when_table(result: Result) -> str:
    """The ends of the curves."""
    rows = []
    for k, runs in result["runs"].items():
        for label, record in runs.items():
            curve = record["curve"]
            rows.append(
                [
                    f"{int(k):,}",
                    label,
                    f"{record['seconds']:.2f}",
                    f"{curve['log_likelihood'][-1]:.3f}",
                    f"{curve['energy'][-1]:.3f}",
                ]
            )
    learnt = ", ".join(f"{m:,} at {int(k):,}" for k, m in result["learnt"].items())
    text = (
        "Set A, 20,000 rows held out; log-likelihood and energy of these (of k-means as a mixture "
        f"of one variance). scikit-learn's learn from fewer rows ({learnt} components)."
    )
    head = ["components", "method", "seconds", "log-likelihood", "energy"]
    return "\n".join(table_of(head, rows) + note(result, "when", text, 1))


def parts_table(result: Result) -> str:
    """What is lost where a part is changed."""
    cases = result["cases"]
    heads = {
        "A": "A, 1,000, iso",
        "isoflex": "planted, 500, isoflex",
        "diag": "planted, 500, diag",
    }
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
        "Seconds, exact log-likelihood a row (of planted rows: held out), and energy or ARI; A: of "
        "one seed. Searches over all components pay by a rule of their cost, here never."
    )
    return "\n".join(table_of(head, rows) + note(result, "parts", text))


def coresets_table(result: Result) -> str:
    """Coresets beside as many uniform rows."""
    rows = []
    for name, found in result["sets"].items():
        told = [f"{name}: {found['n']:,}, {found['k']:,}", f"{found['rows']:,}"]
        for key in ("energy", "log_likelihood"):
            pair = [middle(found[kind], key) for kind in ("coreset", "uniform")]
            better = min(pair) if key == "energy" else max(pair)
            told += [f"**{v:.5g}**" if v == better else f"{v:.5g}" for v in pair]
        told += [f"{middle(found[kind], 'F'):.5g}" for kind in ("coreset", "uniform")]
        told.append(f"{middle(found['coreset'], 'seconds'):.2f}")
        rows.append(told)
    head = ["set: rows, components", "drawn", "energy: coreset", "uniform",
            "log-likelihood: coreset", "uniform", "F on the coreset", "on uniform rows",
            "seconds (coreset)"]  # fmt: skip
    text = (
        "Energy and exact log-likelihood over all rows, the better in bold; F over the rows that "
        "are learnt from, which flatters a small sample."
    )
    return "\n".join(table_of(head, rows) + note(result, "coresets", text))


def price_table(result: Result) -> str:
    """A mixture beside the k-means that it begins from."""
    rows = []
    for record in result["records"]:
        auto = record["auto"]
        cells = [f"{record['name']}, {record['k']:,}", f"{auto['seconds']:.2f}"]
        for kind in ("iso", "diag"):
            found = record[kind]
            start, seconds = found["seconds_of_start"], found["seconds"]
            price = against(seconds / start, PRICE, ".2f", least=False)
            cells += [f"{start:.2f} + {seconds - start:.2f} ({found['iterations']})", price]
            cells.append(f"{found['seconds_of_last_pass']:.2f}")
        rows.append(cells)
    head = ["set, components", "`KMeans` (auto), s", "iso: start + EM, s (iterations)", "price",
            "last pass", "diag: start + EM, s (iterations)", "price", "last pass"]  # fmt: skip
    text = (
        "The price of a mixture: its seconds over those of the k-means that it begins from, the "
        "first five rounds of `auto`; labels and exact densities of all rows come on top."
    )
    return "\n".join(table_of(head, rows) + note(result, "price", text, 1))


# --- pictures -------------------------------------------------------------------------------------

STYLES = {"all rows": ("tab:red", "-"), "coreset": ("tab:orange", "--")}
MARKS = {
    "unit": ("black", "s"),
    "authors, all rows": ("tab:blue", "o"),
    "authors, coreset": ("tab:blue", "^"),
    "vamm": ("tab:green", "D"),
}
COLORS = ("tab:red", "tab:orange", "tab:brown", "black", "tab:blue", "tab:green", "tab:purple")


def draw_sets(result: Result, folder: Path) -> None:
    """F and energy against CPU seconds, a picture a set."""
    from benchmarks.pictures import new_figure

    for name, found in result["sets"].items():
        figure, (left, right) = new_figure(2, 12, 4.6)
        lowest, end = np.inf, found["all rows"][0]["F"]
        for kind, (color, style) in STYLES.items():
            curve = found[kind][0]["curve"]
            about = {"color": color, "ls": style, "marker": ".", "label": f"ours, {kind}"}
            left.plot(curve["seconds"], curve["F"], **about)
            right.plot(curve["seconds"], curve["energy"], **about)
            lowest = min(lowest, *curve["energy"])
        for other, record in found["others"].items():
            label = {"unit": UNITS[name]}.get(other, other.replace("authors", "authors' C++"))
            color, marker = MARKS[other]
            about = {"color": color, "ls": "", "marker": marker, "mfc": "none", "label": label}
            right.plot(record["seconds"], record["energy"], **about)
            left.plot(record["seconds"], record["log_likelihood"], **about)
        right.set(xscale="log", ylim=(0.997 * lowest, 1.08 * lowest), ylabel="energy, all rows")
        left.set(xscale="log", ylim=(end - 4, end + 2.5), ylabel="F a row of those learnt from")
        for axes in (left, right):
            axes.set(xlabel="CPU seconds, one thread")
            axes.grid(True, which="both", alpha=0.2)
            axes.legend(fontsize=8)
        left.set_title(f"{name}, k = 1,000 (of others: log-likelihood)", fontsize=10)
        figure.savefig(folder / f"vcgmm-{name}.png", dpi=100)


def draw_when(result: Result, folder: Path) -> None:
    """Log-likelihood and energy of held-out rows against CPU seconds."""
    from benchmarks.pictures import new_figure

    for k, runs in result["runs"].items():
        figure, (left, right) = new_figure(2, 12, 4.6)
        likely = [max(record["curve"]["log_likelihood"]) for record in runs.values()]
        lowest = min(min(record["curve"]["energy"]) for record in runs.values())
        for color, (label, record) in zip(COLORS, runs.items(), strict=False):
            curve = record["curve"]
            style = "--" if label.startswith("scikit") else "-"
            about = {"color": color, "ls": style, "marker": ".", "lw": 1.4, "label": label}
            left.plot(curve["seconds"], curve["log_likelihood"], **about)
            right.plot(curve["seconds"], curve["energy"], **about)
        top = max(likely)
        left.set(ylim=(top - 12, top + 1), ylabel="log-likelihood a held-out row")
        right.set(ylim=(0.995 * lowest, 1.2 * lowest), ylabel="energy of held-out rows")
        for axes in (left, right):
            axes.set(xscale="log", xlabel="CPU seconds, one thread")
            axes.set_title(f"A, k = {int(k):,}", fontsize=10)
            axes.grid(True, which="both", alpha=0.2)
            axes.legend(fontsize=8)
        figure.savefig(folder / f"vcgmm-when-{k}.png", dpi=100)


PICTURES: dict[str, Callable[[Result, Path], None]] = {"sets": draw_sets, "when": draw_when}
"""What draws the pictures of a part."""
SHOWN: dict[str, Callable[[Result], str]] = {
    "sets": sets_table,
    "sklearn": sklearn_table,
    "table4": table4_table,
    "sublinear": sublinear_table,
    "when": when_table,
    "parts": parts_table,
    "coresets": coresets_table,
    "price": price_table,
}
"""What makes the table of a part."""


def _of_part(part: str) -> Callable[[Result], str]:
    """What makes its table of the results of all parts."""
    return lambda whole: SHOWN[part](whole[part])


of_sets, of_sklearn, of_table4, of_sublinear = map(
    _of_part, ("sets", "sklearn", "table4", "sublinear")
)
of_when, of_parts, of_coresets, of_price = map(_of_part, ("when", "parts", "coresets", "price"))
