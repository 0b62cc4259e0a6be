"""How panels look, whatever draws them: colours, dashes, marks, and what is particular to a kind.

Lines are told apart by dashes, marks and lightness as well as by their colours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = [
    "DASHES",
    "LOOKS",
    "THEMES",
    "TIMES",
    "UNITS",
    "X_LABELS",
    "Look",
    "Theme",
    "round_ticks",
    "time_unit",
]


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a figure."""

    paper: str
    """Background."""
    ink: str
    """Texts and marks."""
    quiet: str
    """Axes and their numbers."""
    rule: str
    """Lines of the grid."""
    lines: tuple[str, ...]
    """Colours of lines, of different lightness, each at least 3:1 against the paper."""


THEMES = {
    "light": Theme("#ffffff", "#1b2430", "#566170", "#dde2e8",
                   ("#1f5fbf", "#b4510a", "#0b3d2a", "#8a2a8f", "#6b7887", "#b3261e")),
    "dark": Theme("#14181d", "#e5e9ee", "#a0abb8", "#343c46",
                  ("#82b4ff", "#ffb171", "#d6f5e3", "#c46bd0", "#a0abb8", "#ff6f66")),
}  # fmt: skip
"""Themes by name; the colours are those of the pages (``observe.page``)."""
DASHES = ("solid", "dashed", "dotted", "dotdash", "dashdot", "solid")
"""Dashes of lines, by Bokeh's names."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is particular to a kind of panel."""

    numbers: str = ""
    """Kind of the numbers beside the upright axis: "whole", "share", "bytes" or "seconds"; empty:
    as they are."""
    from_zero: bool = False
    """Whether the upright axis begins at 0."""
    steps: bool = False
    """Whether values hold until the next one."""
    bars: bool = False
    """Whether there are bars instead of lines, over a logarithmic axis."""


LOOKS = {
    "when": Look("seconds", from_zero=True),
    "speed": Look("whole", from_zero=True),
    "workers": Look("whole", from_zero=True),
    "split": Look("share", from_zero=True),
    "memory": Look("bytes", from_zero=True),
    "work": Look("share"),
    "batch": Look("whole", steps=True),
    "components": Look("whole", steps=True),
    "partitions": Look("whole", steps=True),
    "sizes": Look("whole", from_zero=True, bars=True),
    "bytes": Look("bytes", from_zero=True),
}
"""Looks by kind of panel; others are lines as they are."""
X_LABELS = {
    "elapsed": "time used",
    "time": "time of day (UTC)",
    "passes": "passes over the data",
    "clusters": "clusters",
    "size": "weight of a cluster's rows",
}
"""Names of axes."""
TIMES = ("elapsed", "time")
"""Axes that are of time, in ms."""
UNITS = {"bytes": (1024.0, 5), "seconds": (60.0, 3)}
"""In what numbers of a kind are round: powers of what, and how many of them have a name."""


def round_ticks(kind: str, top: float, most: int = 6) -> list[float]:
    """Round numbers of bytes or seconds from 0 to ``top``, to be written beside an axis.

    Examples
    --------
    >>> [tick / 3600 for tick in round_ticks("seconds", 40_000)]
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    if not 0 < top < math.inf:
        return [0.0]
    base, powers = UNITS[kind]
    unit = base ** min(powers - 1, max(0, math.floor(math.log(top, base))))
    step, size = unit * 10.0 ** math.floor(math.log10(top / unit / most)), 1.0
    while top > most * step * size:
        size = {1.0: 2.0, 2.0: 5.0}.get(size, 2 * size)
    return [i * step * size for i in range(math.floor(top / (step * size)) + 1)]


def time_unit(most: float) -> tuple[float, str]:
    """What times of at most so many ms are divided by, and the name of the unit."""
    for size, unit in ((3.6e6, "hours"), (6e4, "minutes")):
        if most >= 3 * size:
            return size, unit
    return 1e3, "seconds"
