"""Single figures that the documents quote, each computed from a committed result.

A document has ``<!-- quote name -->text<!-- end -->``; `benchmarks.tables` writes the text, and
`tests/benchmarks/test_results.py` compares it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import auto, dcd_tables, directions, incremental
from benchmarks.curves import LLOYD, TABLE
from benchmarks.dcd_tables import BALANCED, BEST, FAST, PEERS, TEN, TEN_GREEDY
from benchmarks.levels import median, median_time, ratios

Result = dict[str, Any]


def span(values: list[float], form: str, unit: str) -> str:
    """The least and the greatest figure."""
    low, high = (f"{value:{form}}" for value in (min(values), max(values)))
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


def exact_sums(result: Result) -> str:
    """Exact sums as a share of the dense pass."""
    return span([100 * r["share"] for r in result["sums"]], ".1f", " %")


def peak(result: Result) -> str:
    """Share of the peak, for many centres and neither few features nor very many."""
    points = [p for p in result["points"] if p["k"] >= 1000 and 18 <= p["d"] <= 784]
    return span([p["fraction"] for p in points], ".2f", "")


def spared(result: Result) -> str:
    """Share of distances that bounds leave, with many centres."""
    runs = [r["runs"][LLOYD][0] for r in result["records"] if r["k"] >= 500]
    return span([100 * run["mean_share"] for run in runs], ".0f", " %")


def part(case: str, name: str) -> Callable[[Result], str]:
    """Ends of the search without one of its parts, and with all, above the lowest end."""

    def end(result: Result) -> str:
        runs = result["cases"][case]
        lowest = min(run["energies"][-1] for several in runs.values() for run in several)
        without, whole = (
            100 * (float(np.mean([run["energies"][-1] for run in runs[which]])) / lowest - 1)
            for which in (name, "as it is")
        )
        return f"{without:.2f} % instead of {whole:.2f} %"

    return end


def few_directions(result: Result) -> str:
    """Time in all features over time in few directions, to half a per cent above the end."""
    found = []
    for ways in result["sets"].values():
        level = 1.005 * directions.lowest(ways)
        found.append(
            median_time(ways[directions.ALL], level) / median_time(ways[directions.FIRST], level)
        )
    return span(found, ".1f", " times")


def readings(result: Result) -> str:
    """Readings of a stored table until the energy is within half a per cent."""
    stored = result["storage"]
    level = 1.005 * min(min(run["energies"]) for run in stored.values())
    found = []
    for run in stored.values():
        met = next(i for i, energy in enumerate(run["energies"]) if energy <= level)
        found.append(run["readings"][met])
    return f"{found[0]:.0f} instead of {found[1]:.0f}"


def memory(result: Result) -> str:
    """Memory beyond the rows with the most clusters."""
    record = max(result["large"], key=lambda r: r["k"])
    used = record["run"]["peak_mb"] - record["run"]["before_mb"]
    return f"{used:.0f} MB with {record['k']:,} clusters"


def worst_far(result: Result) -> str:
    """The worst of all seeds on all sets of which few rows lie far out."""
    return f"{max(100 * (max(r['ours']) / r['lowest'] - 1) for r in result['records']):.1f} %"


def twice_as_soon(result: Result) -> str:
    """Number of points of other libraries at which the default is at least twice as soon."""
    found = [f for r in result["records"] for name in auto.NAMES for _, f in auto.factors(r, name)]
    return f"{sum(f >= 2 for f in found)} of {len(found)}"


def mixture_part(case: str, name: str, key: str, form: str) -> Callable[[Result], str]:
    """A figure of a mixture with one of its parts changed, and as it is."""

    def text(result: Result) -> str:
        runs = result["parts"]["cases"][case]
        changed, whole = (
            float(np.median([run[key] for run in runs[which]])) for which in (name, "as it is")
        )
        return f"{changed:{form}} instead of {whole:{form}}"

    return text


def rounds_share(result: Result) -> str:
    """CPU seconds of a table of labels near Lloyd's end, as a share of exact k-means's."""
    sets = result["table"]["sets"].values()
    found = [incremental.share_of_seconds(r, TABLE, LLOYD) for r in sets if r["start"] == "random"]
    return span([median(shares) for shares in found], ".2f", "")


def rounds_passes(result: Result) -> str:
    """Passes of a table of labels to no change, as a share of Lloyd's, with few clusters."""
    found = [
        median(ratios(incremental.passes_of(r, TABLE), incremental.passes_of(r, LLOYD)))
        for r in result["table"]["sets"].values()
        if r["start"] == "random" and r["k"] <= 100
    ]
    return span(found, ".2f", "")


def path_errors(*methods: str) -> Callable[[Result], str]:
    """The worst error of partitions into the tabled numbers of clusters, over the public sets."""

    def text(result: Result) -> str:
        found = [
            min(float(np.median(dcd_tables.worst_errors(name, record, m))) for m in methods)
            for name, record in result["curves"]["sets"].items()
            if set(methods) <= set(record["methods"])
        ]
        return span(found, "z.2g", " %")

    return text


def path_seconds(method: str) -> Callable[[Result], str]:
    """CPU seconds of all partitions over those of the faster kind of ten starts, over the sets."""

    def text(result: Result) -> str:
        found = [
            float(
                np.median(dcd_tables.seconds(r, method))
                / min(np.median(dcd_tables.seconds(r, p)) for p in PEERS)
            )
            for r in result["curves"]["sets"].values()
            if {method, *PEERS} <= set(r["methods"])
        ]
        return span(found, ".2f", "")

    return text


def submitted_together(result: Result) -> str:
    """CPU of the scheduler for a worker's task, submitted with all others or alone."""
    n = max(result["measured"], key=int)
    ms = [1e3 * result["measured"][n][kind]["scheduler"] / int(n) for kind in WAYS]
    return f"{ms[0]:.1f} instead of {ms[1]:.1f} ms"


WAYS = ("tasks", "apart")
"""An empty pass whose tasks are submitted together, and one by one."""


def figure(group: str, name: str, form: str, unit: str) -> Callable[[Result], str]:
    """A figure as it was measured."""
    return lambda result: f"{result[group][name]:{form}} {unit}"


QUOTES: dict[str, tuple[str, Callable[[Result], str]]] = {
    "exact-sums": ("kernels", exact_sums),
    "peak": ("kernels", peak),
    "spared": ("nmbatch", spared),
    "no-moves": ("auto_parts", part("A", "no moves")),
    "means-only": ("auto_parts", part("gaussian", "centres go to the means")),
    "short-lists": ("auto_parts", part("gaussian", "lists as short as pays at once")),
    "directions": ("directions", few_directions),
    "readings": ("auto_scale", readings),
    "memory": ("auto_scale", memory),
    "worst-far": ("far", worst_far),
    "twice-as-soon": ("auto", twice_as_soon),
    "mixture-lists": ("vcgmm", mixture_part("isoflex", "lists by distance", "ari", ".2f")),
    "mixture-moves": (
        "vcgmm",
        mixture_part("diag", "no moves of components", "log_likelihood", ".2f"),
    ),
    "rounds-share": ("incremental", rounds_share),
    "rounds-passes": ("incremental", rounds_passes),
    "path-ten": ("dcd", path_errors(TEN, TEN_GREEDY)),
    "path-fast": ("dcd", path_errors(FAST)),
    "path-balanced": ("dcd", path_errors(BALANCED)),
    "path-best": ("dcd", path_errors(BEST)),
    "path-fast-seconds": ("dcd", path_seconds(FAST)),
    "path-balanced-seconds": ("dcd", path_seconds(BALANCED)),
    "path-best-seconds": ("dcd", path_seconds(BEST)),
    "many": ("many", submitted_together),
    "empty-pass": ("overhead", figure("found", "empty_cluster_64", ".0f", "ms")),
    "empty-local": ("overhead", figure("found", "empty_local_64", ".1f", "ms")),
    "store-memory": ("overhead", figure("found", "store_rss", ".2f", "GB")),
    "page-cpu": ("observe", figure("figures", "cpu", ".1f", "%")),
    "job": ("service", figure("figures", "overhead", ".1f", "%")),
    "other-clients": ("service", figure("figures", "p99", ".0f", "ms")),
}
"""By name: the result it is made from, and the function that makes the text."""
