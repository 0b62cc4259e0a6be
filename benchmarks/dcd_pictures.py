"""Pictures of `benchmarks.dcd`: elbow curves with their bounds, and how far methods end above."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dcd_known import LOWEST
from benchmarks.dcd_methods import BALANCED, BEST, EVERY, FAST, TEN, TEN_GREEDY
from benchmarks.dcd_tables import counts_of, errors, values
from benchmarks.pictures import new_figure

__all__ = ["PICTURES", "draw_elbows", "draw_excess"]

FLOOR = 0.001
"""Excess in per cent below which everything is drawn at this height."""
STYLES = {
    TEN: ("tab:gray", "o"),
    TEN_GREEDY: ("black", "x"),
    FAST: ("tab:cyan", "."),
    BALANCED: ("tab:blue", "."),
    BEST: ("tab:red", "."),
    EVERY: ("tab:green", "+"),
}

Record = dict[str, Any]


def draw_elbows(part: Record, path: Path) -> None:
    """A panel a set: the curve of the highest effort there is, its bounds, and ten starts."""
    sets = part["sets"]
    figure, panels = new_figure(len(sets), 3.4 * len(sets), 4)
    for axes, (name, record) in zip(panels, sets.items(), strict=True):
        lows = []
        own = [method for method in (BEST, BALANCED, FAST) if method in record["methods"]]
        for method in own[:1]:
            counts, runs = counts_of(record, method), record["methods"][method]["seeds"]
            curve = np.median(values(record, method), axis=0)
            axes.plot(counts, curve, color="tab:red", lw=1.6, label=f"DCDBundle, {method}")
            bounds = np.array(runs[0]["bounds"])
            axes.plot(counts, np.where(bounds > 0, bounds, np.nan), color="tab:red", lw=0.8,
                      ls="--", label="lower bound")  # fmt: skip
            lows.append(curve.min())
        for method in (TEN, TEN_GREEDY):
            if method in record["methods"]:
                points = np.median(values(record, method), axis=0)
                color, marker = STYLES[method]
                axes.plot(counts_of(record, method), points, color=color, marker=marker, ms=4,
                          ls="", label=method)  # fmt: skip
                lows.append(points.min())
        axes.set(yscale="log", xlabel="clusters", ylim=(min(lows) / 3, None))
        axes.set_title(f"{name}: {record['n']:,} × {record['d']}", fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("inertia")
    legend(figure, panels)
    figure.savefig(path, dpi=110)


def draw_excess(part: Record, path: Path) -> None:
    """A panel a set: excess over the lowest objective known at every number of clusters."""
    sets = part["sets"]
    figure, panels = new_figure(len(sets), 3.4 * len(sets), 4, sharey=True)
    for axes, (name, record) in zip(panels, sets.items(), strict=True):
        for method, (color, marker) in STYLES.items():
            if method not in record["methods"]:
                continue
            counts = [k for k in counts_of(record, method) if k in LOWEST[name]]
            middles = np.median(errors(name, record, method), axis=0)
            axes.plot(counts, np.maximum(middles, FLOOR), color=color, marker=marker, ms=4, lw=0.8,
                      label=method)  # fmt: skip
        axes.set(yscale="log", xlabel="clusters")
        axes.set_title(name, fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(f"above the lowest known, %\n({FLOOR:g}: that or less)")
    legend(figure, panels)
    figure.savefig(path, dpi=110)


def legend(figure: Any, panels: Any) -> None:
    """One beneath all panels, of everything that any of them shows."""
    told: dict[str, Any] = {}
    for axes in panels:
        told |= {label: line for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(told.values(), told.keys(), loc="outside lower center", ncols=3, fontsize=8)


def draw_curves(part: Record, folder: Path) -> None:
    """Both."""
    draw_elbows(part, folder / "dcd-elbows.png")
    draw_excess(part, folder / "dcd-excess.png")


PICTURES: dict[str, Callable[[Record, Path], None]] = {"curves": draw_curves}
"""What draws the pictures of a part."""
