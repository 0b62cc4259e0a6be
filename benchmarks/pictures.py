"""Pictures of `benchmarks.nmbatch`: cost against time, and distances computed a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.curves import DENSE, LLOYD, MINIBATCH, NMBATCH, OWN_START, PUBLISHED
from benchmarks.nmbatch_tables import end_of, name_of, rival_points
from benchmarks.peers import seconds_of

__all__ = ["draw_case", "draw_distances", "new_figure"]

FLOOR = 0.01
"""Excess in per cent below which everything is drawn at this height."""
OURS = {
    DENSE: ("tab:gray", "--"),
    LLOYD: ("black", "-"),
    NMBATCH: ("tab:red", "-"),
    "nmbatch, no bounds": ("tab:red", ":"),
    PUBLISHED: ("tab:blue", "-"),
    f"{PUBLISHED}, rho = 1": ("tab:cyan", "-"),
    "mbatch": ("tab:olive", "-"),
    "mbatch, latest votes": ("tab:green", "-"),
}
RIVALS = {
    "scikit-learn": ("tab:blue", "--"),
    "faiss": ("tab:green", "--"),
    "scikit-learn-intelex": ("tab:cyan", "--"),
    MINIBATCH: ("tab:olive", "-"),
    "SuperKMeans, flat": ("tab:purple", "-"),
    "SuperKMeans, hierarchical": ("tab:orange", "-"),
}


def new_figure(columns: int, width: float, height: float, **options: Any) -> tuple[Any, Any]:
    """A figure and its axes in one row, without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns, squeeze=False, **options)[0]


def draw_case(record: dict[str, Any], path: Path) -> None:
    """Excess energy against CPU seconds, both logarithmic: our variants, and the rivals."""
    end = end_of(record)
    figure, (left, right) = new_figure(2, 12, 5, sharey=True, sharex=True)

    def line(axes: Any, seconds: Any, energies: Any, style: tuple[str, str], **about: Any) -> None:
        excess = np.maximum(100 * (np.array(energies) / end - 1), FLOOR)
        axes.plot(seconds, excess, linestyle=style[1], color=style[0], **about)

    for method, style in OURS.items():
        for run in record["runs"].get(method, [])[:1]:
            line(left, run["seconds"], run["energies"], style, lw=1.6, label=method)
    for method, color in ((NMBATCH, "tab:red"), (OWN_START, "tab:pink")):
        for i, run in enumerate(record["runs"].get(method, [])):
            style, name = (color, "-"), method if i == 0 else None
            line(
                right, run["seconds"], run["energies"], style, lw=1.6 if i == 0 else 0.7, label=name
            )
    lloyd = record["runs"][LLOYD][0]
    for rival, style in RIVALS.items():
        measured = record["rivals"].get(rival)
        if isinstance(measured, dict):
            seconds = [seconds_of(measured, step) for step in lloyd["steps"]]
            line(right, seconds, lloyd["energies"], style, lw=1.6, label=f"{rival} KMeans")
        for run in record["runs"].get(rival, [])[:1]:
            line(right, run["seconds"], run["energies"], style, lw=1.6, label=rival)
    for rival, points in rival_points(record):
        if rival.startswith("SuperKMeans"):
            energies, seconds = zip(*points, strict=True)
            line(right, seconds, energies, RIVALS[rival], lw=1.6, marker="o", ms=5, label=rival)
    about = f"{name_of(record)}: {record['n']:,} × {record['d']}, k = {record['k']}"
    for axes, title in ((left, "variants of our own"), (right, "beside public libraries")):
        axes.set(xscale="log", yscale="log", xlabel="CPU seconds, one thread")
        axes.set_title(f"{about}; {title}", fontsize=10)
        axes.grid(True, which="both", alpha=0.2)
        axes.legend(fontsize=8)
    left.set_ylabel(f"energy above Lloyd's end, % ({FLOOR:g}: that or less)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def draw_distances(result: dict[str, Any], path: Path) -> None:
    """Distances computed in every step, as a share of N·k, where bounds are worth having."""
    shown = [r for r in result["records"] if (r["runs"][LLOYD][0]["mean_share"] or 1) < 0.999]
    if not shown:
        return
    columns = min(3, len(shown))
    shown = sorted(shown, key=lambda r: -r["k"])[:columns]
    figure, panels = new_figure(columns, 3.6 * columns, 3.4, sharey=True)
    for axes, record in zip(panels, shown, strict=True):
        for method in (LLOYD, NMBATCH, PUBLISHED):
            run = record["runs"][method][0]
            shares = 100 * np.array(run["shares"])
            axes.plot(run["share_steps"], shares, color=OURS[method][0], lw=1.4, label=method)
        axes.set(xscale="log", yscale="log", xlabel="step")
        axes.set_title(f"{name_of(record)}, k = {record['k']}", fontsize=10)
        axes.grid(True, which="both", alpha=0.2)
    panels[0].set_ylabel("distances computed, % of N·k")
    panels[-1].legend(fontsize=8)
    figure.savefig(path, dpi=100)
