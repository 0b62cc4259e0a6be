"""Single figures that the documents quote, each computed from a committed result.

In a document stands ``<!-- quote name -->text<!-- end -->``; `benchmarks.tables` writes the text,
and `tests/benchmarks/test_results.py` compares it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.curves import LLOYD, NMBATCH, PUBLISHED
from benchmarks.dcd_methods import BALANCED, BEST, FAST, TEN, TEN_GREEDY
from benchmarks.nmbatch_tables import end_of
from benchmarks.vrkm_methods import LLOYD as BOUNDED
from benchmarks.vrkm_methods import SEARCHED, TABLE, TRUNCATED

__all__ = ["QUOTES"]

Result = dict[str, Any]


def span(values: list[float], form: str, unit: str) -> str:
    """From the least to the greatest, as they are written."""
    low, high = (f"{value:{form}}" for value in (min(values), max(values)))
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


def two_scores(result: Result) -> str:
    """What keeping two scores costs, where distances take most of the time."""
    points = [p for p in result["points"] if p["d"] >= 33 and p["k"] >= 100 and p["dtype"] == "f4"]
    return span([100 * (p["smallest"] - 1) for p in points], "z.0f", " %")


def exact_sums(result: Result) -> str:
    """Exact sums as a share of the dense pass."""
    return span([100 * r["share"] for r in result["sums"]], ".1f", " %")


def peak(result: Result) -> str:
    """Share of the peak, for many centres and neither few features nor very many."""
    points = [p for p in result["points"] if p["k"] >= 1000 and 18 <= p["d"] <= 784]
    return span([p["fraction"] for p in points], ".2f", "")


def outlier(result: Result) -> str:
    """Time with one row far out over the time without."""
    return span([v for r in result["records"] for v in r["ratios"].values()], ".2f", "")


def spared(result: Result) -> str:
    """Share of distances that bounds leave, with many centres."""
    runs = [r["runs"][LLOYD][0] for r in result["records"] if r["k"] >= 500]
    return span([100 * run["mean_share"] for run in runs], ".0f", " %")


def published_end(result: Result) -> str:
    """Where the published form and ours end on A with 1,000 clusters, above Lloyd's end."""
    [record] = [r for r in result["records"] if r["case"] == "A-1000"]
    ends = [
        100 * (min(record["runs"][name][0]["energies"]) / end_of(record) - 1)
        for name in (PUBLISHED, NMBATCH)
    ]
    return f"{ends[0]:+.1f} % instead of {ends[1]:+.1f} %"


def part(case: str, name: str) -> Callable[[Result], str]:
    """Where the search ends without one of its parts, and with all, above the lowest end."""

    def end(result: Result) -> str:
        runs = result["cases"][case]
        lowest = min(run["energies"][-1] for several in runs.values() for run in several)
        without, whole = (
            100 * (float(np.mean([run["energies"][-1] for run in runs[which]])) / lowest - 1)
            for which in (name, "as it is")
        )
        return f"{without:.2f} % instead of {whole:.2f} %"

    return end


def directions(result: Result) -> str:
    """How many times as long the search takes in all features, to half a per cent above the end."""
    from benchmarks.directions import ALL, FIRST, lowest, median_time

    found = []
    for ways in result["sets"].values():
        level = 1.005 * lowest(ways)
        found.append(median_time(ways[ALL], level) / median_time(ways[FIRST], level))
    return span(found, ".1f", " times")


def readings(result: Result) -> str:
    """How often a stored table is read until the energy is within half a per cent."""
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


def even_split(result: Result) -> str:
    """The slowest worker over the mean, with an even split and with a naive one."""
    from benchmarks.balance import spread

    even, naive = (spread(result["seconds"][name])[0] for name in ("even", "naive"))
    return f"{even:.2f} instead of {naive:.2f}"


def twice_as_soon(result: Result) -> str:
    """At how many points of other libraries the default is at least twice as soon."""
    from benchmarks.auto import NAMES, factors

    found = [f for r in result["records"] for name in NAMES for _, f in factors(r, name)]
    return f"{sum(f >= 2 for f in found)} of {len(found)}"


def mixture_part(case: str, name: str, key: str, form: str) -> Callable[[Result], str]:
    """A figure of a mixture with one of its parts changed, and as it is."""

    def told(result: Result) -> str:
        runs = result["parts"]["cases"][case]
        changed, whole = (
            float(np.median([run[key] for run in runs[which]])) for which in (name, "as it is")
        )
        return f"{changed:{form}} instead of {whole:{form}}"

    return told


def rounds_share(result: Result) -> str:
    """CPU seconds of a table of labels near Lloyd's end, as a share of exact k-means's."""
    from benchmarks.vrkm_levels import median, near_end, ratios, to_level

    found = [
        median(ratios(to_level(r, TABLE, near_end, 1), to_level(r, BOUNDED, near_end, 1)))
        for r in result["table"]["sets"].values()
        if r["start"] == "random"
    ]
    return span(found, ".2f", "")


def rounds_passes(result: Result) -> str:
    """Passes of a table of labels to no change, as a share of Lloyd's, with few clusters."""
    from benchmarks.vrkm_levels import median, passes_of, ratios

    found = [
        median(ratios(passes_of(r, TABLE), passes_of(r, BOUNDED)))
        for r in result["table"]["sets"].values()
        if r["start"] == "random" and r["k"] <= 100
    ]
    return span(found, ".2f", "")


def rounds_auto(result: Result) -> str:
    """Where a table of labels ends that begins with the search's start, against the search."""
    from benchmarks.vrkm_levels import ends, median

    found = [median(ends(r, SEARCHED, TRUNCATED)) for r in result["auto"]["sets"].values()]
    low, high = min(found), max(found)
    return f"{abs(low):.2f} % {'below' if low < 0 else 'above'} to {high:.2f} % above"


def rounds_panels(result: Result) -> str:
    """Passes of rounds to what 20 relaxed ones come to, with many clusters."""
    from benchmarks.vrkm_levels import at_base, median, to_level

    sets = result["panels"]["sets"].values()
    return span([median(to_level(r, SEARCHED, at_base, 0)) for r in sets], ".0f", "")


def path_errors(*methods: str) -> Callable[[Result], str]:
    """The worst error of partitions into the tabled numbers of clusters, over the public sets."""

    def told(result: Result) -> str:
        from benchmarks.dcd_tables import worst_errors

        found = [
            min(float(np.median(worst_errors(name, record, m))) for m in methods)
            for name, record in result["curves"]["sets"].items()
            if set(methods) <= set(record["methods"])
        ]
        return span(found, "z.2g", " %") if found else NOT_YET

    return told


def path_seconds(method: str) -> Callable[[Result], str]:
    """CPU seconds of all partitions over those of the faster kind of ten starts, over the sets."""

    def told(result: Result) -> str:
        from benchmarks.dcd_methods import PEERS
        from benchmarks.dcd_tables import seconds

        found = [
            float(np.median(seconds(r, method)) / min(np.median(seconds(r, p)) for p in PEERS))
            for r in result["curves"]["sets"].values()
            if {method, *PEERS} <= set(r["methods"])
        ]
        return span(found, ".2f", "") if found else NOT_YET

    return told


def path_readings(result: Result) -> str:
    """Readings of a store for all partitions, and CPU seconds of the longest step that reads it."""
    if "stored" not in result:
        return NOT_YET
    [record] = result["stored"]["sets"].values()
    path = record["path"]
    return f"{path['readings']:.0f} readings, of {max(path['of_readings']):.1f} CPU s at most"


NOT_YET = "(not measured yet)"
"""In the place of a figure of which no run is there."""


def told_together(result: Result) -> str:
    """CPU of the scheduler for a worker's task, told with all others and told alone."""
    n = max(result["measured"], key=int)
    ms = [1e3 * result["measured"][n][kind]["0.0"]["scheduler"] / int(n) for kind in TELLING]
    return f"{ms[0]:.1f} instead of {ms[1]:.1f} ms"


TELLING = ("tasks", "apart")
"""An empty pass whose tasks the scheduler is told of together, and one by one."""


def figure(group: str, name: str, form: str, unit: str) -> Callable[[Result], str]:
    """A figure as it was measured."""
    return lambda result: f"{result[group][name]:{form}} {unit}"


QUOTES: dict[str, tuple[str, Callable[[Result], str]]] = {
    "two-scores": ("labels", two_scores),
    "exact-sums": ("kernels", exact_sums),
    "peak": ("kernels", peak),
    "outlier": ("outlier", outlier),
    "spared": ("nmbatch", spared),
    "published-end": ("nmbatch", published_end),
    "no-moves": ("auto_parts", part("A", "no moves")),
    "means-only": ("auto_parts", part("gaussian", "centres go to the means")),
    "short-lists": ("auto_parts", part("gaussian", "lists as short as pays at once")),
    "directions": ("directions", directions),
    "readings": ("auto_scale", readings),
    "memory": ("auto_scale", memory),
    "worst-far": ("far", worst_far),
    "even-split": ("balance", even_split),
    "twice-as-soon": ("auto", twice_as_soon),
    "mixture-start": ("vcgmm", mixture_part("A", "as published", "log_likelihood", ".2f")),
    "mixture-lists": ("vcgmm", mixture_part("isoflex", "lists by distance", "ari", ".2f")),
    "mixture-moves": (
        "vcgmm",
        mixture_part("diag", "no moves of components", "log_likelihood", ".2f"),
    ),
    "rounds-share": ("vrkm", rounds_share),
    "rounds-passes": ("vrkm", rounds_passes),
    "rounds-auto": ("vrkm", rounds_auto),
    "rounds-panels": ("vrkm", rounds_panels),
    "path-ten": ("dcd", path_errors(TEN, TEN_GREEDY)),
    "path-fast": ("dcd", path_errors(FAST)),
    "path-balanced": ("dcd", path_errors(BALANCED)),
    "path-best": ("dcd", path_errors(BEST)),
    "path-fast-seconds": ("dcd", path_seconds(FAST)),
    "path-balanced-seconds": ("dcd", path_seconds(BALANCED)),
    "path-best-seconds": ("dcd", path_seconds(BEST)),
    "path-readings": ("dcd", path_readings),
    "many": ("many", told_together),
    "empty-pass": ("overhead", figure("found", "empty_cluster_64", ".0f", "ms")),
    "empty-local": ("overhead", figure("found", "empty_local_64", ".1f", "ms")),
    "store-memory": ("overhead", figure("found", "store_rss", ".2f", "GB")),
    "page-cpu": ("observe", figure("figures", "cpu", ".1f", "%")),
    "job": ("service", figure("figures", "overhead", ".1f", "%")),
    "other-clients": ("service", figure("figures", "p99", ".0f", "ms")),
}
"""Name: the result it is made from, and what makes the text."""
