"""Colours, dashes and axis names of charts, in a light and a dark theme.

Lines differ in dashes, marks and lightness as well as in colour, so that readers who do not see
colours can distinguish them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a chart, as hexadecimal numbers."""

    paper: str
    """Background."""
    ink: str
    """Text and marks."""
    quiet: str
    """Axes and their numbers."""
    rule: str
    """Grid."""
    lines: tuple[str, ...]
    """Lines, of different lightness, with a contrast of at least 3:1 to the background."""


THEMES = {
    "light": Theme("#ffffff", "#1b2430", "#566170", "#dde2e8",
                   ("#1f5fbf", "#b4510a", "#0b3d2a", "#8a2a8f", "#6b7887", "#b3261e")),
    "dark": Theme("#14181d", "#e5e9ee", "#a0abb8", "#343c46",
                  ("#82b4ff", "#ffb171", "#d6f5e3", "#c46bd0", "#a0abb8", "#ff6f66")),
}  # fmt: skip
"""Themes by name; the colours are those of ``templates/style.css``."""
DASHES = ("solid", "dashed", "dotted", "dotdash", "dashdot", "solid")
"""Dashes of lines, by Bokeh's names."""
X_LABELS = {"elapsed": "time used", "clusters": "clusters", "size": "weight of a cluster's rows"}
"""Labels of horizontal axes; for any other axis, its name is the label."""
MOST_NAMED = 10
"""Maximum number of lines in a legend."""
