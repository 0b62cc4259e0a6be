"""Make panels of a model, and of the objective by number of clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.objective import INERTIA
from largek_dask.driver.final import sizes_of
from largek_dask.driver.stopping import sample_of
from largek_dask.model import MixtureModel, Model
from largek_dask.model.suggest_k import SuggestedK
from largek_dask.plots.panels import Panel, Trace, make_panel, make_trace

DECADES = 100.0
"""Minimum ratio of the largest to the smallest objective for a logarithmic axis."""


def title_of(model: Model) -> str:
    """Describe the number of clusters or components and, if known, the shape of the rows."""
    shape = _shape_of(model)
    of = f" of {shape[0]:,} rows × {shape[1]:,}" if shape else f" in {model.n_features:,} columns"
    what = "components" if isinstance(model, MixtureModel) else "clusters"
    return f"{model.n_clusters:,} {what}{of}"


def _shape_of(model: Model) -> Sequence[int] | None:
    found: Sequence[int] | None = model.provenance.get("data", {}).get("content", {}).get("shape")
    return found or None


def events_of(model: Model) -> list[dict[str, Any]]:
    """Reconstruct the events of a fit from the model's history and cluster sizes."""
    shape = _shape_of(model)
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


def curve_panel(found: SuggestedK, lower_bound: NDArray[np.float64] | None = None) -> Panel:
    n_clusters, inertia = found.n_clusters, found.inertia
    curves = {"inertia": inertia}
    if lower_bound is not None:
        curves["lower bound"] = np.maximum(lower_bound, 0)
    positive = inertia[inertia > 0]
    is_log = len(positive) > 0 and bool(positive.max() > DECADES * positive.min())
    lines = [
        # A logarithmic axis cannot show 0.
        make_trace(name, n_clusters.tolist(),
                   [None if is_log and value <= 0 else value for value in y.tolist()])
        for name, y in curves.items()
    ]  # fmt: skip
    return make_panel(
        "path",
        "Inertia by number of clusters",
        found.words,
        series=[*lines, *_suggested(found)],
        x="clusters",
        y=f"inertia ({INERTIA.unit})",
        log=is_log,
        from_zero=not is_log,
        columns=("clusters", *curves),
        rows=[
            (f"{k:,}", *(f"{y[i]:,.7g}" for y in curves.values()))
            for i, k in enumerate(n_clusters.tolist())
        ],
    )


def _suggested(found: SuggestedK) -> list[Trace]:
    """Return a trace that marks the suggested number of clusters; empty without a suggestion."""
    if found.k is None or found.range is None:
        return []
    least, most = found.range
    name = f"suggested: {found.k:,}{'' if least == most else f' ({least:,} to {most:,})'} clusters"
    value = float(found.inertia[np.flatnonzero(found.n_clusters == found.k)[0]])
    return [make_trace(name + ("" if found.clear else " or more"), [found.k], [value])]
