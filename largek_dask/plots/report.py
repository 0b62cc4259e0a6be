"""A page about a model: its fit, its clusters and some of its rows, in one file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.fingerprint import same_data
from largek_dask.data.rows import Rows
from largek_dask.data.sources import open_rows
from largek_dask.driver.formatting import human_seconds
from largek_dask.driver.job_view import JobView
from largek_dask.driver.options import is_integer
from largek_dask.errors import LargekError, ParameterError, warnings_heard_by
from largek_dask.model import MixtureModel, Model, PathModel
from largek_dask.model.separation import NAMES, Score, Separation
from largek_dask.plots.examples import Examples, Looked, find_examples
from largek_dask.plots.model_panels import centers_panel, events_of, path_panel, shape_of
from largek_dask.plots.panels import Panel, panels
from largek_dask.plots.render import Charts, picture, render, write

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Report", "make_report", "parse_image"]

Section = dict[str, Any]
"""Values of a section of ``templates/report.html``."""

SAMPLE = 20_000
"""Rows that are read, by default."""
ROWS_PER_CLUSTER, MOST_SAMPLE = 20, 500_000
"""Rows per cluster that are read if that is more, and the most of them."""
CHOSEN = 6
"""Clusters whose rows are shown, by default."""
SHOWN = 5
"""Rows that are shown at either end."""
MOST_LISTED = 50
"""Clusters in the table of sizes."""
MOST_FEATURES, MOST_COMPARED = 40, 8
"""Features and clusters of the table of centres."""
MOST_TEXT, MOST_NAME, MOST_COLUMN = 400, 80, 20
"""Most characters of a value, of the name of a row, and of the name of a feature."""
FIRST_VALUES = 4
"""Values of a row without a name that are shown."""
MOST_Z, MOST_COLOR = 3.0, 45
"""The z-score with the strongest colour, and that colour's percentage: text stays readable."""

MEANINGS = {
    "silhouette": ("Silhouette, to centres", "more, up to 1"),
    "davies_bouldin": ("Davies-Bouldin", "less"),
    "calinski_harabasz": ("Calinski-Harabasz", "more"),
}
ENDINGS = {
    "max_iter": "The fit used up its steps (max_iter) before it converged: more may lower it.",
    "max_time": "The fit used up its time (max_time) before it converged: more may lower it.",
    "max_time_without_last_pass": "There was no time for the last pass: labels, sizes and the "
    "objective are those of the search, and may be inaccurate.",
    "interrupted": "The fit was interrupted: the model is the best one so far.",
    "cancelled": "The fit was cancelled: the model is the best one so far.",
}
GROUPS = {
    "parameters": "Parameters",
    "engine": "Algorithm",
    "stop": "Stopping",
    "data": "Rows",
    "report": "Reported by the algorithm",
    "versions": "Versions",
}
"""Headings of the groups of the provenance."""


@dataclass(frozen=True, slots=True)
class Report:
    """A page about a model; a notebook shows it.

    Examples
    --------
    >>> import numpy as np
    >>> import largek_dask as lk
    >>> x = np.random.default_rng(0).normal(size=(500, 3))
    >>> report = lk.KMeans(5, random_state=0).fit(x).model_.report(x)
    >>> report.figures["n_rows_looked_at"], report.html[:15]
    (500, '<!DOCTYPE html>')
    """

    title: str
    content: Mapping[str, Any] = field(repr=False)
    """The values of its template."""
    figures: Mapping[str, Any] = field(repr=False)
    """The figures on the page, for JSON."""
    reload_seconds: float | None = None
    """Seconds after which a browser reloads the page; None: never."""

    def _render(self, is_page: bool) -> str:
        seconds = None if self.reload_seconds is None else math.ceil(self.reload_seconds)
        return render(
            "report.html", title=self.title, charts=Charts(), is_page=is_page,
            reload_seconds=seconds, **self.content,
        )  # fmt: skip

    @property
    def html(self) -> str:
        """The whole page; with BokehJS (1 MB) if matplotlib is not installed."""
        return self._render(is_page=True)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the page to a file.

        Parameters
        ----------
        path : str or path
        overwrite : bool
            Replace an existing file.

        Raises
        ------
        OutputError
            The file exists, or cannot be written.
        """
        html = self.html
        write(path, lambda place: place.write_text(html, encoding="utf-8"), overwrite)

    def _repr_html_(self) -> str:
        return self._render(is_page=False)

    def __repr__(self) -> str:
        return f"<Report of {self.title}; save(path) writes it>"


def make_report(
    model: Model,
    rows: Any = None,
    *,
    sample: int | None = None,
    clusters: Sequence[int] | None = None,
    image: str | tuple[int, ...] | None = None,
    names: Any = None,
    seed: int = 0,
    sample_weight: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
    reads_rows: bool = True,
    client: Client | None = None,
    n_threads: int | None = None,
) -> Report:
    """Make the page of a model; see :meth:`largek_dask.model.Model.report`.

    ``warnings`` are those of the fit. Without ``reads_rows`` it leaves out what needs the rows,
    without a note.
    """
    if sample is None:
        sample = min(max(SAMPLE, ROWS_PER_CLUSTER * model.n_clusters), MOST_SAMPLE)
    if not is_integer(sample) or sample < 2:
        raise ParameterError(
            f"sample must be None or a number of rows of at least 2, got {sample!r}."
        )
    shape = None if image is None else parse_image(image, model.n_features)
    page = _Page(model, [*_notes_of(model), *warnings], _chosen(model, clusters), shape)
    location = model.provenance.get("data", {}).get("location")
    source, opened = location if rows is None else rows, None
    can_read = reads_rows and Separation.is_told_of(model)
    if can_read and source is None:
        page.notes.append(
            "The rows were in memory when the model was fitted: without them there are no scores "
            "and no examples. Give them to the report."
        )
    elif can_read:
        with page.noting(raises=rows is not None):
            opened = page.open(source, sample_weight, storage_options)
    if opened is not None:
        page.names = _names(names, opened.n_rows)
        with page.noting(raises=rows is not None):
            page.look(opened, sample, seed, client, n_threads)
    elif names is not None:
        raise ParameterError("names= are of rows, and the rows are not known here: give them too.")
    return page.report()


def parse_image(image: str | Sequence[int], n_features: int) -> tuple[int, ...]:
    """Return the shape of a row as an image: ``"8x8x3"`` as (8, 8, 3)."""
    parts = image.lower().split("x") if isinstance(image, str) else image
    try:
        shape = tuple(int(part) for part in parts)
    except (TypeError, ValueError):
        shape = ()
    if len(shape) not in (2, 3) or min(shape) < 1 or (len(shape) == 3 and shape[2] not in (1, 3)):
        raise ParameterError(
            f"image={image!r} is no shape of a picture; use height x width, and x 3 for colours, "
            "such as 8x8x3."
        )
    if math.prod(shape) != n_features:
        raise ParameterError(
            f"image={image!r} has {math.prod(shape):,} numbers, and a row has {n_features:,}: "
            "give a shape of as many."
        )
    return shape


def _notes_of(model: Model) -> list[str]:
    """Return what a reader has to know first about a model."""
    n_empty = int(np.count_nonzero(model.counts == 0))
    empty = [f"{n_empty:,} of {model.n_clusters:,} clusters have no rows."] if n_empty else []
    ending = ENDINGS.get(str(model.provenance.get("stop_reason")))
    return [*empty, ending] if ending else empty


def _chosen(model: Model, clusters: Sequence[int] | None) -> list[int]:
    """Return the clusters whose rows are shown, by default from the largest to the smallest."""
    if clusters is None:
        by_size = np.argsort(-model.counts, kind="stable")[: np.count_nonzero(model.counts)]
        places = np.linspace(0, len(by_size) - 1, min(CHOSEN, len(by_size)))
        return [int(by_size[round(place)]) for place in places]
    for j in clusters:
        if not is_integer(j) or not 0 <= j < model.n_clusters:
            raise ParameterError(
                f"clusters are numbered from 0 to {model.n_clusters - 1}, and {j!r} is none: "
                "choose others."
            )
    return list(dict.fromkeys(map(int, clusters)))


def _names(names: Any, n_rows: int) -> Sequence[Any] | None:
    """Return one name per row."""
    if names is None:
        return None
    if not hasattr(names, "__len__") or isinstance(names, str):
        raise ParameterError(f"names must be one text a row, got {type(names).__name__}.")
    found: Sequence[Any] = names.to_numpy() if hasattr(names, "to_numpy") else names
    if len(found) != n_rows:
        raise ParameterError(
            f"there are {len(found):,} names and {n_rows:,} rows: give one for each."
        )
    return found


@dataclass
class _Page:
    """The content of a page, as far as it is known."""

    model: Model
    notes: list[str]
    chosen: list[int]
    shape: tuple[int, ...] | None
    """Shape of a row as an image."""
    names: Sequence[Any] | None = None
    examples: Examples | None = None
    scores: dict[str, Score] = field(default_factory=dict)
    n_rows: int | None = None
    is_other: bool = False
    """Whether the rows are not those of the fit."""

    # --- reading rows -----------------------------------------------------------------------------

    @contextmanager
    def noting(self, *, raises: bool) -> Iterator[None]:
        """Note warnings, once, and errors in reading the rows unless they are to be raised."""

        def note(message: str, _: type[Warning]) -> None:
            if message not in self.notes:
                self.notes.append(message)

        try:
            with warnings_heard_by(note):
                yield
        except (LargekError, OSError) as error:
            if raises:
                raise
            self.examples, self.scores = None, {}
            self.notes.append(
                f"The rows cannot be read any more, so there are no scores and no examples: {error}"
            )

    def open(
        self, source: Any, sample_weight: Any, storage_options: Mapping[str, Any] | None
    ) -> Rows:
        """Open rows, and note if they are not those of the fit."""
        opened = open_rows(source, sample_weight=sample_weight, storage_options=storage_options)
        if before := self.model.provenance.get("data"):
            # Compared in the order of the model's features.
            now = self.model._open(opened).fingerprint()
            # Chunks, location and timestamps do not matter.
            differs = same_data({**now, "content": before["content"]}, now)
            if differs is not None:
                self.is_other = True
                self.notes.append(f"The rows that are shown are not those of the fit. {differs}")
        return opened

    def look(
        self, rows: Rows, sample: int, seed: int, client: Client | None, n_threads: int | None
    ) -> None:
        """Find examples and scores."""
        model, self.n_rows = self.model, rows.n_rows
        with model._passes(model._open(rows), client, n_threads) as passes:
            self.examples = find_examples(passes, model, self.chosen, SHOWN, sample, seed)
        try:
            found = Separation.of(
                model, rows, sample=sample, seed=seed, client=client, n_threads=n_threads
            )
        except ParameterError as error:
            self.notes.append(f"There are no scores: {error}")
            return
        self.scores = {name: getattr(found, name) for name in NAMES}

    # --- the page ---------------------------------------------------------------------------------

    def report(self) -> Report:
        """Return the page."""
        found = panels(JobView().update_all(events_of(self.model)))
        charts = {panel.kind: panel for panel in found}
        sections = (self._quality(), self._cost(charts), self._path(), self._sizes(charts),
                    self._centers(), self._features(), self._examples())  # fmt: skip
        content = {
            **self._head(),
            "sections": [section for section in sections if section],
            "provenance": self._provenance(),
            "version": self.model.provenance.get("versions", {}).get("largek_dask"),
            "digest": self.model.digest()[:16],
        }
        scores = {name: float(score) for name, score in self.scores.items()}
        errors = {f"{name}_standard_error": score.standard_error
                  for name, score in self.scores.items() if score.standard_error}  # fmt: skip
        figures = {
            "n_clusters": self.model.n_clusters,
            "clusters_shown": self.chosen if self._shows_clusters() else [],
            "n_rows_looked_at": None if self.examples is None else self.examples.n_looked,
            "scores": scores | errors,
            "warnings": list(self.notes),
        }
        shape = shape_of(self.model)
        of = f" of {shape[0]:,} rows\u00a0×\u00a0{shape[1]:,}" if shape else (
            f" in {self.model.n_features:,} columns")  # fmt: skip
        what = "components" if isinstance(self.model, MixtureModel) else "clusters"
        return Report(f"{self.model.n_clusters:,} {what}{of}", content, figures)

    def _head(self) -> dict[str, Any]:
        model, known = self.model, self.model.provenance
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
        engine = known.get("engine", known.get("parameters", {}).get("algorithm", {}))
        by = engine.get("name") if isinstance(engine, Mapping) else None
        created = known.get("created")
        if isinstance(created, str):
            created = created[:16].replace("T", " ") + " UTC" * created.endswith("+00:00")
        lead = [f"a model of the kind {model.kind}", by, created]
        return {"tiles": tiles, "lead": [part for part in lead if part], "notes": self.notes}

    def _quality(self) -> Section | None:
        scores = [(MEANINGS[name][0], _score(score), MEANINGS[name][1])
                  for name, score in self.scores.items()]  # fmt: skip
        of_fit = {name.replace("_", " "): _number(value)
                  for name, value in self.model.fit_figures().items()}  # fmt: skip
        if not scores and not of_fit:
            return None
        columns = ("score", "value", "better is")
        return {
            "title": "Quality",
            "lead": self._of_rows() if scores else "",
            "table": (columns, scores, ("score", "better is")) if scores else None,
            "pairs": {"heading": "Reported by the fit", "values": of_fit} if of_fit else None,
        }

    def _of_rows(self) -> str:
        """Return which rows were read."""
        assert self.examples is not None
        whose = "rows other than those of the fit" if self.is_other else "all rows"
        if self.examples.is_sample:
            return f"Of a sample of {self.examples.n_looked:,} of {self.n_rows:,} rows."
        return f"Of {whose} ({self.examples.n_looked:,})."

    def _cost(self, charts: Mapping[str, Panel]) -> Section:
        of_step, history = self.model.objective.of_step, self.model.history
        title = f"{of_step[:1].upper()}{of_step[1:]} against time"
        if "cost" not in charts:
            return {"title": title, "lead": "The model holds no history of its fit."}
        lead = f"{len(history):,} steps in {human_seconds(history[-1]['seconds'])}."
        return {**_section(charts["cost"], lead), "title": title}

    def _path(self) -> Section | None:
        if not isinstance(self.model, PathModel):
            return None
        votes = {rule: "none" if number is None else f"{number:,}"
                 for rule, number in self.model.path_.suggest_k().votes.items()}  # fmt: skip
        panel = path_panel(self.model)
        pairs = {"heading": "Suggested by rules of the literature", "values": votes}
        return {**_section(panel, panel.words), "title": "Number of clusters", "pairs": pairs}

    def _sizes(self, charts: Mapping[str, Panel]) -> Section:
        counts = self.model.counts
        if not counts.sum() > 0:
            return {"title": "Sizes", "lead": "No cluster has rows."}
        order = np.argsort(-counts, kind="stable")[:MOST_LISTED]
        means = None if self.examples is None else self.examples.mean_distances
        rows = [
            (f"{j}", f"{counts[j]:,.6g}", f"{100 * counts[j] / counts.sum():.2f} %",
             *(() if means is None else (_distance(means[j]),)))
            for j in order
        ]  # fmt: skip
        columns = ("cluster", "weight of its rows", "share", "mean distance")[: len(rows[0])]
        is_all = len(order) == len(counts)
        panel = charts.get("sizes")
        return {
            "title": "Sizes",
            "panel": panel,
            "pairs": None if panel is None else {"heading": "", "values": dict(panel.figures)},
            "summary": "All clusters" if is_all else f"The largest {len(order)} clusters",
            "table": (columns, rows, ()),
        }

    def _centers(self) -> Section | None:
        behind = None if self.examples is None else self.examples.behind.astype(np.float64)
        chosen = self.chosen if self._shows_clusters() else []
        panel = centers_panel(
            self.model, chosen, behind if behind is not None and len(behind) else None
        )
        if panel is None:
            return None
        return {"title": panel.title, "lead": panel.words, "panel": panel}

    def _features(self) -> Section | None:
        """Return the table of the largest clusters' centres by feature."""
        centers, counts = self.model._cluster_centers(), self.model.counts
        if centers is None or not counts.sum() > 0 or self.shape is not None:
            return None
        largest = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)][:MOST_COMPARED]
        shares, values = counts / counts.sum(), centers.astype(np.float64)
        mean = shares @ values
        spread, of = np.sqrt(shares @ np.square(values - mean)), "between the centres"
        if self.examples is not None and len(self.examples.behind) > 1:
            spread, of = self.examples.behind.astype(np.float64).std(axis=0), "of the rows"
        z = np.divide(values - mean, spread, out=np.zeros_like(values), where=spread > 0)
        # The features in which these clusters differ most come first.
        order = np.argsort(-np.abs(z[largest]).max(axis=0), kind="stable")[:MOST_FEATURES]
        names = self.model.feature_names
        parts = np.rint(np.minimum(np.abs(z), MOST_Z) / MOST_Z * MOST_COLOR).astype(int)
        rows = [
            (
                f"feature {f}" if names is None else str(names[f])[:32],
                [(_number(float(f"{values[j, f]:.4g}")), f"{z[j, f]:+.1f}", int(parts[j, f]),
                  "above" if z[j, f] > 0 else "below") for j in largest],
            )
            for f in order
        ]  # fmt: skip
        which = f"the largest {len(largest)} of {len(counts):,} clusters"
        some = f", the {len(order)} of {len(mean):,} features in which they differ most"
        return {
            "title": "Centres by feature",
            "lead": f"Means of {which if len(largest) < len(counts) else 'all clusters'}"
            f"{some if len(order) < len(mean) else ''}. Small figures are z-scores: the distance "
            f"to the overall mean, in standard deviations {of}; orange is above, blue below it.",
            "heat": ([f"cluster {j}" for j in largest], rows),
        }

    def _shows_clusters(self) -> bool:
        """Whether there are cards of single clusters."""
        return self.examples is not None or (
            self.shape is not None and self.model._cluster_centers() is not None
        )

    def _examples(self) -> Section | None:
        if not self._shows_clusters():
            return None
        show = None if self.shape is None else self._image_of()
        has_rows = self.examples is not None
        return {
            "title": "Rows near and far" if has_rows else "Centres as pictures",
            "lead": self._of_rows() if has_rows else "",
            "cards": [self._card(j, show) for j in self.chosen],
        }

    def _card(self, j: int, show: Callable[[NDArray[Any]], str] | None) -> dict[str, Any]:
        counts, examples = self.model.counts, self.examples
        words = f"weight {counts[j]:,.6g}, {100 * counts[j] / (counts.sum() or 1.0):.2f} % of all"
        ends = []
        if examples is not None:
            if not np.isnan(examples.mean_distances[j]):
                words += f"; mean distance {_distance(examples.mean_distances[j])}"
            for title, found in (("nearest", examples.nearest), ("farthest", examples.farthest)):
                ends.append((title, self._some_rows(found.get(j), show)))
        centers = self.model._cluster_centers()
        image = None if show is None or centers is None else show(centers[j])
        what = "name" if self.names is not None else "its first values"
        return {"cluster": j, "words": words, "image": image, "ends": ends, "what": what}

    def _some_rows(
        self, found: Looked | None, show: Callable[[NDArray[Any]], str] | None
    ) -> list[dict[str, Any]]:
        """Return number, distance, image, and name or first values of rows."""
        if found is None:
            return []
        features = self.model.feature_names
        rows = []
        for x, row, distance in zip(found.x, found.rows, found.distances, strict=True):
            name = None if self.names is None else _cut(str(self.names[int(row)]), MOST_NAME)
            values = [
                f"{value:.3g}" if features is None else f"{features[i][:MOST_COLUMN]} {value:.3g}"
                for i, value in enumerate(x[:FIRST_VALUES].tolist())
            ]
            text = ", ".join([*values, *("…",) * (len(x) > FIRST_VALUES)])
            image = None if show is None else show(x)
            cells = f"{row:,}", _distance(distance), text if name is None else name
            rows.append({"name": name or cells[0], "cells": cells, "image": image})
        return rows

    def _image_of(self) -> Callable[[NDArray[Any]], str]:
        """Return a function that makes a row an image, with the same scale for all rows."""
        shape, low, high = self.shape, 0.0, 255.0
        assert shape is not None
        content = self.model.provenance.get("data", {}).get("content", {})
        if content.get("dtype") != "uint8" or self.model.normalize is not None:
            centers = self.model._cluster_centers()
            assert centers is not None
            shown = [centers[self.chosen]]
            if self.examples is not None:
                ends = (*self.examples.nearest.values(), *self.examples.farthest.values())
                shown += [looked.x for looked in ends]
            low = min(float(part.min()) for part in shown)
            high = max(float(part.max()) for part in shown)

        def show(x: NDArray[Any]) -> str:
            scaled = (x.astype(np.float64) - low) * (255 / ((high - low) or 1.0))
            return picture(np.rint(scaled).clip(0, 255).astype(np.uint8).reshape(shape))

        return show

    def _provenance(self) -> list[tuple[str, dict[str, str]]]:
        known = dict(self.model.provenance)
        groups = [(heading, dict(_flat(found))) for name, heading in GROUPS.items()
                  if isinstance(found := known.pop(name, None), Mapping) and found]  # fmt: skip
        rest = {"digest": self.model.digest(), **dict(_flat(known))}
        if self.model.feature_names is not None:
            rest["columns"] = _cut(", ".join(self.model.feature_names), MOST_TEXT)
        return [*groups, ("The model", rest)]


def _section(panel: Panel, lead: str) -> Section:
    """Return a section with a chart and, folded, its table."""
    table = (panel.columns, panel.rows, ())
    return {"title": panel.title, "lead": lead, "panel": panel, "summary": "The figures",
            "table": table}  # fmt: skip


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _number(value: float) -> str:
    """Format a number with seven digits, or with all digits before the point."""
    return f"{value:,.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:,.7g}"


def _score(score: Score) -> str:
    """Format a score with its standard error."""
    error = f" ± {score.standard_error:.2g}" if score.standard_error else ""
    return f"{float(score):,.5g}{error}"


def _distance(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.4g}"


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and texts of nested values."""
    for name, value in values.items():
        path = f"{before}{str(name).replace('_', ' ')}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}: ")
        else:
            is_text = isinstance(value, str)
            text = value if is_text else "none" if value is None else json.dumps(value, default=str)
            yield path, _cut(text, MOST_TEXT)
