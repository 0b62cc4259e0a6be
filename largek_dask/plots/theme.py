"""Colours, dash patterns and axis labels of charts, with a light and a dark theme.

Lines differ in dash pattern, marker and lightness as well as in colour, so that colour-blind
readers can distinguish the lines.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a chart, as hexadecimal codes."""

    paper: str
    """Colour of the background."""
    ink: str
    """Colour of text and marks."""
    quiet: str
    """Colour of axes and tick labels."""
    rule: str
    """Colour of grid lines."""
    lines: tuple[str, ...]
    """Colours of lines; they differ in lightness and have a contrast of at least 3:1 with the
    background."""


THEMES = {
    "light": Theme("#ffffff", "#1b2430", "#566170", "#dde2e8",
                   ("#1f5fbf", "#b4510a", "#0b3d2a", "#8a2a8f", "#6b7887", "#b3261e")),
    "dark": Theme("#14181d", "#e5e9ee", "#a0abb8", "#343c46",
                  ("#82b4ff", "#ffb171", "#d6f5e3", "#c46bd0", "#a0abb8", "#ff6f66")),
}  # fmt: skip
"""Themes by name, with the same colours as ``templates/style.css``."""
DASHES = ("solid", "dashed", "dotted", "dotdash", "dashdot", "solid")
"""Bokeh names of the dash patterns of lines."""
X_LABELS = {"elapsed": "elapsed time", "clusters": "clusters", "size": "weight of a cluster's rows"}
"""Labels of horizontal axes, by quantity; any other quantity is its own label."""
MOST_NAMED = 10
"""Maximum number of lines named in a legend."""
