"""Create figures without a display, and define the colours of libraries."""

from __future__ import annotations

from typing import Any

RIVALS = {
    "scikit-learn": ("tab:blue", "--"),
    "faiss": ("tab:green", "--"),
    "scikit-learn MiniBatchKMeans": ("tab:olive", "-"),
    "SuperKMeans, flat": ("tab:purple", "-"),
    "SuperKMeans, hierarchical": ("tab:orange", "-"),
}


def new_figure(
    columns: int, width: float, height: float, rows: int = 1, **options: Any
) -> tuple[Any, Any]:
    """Return a figure and its axes: one row, or an array of rows and columns."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, panels[0] if rows == 1 else panels
