"""Pictures of `benchmarks.vrkm`: objectives against passes and seconds, in the paper's forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import on_grid
from benchmarks.pictures import new_figure
from benchmarks.vrkm_methods import (
    BATCH,
    EPOCHS,
    ETAS,
    GROW,
    LLOYD,
    MINI,
    NMBATCH,
    ONE_ROW,
    ONE_ROW_TEN,
    ROUNDS,
    ROUNDS_ONE,
    SGD,
    TABLE,
    TABLE_ALL,
    TRUNCATED,
    VRKM,
    of_epoch,
    of_eta,
    of_svrg,
)

__all__ = ["PICTURES", "middle_curve"]

FLOOR = 0.01
"""Excess in per cent below which everything is drawn at this height."""
HIGH = 100.0
WORDS = f"energy above the lowest of all, % ({FLOOR:g}: that or less)"
MOST_PASSES = 40.0
"""Passes up to which runs to the end are shown; seconds go on."""
STYLES = {
    BATCH: ("black", "-"),
    MINI: ("tab:olive", "-"),
    SGD: ("tab:green", "-"),
    GROW: ("tab:cyan", "-"),
    VRKM: ("tab:purple", "--"),
    ONE_ROW: ("tab:blue", "--"),
    ONE_ROW_TEN: ("tab:red", "--"),
    ROUNDS_ONE: ("tab:blue", "-"),
    ROUNDS: ("tab:red", "-"),
    LLOYD: ("black", "-"),
    NMBATCH: ("tab:cyan", "-"),
    TRUNCATED: ("tab:green", "-"),
    TABLE: ("tab:red", "-"),
    TABLE_ALL: ("tab:orange", "--"),
}
COLORS = ("tab:cyan", "tab:blue", "tab:purple", "tab:orange", "tab:red")
STYLES |= {of_eta(times): (color, "-") for times, color in zip(ETAS, COLORS, strict=True)}
STYLES |= {
    of_epoch(share, eta): (color, style)
    for eta, style in ((1, "--"), (10, "-"))
    for share, color in zip(EPOCHS, COLORS, strict=False)
}
STYLES |= {
    of_svrg(eta, scaled): (color, style)
    for scaled, color in ((False, "tab:orange"), (True, "tab:blue"))
    for eta, style in ((1, "--"), (10, "-"))
}

Record = dict[str, Any]


def middle_curve(
    record: Record, method: str, axis: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Median over seeds of the excess in per cent over the lowest energy of all methods.

    It begins where all runs have come to their first step.

    Parameters
    ----------
    record : dict
        Of a set.
    method : str
    axis : str
        "passes" or "seconds".
    """
    runs = [seed["runs"][method] for seed in record["seeds"]]
    points = np.unique(np.concatenate([run[axis] for run in runs]))
    lines = []
    for seed, run in zip(record["seeds"], runs, strict=True):
        energies = [np.inf if value is None else value for value in run["energies"]]
        lines.append(100 * (on_grid(points, run[axis], energies) / lowest(seed) - 1))
    there = ~np.isnan(lines).any(axis=0)
    return points[there], np.median(np.array(lines)[:, there], axis=0)


def lowest(seed: Record) -> float:
    """The lowest energy that any method has come to."""
    values = [value for run in seed["runs"].values() for value in run["energies"]]
    return float(min(value for value in values if value is not None))


def draw(axes: Any, record: Record, methods: Sequence[str], axis: str) -> None:
    """Curves of methods in one panel."""
    for method in methods:
        color, style = STYLES[method]
        at, values = middle_curve(record, method, axis)
        values = np.clip(np.where(np.isfinite(values), values, HIGH), FLOOR, HIGH)
        axes.plot(at, values, color=color, ls=style, lw=1.4, label=method)
    axes.set(yscale="log", xlabel="passes" if axis == "passes" else "CPU seconds, one thread")
    if axis == "seconds":
        axes.set(xscale="log")
    axes.grid(True, which="both", alpha=0.2)


def seeds_of(record: Record) -> str:
    """How many there are."""
    n = len(record["seeds"])
    return "one seed" if n == 1 else f"median of {n} seeds"


def draw_pairs(part: Record, folder: Path, name: str, most: float | None = None) -> None:
    """A picture a set: against passes, and against seconds."""
    for case, record in part["sets"].items():
        methods = [method for method in record["seeds"][0]["runs"] if method in STYLES]
        figure, (left, right) = new_figure(2, 12, 5, sharey=True)
        draw(left, record, methods, "passes")
        draw(right, record, methods, "seconds")
        left.set_xlim(0, most)
        left.set_ylabel(WORDS)
        left.set_title(f"{case}: {record['n']:,} × {record['d']:,}", fontsize=10)
        right.set_title(seeds_of(record), fontsize=10)
        right.legend(fontsize=8)
        figure.savefig(folder / f"{name}-{case}.png", dpi=100)


def draw_panels(part: Record, path: Path) -> None:
    """One panel a set, against passes."""
    sets = part["sets"]
    figure, panels = new_figure(len(sets), 3.6 * len(sets) + 1, 4, sharey=True)
    for axes, (case, record) in zip(panels, sets.items(), strict=True):
        draw(axes, record, list(record["seeds"][0]["runs"]), "passes")
        axes.set_title(f"{case}, {seeds_of(record)}", fontsize=10)
    panels[0].set_ylabel(WORDS)
    panels[-1].legend(fontsize=7)
    figure.savefig(path, dpi=100)


PICTURES: dict[str, Callable[[Record, Path], None]] = {
    "published": lambda part, folder: draw_pairs(part, folder, "vrkm-published"),
    "epoch": lambda part, folder: draw_panels(part, folder / "vrkm-epoch.png"),
    "eta": lambda part, folder: draw_panels(part, folder / "vrkm-eta.png"),
    "svrg": lambda part, folder: draw_panels(part, folder / "vrkm-svrg.png"),
    "table": lambda part, folder: draw_pairs(part, folder, "vrkm-table", MOST_PASSES),
}
"""What draws the pictures of a part."""
