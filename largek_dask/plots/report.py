"""Write a self-contained HTML report about a model: its fit and its clusters."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from largek_dask.driver.formatting import human_seconds
from largek_dask.driver.job_view import JobView
from largek_dask.errors import OutputError, ParameterError
from largek_dask.model import CentersModel, Model, PathModel
from largek_dask.model.exemplars import Exemplars
from largek_dask.plots.model_panels import curve_panel, events_of, title_of
from largek_dask.plots.panels import Panel, panels
from largek_dask.plots.render import Section, render, section

MOST_LISTED = 50
"""Maximum number of clusters in the table of sizes."""
MOST_FEATURES, MOST_COMPARED = 40, 8
"""Maximum numbers of features and clusters in the table of centres."""
MOST_TEXT, MOST_ID = 400, 40


@dataclass(frozen=True, slots=True)
class Report:
    """HTML report about a model, which notebooks display.

    Examples
    --------
    >>> import numpy as np
    >>> import largek_dask as lk
    >>> x = np.random.default_rng(0).normal(size=(500, 3))
    >>> report = lk.KMeans(5, random_state=0).fit(x).model_.report()
    >>> report.html[:15]
    '<!DOCTYPE html>'
    """

    title: str
    content: Mapping[str, Any] = field(repr=False)
    """Values for the template."""

    @property
    def html(self) -> str:
        """The complete HTML page; without matplotlib, the page has tables but no charts."""
        return render("report.html", title=self.title, is_page=True, **self.content)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the page to a file.

        Parameters
        ----------
        path : str or path
        overwrite : bool
            Whether to replace an existing file.

        Raises
        ------
        OutputError
            The file exists, or cannot be written.
        """
        try:
            with open(path, "w" if overwrite else "x", encoding="utf-8") as file:
                file.write(self.html)
        except OSError as error:
            raise OutputError(
                f"{os.fspath(path)} cannot be written: {error}; overwrite=True replaces a file."
            ) from error

    def _repr_html_(self) -> str:
        return render("report.html", title=self.title, is_page=False, **self.content)

    def __repr__(self) -> str:
        return f"<Report of {self.title}; save(path) writes it>"


def make_report(
    model: Model,
    warnings: Sequence[str] = (),
    reload_seconds: float | None = None,
    exemplars: Exemplars | None = None,
) -> Report:
    """Make the report of a model; ``warnings`` are the warnings of its fit.

    If ``reload_seconds`` is given, browsers reload the page after this time.
    """
    charts = {panel.kind: panel for panel in panels(JobView().update_all(events_of(model)))}
    found = (_cost(model, charts), _path(model), _sizes(model, charts))
    content = {
        **_head(model),
        "notes": warnings,
        "reload_seconds": reload_seconds,
        "sections": [one for one in (*found, _nearest(model, exemplars), _features(model)) if one],
        "provenance": _provenance(model),
    }
    return Report(title_of(model), content)


def _head(model: Model) -> dict[str, Any]:
    known = model.provenance
    tiles: dict[str, str] = {}
    if (value := known.get(model.objective.name)) is not None:
        tiles[model.objective.words] = _number(value)
    tiles["clusters"] = f"{model.n_clusters:,}"
    tiles["weight of rows"] = f"{model.counts.sum():,.6g}"
    if "n_iter" in known:
        tiles["steps"] = f"{known['n_iter']:,}"
    if "seconds" in known:
        tiles["time"] = human_seconds(known["seconds"]).replace(" ", "\u00a0")
    if "stop_reason" in known:
        tiles["stopped"] = str(known["stop_reason"]).replace("_", " ")
    return {"tiles": tiles, "lead": [f"model kind: {model.kind}"]}


def _cost(model: Model, charts: Mapping[str, Panel]) -> Section:
    of_step, history = model.objective.of_step, model.history
    title = f"{of_step[:1].upper()}{of_step[1:]} against time"
    if "cost" not in charts:
        return {"title": title, "lead": "The model contains no history of its fit."}
    lead = f"{len(history):,} steps in {human_seconds(history[-1]['seconds'])}."
    return {**section(charts["cost"], lead), "title": title}


def _path(model: Model) -> Section | None:
    if not isinstance(model, PathModel):
        return None
    found = model.path_.suggest_k()
    panel = curve_panel(found, model.path_.lower_bound)
    return {**section(panel, panel.words), "title": "Number of clusters"}


def _sizes(model: Model, charts: Mapping[str, Panel]) -> Section:
    counts = model.counts
    if not counts.sum() > 0:
        return {"title": "Sizes", "lead": "No cluster has rows."}
    order = np.argsort(-counts, kind="stable")[:MOST_LISTED]
    shares = counts / counts.sum()
    rows = [(f"{j}", f"{counts[j]:,.6g}", f"{100 * shares[j]:.2f} %") for j in order]
    is_all = len(order) == len(counts)
    panel = charts.get("sizes")
    return {
        "title": "Sizes",
        "panel": panel,
        "pairs": None if panel is None else {"heading": "", "values": dict(panel.figures)},
        "summary": "All clusters" if is_all else f"The largest {len(order)} clusters",
        "table": (("cluster", "weight of rows", "fraction"), rows, ()),
    }


def _nearest(model: Model, exemplars: Exemplars | None) -> Section | None:
    """Return a table of the rows nearest to the largest clusters' centres."""
    if not isinstance(model, CentersModel) or not model.counts.sum() > 0:
        return None
    title = "Nearest rows"
    if exemplars is None:
        lead = "Not listed, because the report was made without rows: use largek report --rows."
        return {"title": title, "lead": lead}
    found = exemplars.nearest
    if len(found.ids) != model.n_clusters:
        raise ParameterError(
            f"exemplars of {len(found.ids):,} clusters do not belong to this model, which has "
            f"{model.n_clusters:,}; use exemplars() of the same model."
        )
    order = np.argsort(-model.counts, kind="stable")[:MOST_LISTED]
    shown = [found.ids[j][found.rows[j] >= 0] for j in order]
    rows = [
        (f"{j}", f"{model.counts[j]:,.6g}", ", ".join(_cut(str(one), MOST_ID) for one in ids))
        for j, ids in zip(order, shown, strict=True)
    ]
    which = "all" if len(order) == model.n_clusters else f"the largest {len(order)}"
    return {
        "title": title,
        "lead": f"Ids of the rows nearest to the centres of {which} clusters, nearest first.",
        "table": (("cluster", "weight of rows", "ids"), rows, ("ids",)),
    }


def _features(model: Model) -> Section | None:
    """Return a table of the largest clusters' centres, with one row per feature."""
    centers, counts = model._cluster_centers(), model.counts
    if centers is None or not counts.sum() > 0:
        return None
    largest = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)][:MOST_COMPARED]
    shares, values = counts / counts.sum(), centers.astype(np.float64)
    mean = shares @ values
    spread = np.sqrt(shares @ np.square(values - mean))
    z = np.divide(values - mean, spread, out=np.zeros_like(values), where=spread > 0)
    # Sort features by the largest distance of a cluster centre to the mean.
    order = np.argsort(-np.abs(z[largest]).max(axis=0), kind="stable")[:MOST_FEATURES]
    names = model.feature_names
    rows = [
        (f"feature {f}" if names is None else str(names[f])[:32],
         *(f"{_number(float(f'{values[j, f]:.4g}'))} ({z[j, f]:+.1f})" for j in largest))
        for f in order
    ]  # fmt: skip
    which = f"the largest {len(largest)} of {len(counts):,} clusters"
    some = f", for the {len(order)} of {len(mean):,} features with the largest distances"
    return {
        "title": "Centres by feature",
        "lead": f"Means of {which if len(largest) < len(counts) else 'all clusters'}"
        f"{some if len(order) < len(mean) else ''}. In parentheses: the distance to the "
        "overall mean, in standard deviations of the centres.",
        "table": (("feature", *(f"cluster {j}" for j in largest)), rows, ("feature",)),
    }


def _provenance(model: Model) -> dict[str, str]:
    figures = {name: _number(value) for name, value in model.fit_figures().items()}
    found = dict(_flat({**figures, "digest": model.digest(), **model.provenance}))
    if model.feature_names is not None:
        found["columns"] = _cut(", ".join(model.feature_names), MOST_TEXT)
    return found


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _number(value: float) -> str:
    """Format a number with seven significant digits, or more if its integer part is longer."""
    return f"{value:,.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:,.7g}"


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        path = f"{before}{str(name).replace('_', ' ')}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}: ")
        else:
            is_text = isinstance(value, str)
            text = value if is_text else "none" if value is None else json.dumps(value, default=str)
            yield path, _cut(text, MOST_TEXT)
