"""Panels of a model and of a curve of numbers of clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.objective import INERTIA
from largek_dask.driver.history import sample_of
from largek_dask.driver.sizes import sizes_of
from largek_dask.model import Model, PathModel
from largek_dask.model.suggest_k import SuggestedK
from largek_dask.plots.panels import Panel, Trace, make_panel, make_trace

__all__ = ["centers_panel", "elbow_panels", "events_of", "path_panel", "shape_of"]

DECADES = 100.0
"""Objectives that differ by more than this factor are drawn on a logarithmic axis."""
SUGGESTED_SIZE = 12
"""Size of the mark at the suggested number of clusters, in pixels."""
MOST_LISTED = 25
"""Rows of a table of numbers of clusters."""
MOST_CIRCLES, MOST_LABELS = 1_000, 40
"""Centres that are drawn, and those that are numbered."""
MOST_AXES_CENTERS = 1_000
"""Centres from which the principal axes are found."""
LARGEST, SMALLEST = 80.0, 5.0
"""Diameters of circles, in pixels."""
AREA = 39_000.0
"""Area of all circles together, in pixels."""


def shape_of(model: Model) -> Sequence[int] | None:
    """Return the shape of the rows that a model was fitted to, if it is known."""
    found: Sequence[int] | None = model.provenance.get("data", {}).get("content", {}).get("shape")
    return found or None


def events_of(model: Model) -> list[dict[str, Any]]:
    """Return events of the fit of a model, from its history and the sizes of its clusters."""
    shape = shape_of(model)
    n_rows = shape[0] if shape else max((step["rows"] for step in model.history), default=0)
    events: list[dict[str, Any]] = [
        {"event": "started", "n_rows": n_rows, "n_features": model.n_features,
         **model.objective.describe()},
    ]  # fmt: skip
    for step in model.history:
        about = {name: value for name, value in step.items() if name != "seconds"}
        sample = sample_of(step, n_rows)
        events.append({**about, "event": "step", "elapsed": step["seconds"], "sample": sample})
    return [*events, {"event": "sizes", **sizes_of(model.counts)}]


def path_panel(model: PathModel) -> Panel:
    """Return the objective and its lower bound by number of clusters."""
    path = model.path_
    n_clusters, bound = np.arange(1, len(path) + 1), np.maximum(path.lower_bound, 0)
    found = path.suggest_k()
    scale = _scale(path.inertia)
    lines = [_curve("found", n_clusters, path.inertia, log=scale["log"]),
             _curve("lower bound", n_clusters, bound, log=scale["log"])]  # fmt: skip
    places = np.unique(np.linspace(0, len(path) - 1, min(MOST_LISTED, len(path))).astype(int))
    return make_panel(
        "path",
        "Inertia by number of clusters",
        found.words,
        series=[*lines, *_suggested(found)],
        axes=("clusters",),
        y=f"inertia ({INERTIA.unit})",
        columns=("clusters", "inertia", "lower bound"),
        rows=[(f"{i + 1:,}", f"{path.inertia[i]:,.7g}", f"{path.lower_bound[i]:,.7g}")
              for i in places],
        **scale,
    )  # fmt: skip


def elbow_panels(found: SuggestedK, errors: NDArray[np.float64], stable: float) -> list[Panel]:
    """Return the objective and the stability by number of clusters.

    ``errors`` are standard errors of the objectives: a band of two of them is drawn on both sides.
    Two halves of the rows agree from the stability ``stable`` on.
    """
    n_clusters, inertia = found.n_clusters, found.inertia
    low, high = ((inertia + sign * 2 * errors).tolist() for sign in (-1, 1))
    scale = _scale(inertia)
    curve = _curve("found", n_clusters, inertia, log=scale["log"], low=low, high=high)
    agree = make_trace(
        f"halves agree: {stable:g} or more", n_clusters[[0, -1]].tolist(), [stable, stable]
    )
    known = ~np.isnan(found.stability)
    ends = {"axes": ("clusters",), "log_x": bool(n_clusters[-1] > 20)}
    return [
        make_panel(
            "elbow", "Inertia by number of clusters", found.words,
            series=[curve, *_suggested(found)], y=f"inertia ({INERTIA.unit})",
            **ends, **scale,
        ),
        make_panel(
            "stability", "Agreement between two halves of the rows", found.words,
            series=[_curve("stability", n_clusters[known], found.stability[known]), agree],
            y="adjusted Rand index", **ends,
        ),
    ]  # fmt: skip


def _curve(
    name: str, x: NDArray[Any], y: NDArray[np.float64], *, log: bool = False, **band: list[float]
) -> Trace:
    # A logarithmic axis has no place for 0.
    values = [None if log and value <= 0 else value for value in y.tolist()]
    return make_trace(name, x.tolist(), values, **band)


def _scale(values: NDArray[np.float64]) -> dict[str, bool]:
    positive = values[values > 0]
    is_log = len(positive) > 0 and bool(positive.max() > DECADES * positive.min())
    return {"log": is_log, "from_zero": not is_log}


def _suggested(found: SuggestedK) -> list[Trace]:
    """Return a mark at the suggested number of clusters, if there is one."""
    if found.k is None or found.range is None:
        return []
    least, most = found.range
    name = f"suggested: {found.k:,}{'' if least == most else f' ({least:,} to {most:,})'} clusters"
    value = float(found.inertia[np.flatnonzero(found.n_clusters == found.k)[0]])
    columns: dict[str, list[float]] = {"x": [found.k], "y": [value], "mark": [SUGGESTED_SIZE]}
    return [Trace(name + ("" if found.clear else " or more"), columns)]


def centers_panel(
    model: Model, chosen: Sequence[int], behind: NDArray[np.float64] | None
) -> Panel | None:
    """Return the centres on their first two principal axes; None if there are none.

    Chosen clusters have another colour; rows may be drawn behind the centres.
    """
    centers, counts = model._cluster_centers(), model.counts
    if centers is None or not counts.sum() > 0:
        return None
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    mean, axes, shares, whose = _plane(centers[order], counts[order], behind)
    drawn = order[:MOST_CIRCLES]
    is_chosen = np.isin(drawn, chosen)
    sizes = np.rint(np.clip(np.sqrt(AREA * counts[drawn] / counts.sum()), SMALLEST, LARGEST))
    labels = np.where(is_chosen | (np.arange(len(drawn)) < MOST_LABELS), drawn.astype(str), "")

    def circles(name: str, of: NDArray[np.bool_]) -> Trace:
        x, y = ((centers[drawn[of]] - mean) @ axes).T
        return Trace(name, {"x": x.tolist(), "y": y.tolist(), "mark": sizes[of].tolist(),
                            "label": labels[of].tolist()})  # fmt: skip

    series = [circles("centres", ~is_chosen), circles("centres shown below", is_chosen)]
    words = (
        f"Centres on the plane in which {whose} differ most; areas by the weight of a "
        "cluster's rows."
    )
    if behind is not None:
        # A few distant rows would leave no room for the others.
        points = (behind - mean) @ axes
        low, high = np.quantile(points, (0.002, 0.998), axis=0)
        points = points[((points >= low) & (points <= high)).all(axis=1)]
        x, y = points.T
        series.insert(
            0, Trace("rows", {"x": x.tolist(), "y": y.tolist(), "mark": [3] * len(points)})
        )
        words += f" Behind them {len(points):,} rows."
    if len(drawn) < len(order):
        words += f" The largest {len(drawn):,} are drawn."
    return make_panel(
        "centers",
        "Centres",
        words,
        series=[trace for trace in series if trace.columns["x"]],
        axes=(f"first principal axis, {shares[0]:.0%} of their variance",),
        y=f"second principal axis, {shares[1]:.0%} of their variance",
        style="points",
    )


def _plane(
    centers: NDArray[Any], counts: NDArray[np.float64], rows: NDArray[np.float64] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], Sequence[float], str]:
    """Return mean, first two principal axes (d, 2), their shares of the variance, and of what.

    They are those of the largest centres, or of the rows if there are few centres.
    """
    points, weights, whose = centers[:MOST_AXES_CENTERS], counts[:MOST_AXES_CENTERS], "they"
    if len(points) < 3 and rows is not None:
        points, whose = rows[:MOST_AXES_CENTERS], "rows"
        weights = np.ones(len(points))
    mean = np.average(points.astype(np.float64), axis=0, weights=weights)
    apart = (points - mean) * np.sqrt(weights / weights.sum())[:, None]
    _, values, vectors = np.linalg.svd(apart, full_matrices=False)
    axes = np.zeros((apart.shape[1], 2))
    axes[:, : min(2, len(vectors))] = vectors[:2].T
    # Axes have no sign of their own: the largest component is positive.
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
    shares = np.square(values) / max(float(np.square(values).sum()), 1e-300)
    return mean, axes * np.where(signs == 0, 1, signs), [*shares[:2], 0.0, 0.0], whose
