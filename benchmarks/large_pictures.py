"""The picture of `benchmarks.large`: energy against time with its phases, and memory beneath."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["draw"]

SHADES = {
    "start": ("0.85", "begins"),
    "samples": ("#cfe3f5", "searches among rows that the scheduler holds"),
    "rows": ("#d5ecd4", "passes over all rows"),
    "thrown away": ("#f2d3d3", "step cut by the limit"),
    "last pass": ("#f6e5bf", "labels of all rows"),
}
LINES = {"scheduler": "tab:red", "worker 1": "tab:blue", "worker 2": "tab:cyan"}
FLOOR = 0.01
"""Excess in per cent below which everything is drawn at this height."""


def draw(result: dict[str, Any], path: Path) -> None:
    """The fit and the long run side by side; seconds are shown as dense passes above."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2, sharex="col", sharey="row", height_ratios=(3, 2))
    dense = float(np.mean([one["seconds"] for one in result["dense"].values()]))
    end = result["long"]["curve"][-1][1]
    size, names = result["size"], {"fit": "the fit", "long": "a long run"}
    for (upper, lower), name in zip(panels.T, names, strict=True):
        record = result[name]
        for axes in (upper, lower):
            _shade(axes, record)
            axes.grid(True, which="major", alpha=0.25)
        seconds, energies, _ = np.array(record["curve"]).T
        excess = np.maximum(100 * (energies / end - 1), FLOOR)
        upper.plot(seconds, excess, color="black", lw=1.6, marker="o", ms=3)
        upper.set(yscale="log", title=names[name])
        upper.yaxis.set_major_formatter("{x:g}")
        passes = upper.secondary_xaxis("top", functions=_in_passes(dense))
        passes.set_xlabel("dense passes over all rows and centres", fontsize=9)
        for process, color in LINES.items():
            at, held = np.array(record["memory"].get(process, [[0, 0]])).T
            lower.plot(at, held / 1e9, color=color, lw=1.4, label=process)
        lower.set(xlabel="seconds since the job was submitted", xlim=(0, record["seconds"]))
        lower.set_ylim(bottom=0)
    panels[0, 0].set_ylabel("energy above the end of\nthe long run, %")
    panels[1, 0].set_ylabel("memory, GB")
    lines = [line for line in panels[1, 0].get_lines() if line.get_label() in LINES]
    panels[1, 0].legend(handles=lines, fontsize=8, loc="lower right")
    panels[0, 1].legend(fontsize=8, loc="upper right")
    figure.suptitle(
        f"auto through the service: {size['rows']:,} × 32, k = {size['clusters']:,}, "
        "two workers of one thread",
        fontsize=11,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def _in_passes(dense: float) -> tuple[Any, Any]:
    return lambda seconds: seconds / dense, lambda passes: passes * dense


def _shade(axes: Any, record: dict[str, Any]) -> None:
    """What a run did when; each kind has one entry in a legend."""
    seen = set()
    for phase in record["phases"]:
        color, label = SHADES[phase["name"]]
        axes.axvspan(
            phase["begin"], phase["begin"] + phase["seconds"], color=color, lw=0,
            label=None if phase["name"] in seen else label,
        )  # fmt: skip
        seen.add(phase["name"])
