"""One page of HTML about a model: what was fitted, what it cost, what its clusters are like.

The page needs no server and loads nothing. It is made of the model alone where its rows are not
within reach; else a sample of the rows is looked at as well.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.fingerprint import same_data
from largek_dask.data.rows import Rows
from largek_dask.data.sources import open_rows
from largek_dask.driver.formatting import human_seconds
from largek_dask.driver.history import gaps
from largek_dask.driver.options import is_integer
from largek_dask.errors import LargekError, OutputError, ParameterError, warnings_heard_by
from largek_dask.model import MixtureModel, Model, PathModel
from largek_dask.model.separation import NAMES, Score, Separation
from largek_dask.observe.drawings import Dots, Line, centers_chart, lines_chart, sizes_chart
from largek_dask.observe.examples import Examples, Looked, find_examples
from largek_dask.observe.page import (
    details,
    document,
    fragment,
    heat_table,
    pairs,
    picture,
    section,
    table,
    text,
)

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Report", "make_report", "parse_image"]

T = TypeVar("T")

SAMPLE = 20_000
"""Rows that are looked at unless something else is asked for."""
A_CLUSTER, MOST_SAMPLE = 20, 500_000
"""Rows a cluster that are looked at where that is more, and the most of them together."""
CHOSEN = 6
"""Clusters of which rows are shown unless they are named."""
SHOWN = 5
"""Rows that are shown at each end."""
MOST_CIRCLES = 1_000
"""Centres that are drawn."""
MOST_LISTED = 50
"""Clusters that are listed with their figures."""
MOST_FEATURES, MOST_COMPARED = 40, 8
"""Features and clusters of the table of centres."""
MOST_STEPS = 16
"""Steps that are listed."""
MOST_AXES_CENTERS = 2_000
"""Centres from which the plane of the picture is found."""
MOST_NAME = 80
"""Characters of a row's name that are shown."""
MOST_COLUMN = 20
"""Characters of a column's name that are shown beside a value."""
FIRST_VALUES = 4
"""Values of a row that are shown where it has no name."""

MEANINGS = {
    "silhouette": ("Silhouette, to centres", "more, up to 1"),
    "davies_bouldin": ("Davies-Bouldin", "less"),
    "calinski_harabasz": ("Calinski-Harabasz", "more"),
}
ENDINGS = {
    "max_iter": "The fit used up its steps (max_iter) before it stood still: more may lower it.",
    "max_time": "The fit used up its time (max_time) before it stood still: more may lower it.",
    "max_time_without_last_pass": "There was no time for the last pass: labels, sizes and the "
    "objective are those of the search, and may be off.",
    "interrupted": "The fit was interrupted: the model is the best one so far.",
    "cancelled": "The fit was cancelled: the model is the best one so far.",
}


@dataclass(frozen=True, slots=True)
class Report:
    """A page about a model; in a notebook it shows itself.

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
    body: str = field(repr=False)
    """The page without what surrounds it."""
    figures: Mapping[str, Any] = field(repr=False)
    """The figures that the page tells, as JSON."""
    reload_seconds: float | None = None
    """Seconds after which a browser reloads the page; None: never."""

    @property
    def html(self) -> str:
        """The whole page."""
        return document(self.title, self.body, self.reload_seconds)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the page to a file.

        Parameters
        ----------
        path : str or path
        overwrite : bool
            Replace a file that is there.

        Raises
        ------
        OutputError
            It exists, or cannot be written.
        """
        place = Path(path)
        try:
            if overwrite:
                # Nobody reads half a page.
                part = place.with_name(f"{place.name}.partial")
                part.write_text(self.html, encoding="utf-8")
                part.replace(place)
            else:
                with place.open("x", encoding="utf-8") as file:
                    file.write(self.html)
        except FileExistsError:
            raise OutputError(
                f"{place} exists already; nothing was changed. Choose another name, or "
                "overwrite=True to replace it."
            ) from None
        except OSError as error:
            raise OutputError(
                f"{place} cannot be written: {error}; check space and permissions there."
            ) from error

    def _repr_html_(self) -> str:
        return fragment(self.body)

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
    client: Client | None = None,
    n_threads: int | None = None,
) -> Report:
    """Make the page of a model; see :meth:`largek_dask.model.Model.report`.

    Parameters
    ----------
    model : Model
    rows, sample, clusters, image, names, seed, sample_weight, storage_options, client, n_threads
        As there.
    warnings : sequence of str
        What a fit has warned of.
    """
    if sample is None:
        sample = min(max(SAMPLE, A_CLUSTER * model.n_clusters), MOST_SAMPLE)
    if not is_integer(sample) or sample < 2:
        raise ParameterError(
            f"sample must be None or a number of rows of at least 2, got {sample!r}."
        )
    notes = [*_notes_of(model), *warnings]
    chosen = _chosen(model, clusters)
    shape = None if image is None else parse_image(image, model.n_features)
    found = _Found(model, notes, chosen, shape)
    with warnings_heard_by(found.hear):
        opened = found.open(rows, sample_weight, storage_options)
        if opened is not None:
            found.names = _names(names, opened.n_rows)
            look = partial(found.look, opened, sample, seed, client, n_threads)
            if rows is not None:
                look()
            else:
                found.attempt(look)
        elif names is not None:
            raise ParameterError(
                "names= are of rows, and the rows are not known here: give them too."
            )
    return found.report()


def parse_image(image: str | Sequence[int], n_features: int) -> tuple[int, ...]:
    """The shape of a row as a picture: ``"8x8x3"`` as (8, 8, 3).

    Raises
    ------
    ParameterError
        No such shape, or it has not as many numbers as a row.
    """
    parts = image.lower().split("x") if isinstance(image, str) else image
    try:
        shape = tuple(int(part) for part in parts)
    except (TypeError, ValueError):
        shape = ()
    if len(shape) not in (2, 3) or min(shape) < 1 or (len(shape) == 3 and shape[2] not in (1, 3)):
        raise ParameterError(
            f"image={image!r} is no shape of a picture: give height x width, and x 3 for colours, "
            "such as 8x8x3."
        )
    if math.prod(shape) != n_features:
        raise ParameterError(
            f"image={image!r} has {math.prod(shape):,} numbers, and a row has {n_features:,}: "
            "give a shape of as many."
        )
    return shape


# --- what is known --------------------------------------------------------------------------------


def _notes_of(model: Model) -> list[str]:
    """What is to be said first of a model."""
    notes = []
    n_empty = int(np.count_nonzero(model.counts == 0))
    if n_empty:
        notes.append(f"{n_empty:,} of {model.n_clusters:,} clusters have no rows.")
    ending = ENDINGS.get(str(model.provenance.get("stop_reason")))
    return [*notes, ending] if ending else notes


def _chosen(model: Model, clusters: Sequence[int] | None) -> list[int]:
    """Clusters of which rows are shown: as asked for, or from the largest to the smallest."""
    k = model.n_clusters
    if clusters is None:
        by_size = np.argsort(-model.counts, kind="stable")[: np.count_nonzero(model.counts)]
        places = np.linspace(0, len(by_size) - 1, min(CHOSEN, len(by_size)))
        return [int(by_size[round(place)]) for place in places]
    for j in clusters:
        if not is_integer(j) or not 0 <= j < k:
            raise ParameterError(
                f"clusters are numbered from 0 to {k - 1}, and {j!r} is none: choose others."
            )
    return list(dict.fromkeys(map(int, clusters)))


def _names(names: Any, n_rows: int) -> Sequence[Any] | None:
    """One name a row."""
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
class _Found:
    """What the page is made of."""

    model: Model
    notes: list[str]
    chosen: list[int]
    shape: tuple[int, ...] | None
    """The rows' shape as pictures."""
    names: Sequence[Any] | None = None
    examples: Examples | None = None
    scores: dict[str, Score] = field(default_factory=dict)
    n_rows: int | None = None
    is_other: bool = False
    """The rows are others than those of the fit."""

    # --- looking at rows --------------------------------------------------------------------------

    def hear(self, message: str, _: type[Warning]) -> None:
        """Note what is warned of, once: rows are opened several times."""
        if message not in self.notes:
            self.notes.append(message)

    def open(
        self, rows: Any, sample_weight: Any, storage_options: Mapping[str, Any] | None
    ) -> Rows | None:
        """The rows, or None where they are not within reach."""
        if not Separation.is_told_of(self.model):
            return None
        if rows is not None:
            return self._opened_at(rows, sample_weight, storage_options)
        location = self.model.provenance.get("data", {}).get("location")
        if location is None:
            self.notes.append(
                "The rows were in memory when the model was fitted: without them there are no "
                "scores and no examples. Give them to the report."
            )
            return None
        return self.attempt(lambda: self._opened_at(location, sample_weight, storage_options))

    def attempt(self, work: Callable[[], T]) -> T | None:
        """Do what needs the rows of the fit; None, and a note, where they cannot be read."""
        try:
            return work()
        except (LargekError, OSError) as error:
            self.examples, self.scores = None, {}
            self.notes.append(
                f"The rows cannot be read any more, so there are no scores and no examples: {error}"
            )
            return None

    def _opened_at(
        self, source: Any, sample_weight: Any, storage_options: Mapping[str, Any] | None
    ) -> Rows:
        opened = open_rows(source, sample_weight=sample_weight, storage_options=storage_options)
        # Compared as the model takes them: in the order of its columns.
        self._compare(self.model._open(opened))
        return opened

    def _compare(self, rows: Rows) -> None:
        """Say where rows are others than those of the fit."""
        before = self.model.provenance.get("data")
        if not before:
            return
        now = rows.fingerprint()
        # Chunks, places and stamps say nothing of what the rows are.
        differs = same_data({**now, "content": before["content"]}, now)
        if differs is not None:
            self.is_other = True
            self.notes.append(f"The rows that are shown are not those of the fit. {differs}")

    def look(
        self, rows: Rows, sample: int, seed: int, client: Client | None, n_threads: int | None
    ) -> None:
        """Look at the rows, and find the scores."""
        model, most = self.model, SHOWN
        self.n_rows = rows.n_rows
        with model._passes(model._open(rows), client, n_threads) as passes:
            self.examples = find_examples(passes, model, self.chosen, most, sample, seed)
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
        """The page."""
        parts = (
            self._head(),
            self._quality(),
            self._cost(),
            self._path(),
            self._sizes(),
            self._centers(),
            self._features(),
            self._examples(),
            self._provenance(),
        )
        version = self.model.provenance.get("versions", {}).get("largek_dask")
        by = "" if version is None else f"Fitted with largek_dask {text(version)}. "
        foot = f"<footer>{by}Model {text(self.model.digest()[:16])}.</footer>"
        return Report(self._title(), "".join(parts) + foot, self._figures())

    def _figures(self) -> dict[str, Any]:
        looked = self.examples
        scores: dict[str, float] = {}
        for name, score in self.scores.items():
            scores[name] = float(score)
            if score.standard_error:
                scores[f"{name}_standard_error"] = score.standard_error
        return {
            "n_clusters": self.model.n_clusters,
            "clusters_shown": self.chosen if self._shows_clusters() else [],
            "n_rows_looked_at": None if looked is None else looked.n_looked,
            "scores": scores,
            "warnings": list(self.notes),
        }

    def _title(self) -> str:
        model = self.model
        data = model.provenance.get("data", {}).get("content", {}).get("shape")
        what = "components" if isinstance(model, MixtureModel) else "clusters"
        of = (
            f" of {data[0]:,} rows\u00a0×\u00a0{data[1]:,}"
            if data
            else f" in {model.n_features:,} columns"
        )
        return f"{model.n_clusters:,} {what}{of}"

    def _head(self) -> str:
        model, told = self.model, self.model.provenance
        tiles: dict[str, str] = {}
        if (value := told.get(model.objective.name)) is not None:
            tiles[model.objective.words] = _number(value)
        tiles |= {
            "clusters": f"{model.n_clusters:,}",
            "weight of rows": f"{model.counts.sum():,.6g}",
        }
        if "n_iter" in told:
            tiles["steps"] = f"{told['n_iter']:,}"
        if "seconds" in told:
            tiles["time"] = human_seconds(told["seconds"]).replace(" ", "\u00a0")
        if "stop_reason" in told:
            tiles["stopped"] = str(told["stop_reason"]).replace("_", " ")
        cells = "".join(
            f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>"
            for name, value in tiles.items()
        )
        algorithm = told.get("engine", told.get("parameters", {}).get("algorithm", {}))
        by = algorithm.get("name") if isinstance(algorithm, Mapping) else None
        lead = " · ".join(
            text(part)
            for part in (f"a model of the kind {model.kind}", by, _moment(told.get("created")))
            if part is not None
        )
        notes = "".join(f"<li>{text(note)}</li>" for note in self.notes)
        told_notes = f'<ul class="notes" aria-label="Warnings">{notes}</ul>' if notes else ""
        return (
            f'<header><h1>{text(self._title())}</h1><p class="quiet">{lead}</p>'
            f'<dl class="tiles">{cells}</dl>{told_notes}</header>'
        )

    def _quality(self) -> str:
        of_fit = {
            name.replace("_", " "): _number(value)
            for name, value in self.model.fit_figures().items()
        }
        parts = []
        if self.scores:
            parts.append(
                table(
                    ("score", "value", "better is"),
                    [
                        (MEANINGS[name][0], _score(score), MEANINGS[name][1])
                        for name, score in self.scores.items()
                    ],
                    words=("score", "better is"),
                )
            )
        if of_fit:
            parts += ["<h3>Told by the fit</h3>", pairs(of_fit)]
        if not parts:
            return ""
        return section("Quality", *parts, lead=self._of_rows() if self.scores else "")

    def _of_rows(self) -> str:
        """Which rows something is of."""
        assert self.examples is not None
        whose = "rows other than those of the fit" if self.is_other else "all rows"
        if self.examples.is_sample:
            return f"Of a sample of {self.examples.n_looked:,} of {self.n_rows:,} rows."
        return f"Of {whose} ({self.examples.n_looked:,})."

    def _cost(self) -> str:
        objective = self.model.objective
        title = f"{objective.of_step[:1].upper()}{objective.of_step[1:]} against time"
        known = [step for step in self.model.history if step["cost"] is not None]
        if not known:
            return section(title, lead="The model holds no history of its fit.")
        shape = self.model.provenance.get("data", {}).get("content", {}).get("shape")
        n_rows = shape[0] if shape else max(step["rows"] for step in known)
        lines = list(_cost_lines(known, n_rows))
        is_part = {line.kind for line in lines}
        key = {"": "over all rows", "part": "over a sample or batch of the rows"}
        last, ending = known[-1], float(known[-1]["cost"] or 0.0)
        worked = np.multiply(
            [step["rows"] for step in self.model.history], gaps(self.model.history)
        )
        steps = self.model.history[-1]["step"]
        lead = (
            f"{steps:,} steps, {worked.sum() / n_rows:,.3g} passes over the data, "
            f"{human_seconds(self.model.history[-1]['seconds'])} to the last step, "
            f"which met {_number(ending)}."
        )
        told = (
            f"{title}: from {known[0]['cost']:.6g} to {last['cost']:.6g} in {steps:,} steps and "
            f"{last['seconds']:.3g} seconds"
        )
        better = "" if objective.sense == "min" else ", more is better"
        chart = lines_chart(
            lines,
            told,
            x_name="seconds",
            y_name=f"{objective.of_step} ({objective.unit}){better}",
            key={kind: words for kind, words in key.items() if kind in is_part}
            if "part" in is_part
            else None,
            mark=(last["seconds"], ending, ""),
        )
        places = np.unique(np.linspace(0, len(known) - 1, min(MOST_STEPS, len(known))).astype(int))
        rows = [
            (f"{s['step']:,}", f"{s['seconds']:.3g}", f"{s['rows']:,}", _number(s["cost"]))
            for s in (known[i] for i in places)
        ]
        listed = table(("step", "seconds", "rows", objective.of_step), rows)
        some = "" if len(places) == len(known) else f", {len(places)} of {len(known):,} steps"
        return section(title, chart, details(f"The figures{some}", listed), lead=lead)

    def _path(self) -> str:
        if not isinstance(self.model, PathModel):
            return ""
        path, objective = self.model.path_, self.model.objective
        numbers = np.arange(1, len(path) + 1, dtype=float)
        found = path.suggest_k()
        lines = [
            Line(numbers, path.inertia),
            Line(numbers, np.maximum(path.lower_bound, 0), "bound"),
        ]
        mark: tuple[float, float, str] | None = None
        if found.k is not None:
            mark = float(found.k), float(path.inertia[found.k - 1]), f"suggested: {found.k}"
        chart = lines_chart(
            lines,
            f"{objective.words} of the partitions into 1 to {len(path)} clusters, falling from "
            f"{path.inertia[0]:.6g} to {path.inertia[-1]:.6g}, and what none falls below",
            x_name="clusters",
            y_name=f"{objective.words} ({objective.unit})",
            key={"": "found", "bound": "lower bound"},
            mark=mark,
            whole=True,
        )
        places = np.unique(np.linspace(0, len(path) - 1, min(25, len(path))).astype(int))
        listed = table(
            ("clusters", "inertia", "lower bound"),
            [
                (f"{i + 1:,}", _number(path.inertia[i]), _number(path.lower_bound[i]))
                for i in places
            ],
        )
        votes = {
            rule: "none" if number is None else f"{number:,}"
            for rule, number in found.votes.items()
        }
        rules = f"<h3>What rules of the literature name</h3>{pairs(votes)}"
        return section(
            "Number of clusters",
            chart,
            details("The figures", listed + rules),
            lead=text(found.words),
        )

    def _sizes(self) -> str:
        counts = self.model.counts
        if not counts.sum() > 0:
            return section("Sizes", lead="No cluster has rows.")
        quartiles = np.quantile(counts, (0, 0.25, 0.5, 0.75, 1))
        names = ("smallest", "lower quarter", "median", "upper quarter", "largest")
        figures = {n: f"{value:,.6g}" for n, value in zip(names, quartiles, strict=True)}
        figures["mean"] = f"{counts.mean():,.6g}"
        figures["without rows"] = f"{int(np.count_nonzero(counts == 0)):,}"
        told = f"Weights of {len(counts):,} clusters, sorted: " + ", ".join(
            f"{name} {value}" for name, value in figures.items()
        )
        order = np.argsort(-counts, kind="stable")[:MOST_LISTED]
        means = None if self.examples is None else self.examples.mean_distances
        rows = [
            (f"{j}", f"{counts[j]:,.6g}", f"{100 * counts[j] / counts.sum():.2f} %")
            + (() if means is None else (_distance(means[j]),))
            for j in order
        ]
        columns = ("cluster", "weight of its rows", "share")
        listed = table(columns + (() if means is None else ("mean distance",)), rows)
        some = f"The largest {len(order)} clusters" if len(order) < len(counts) else "All clusters"
        chart = sizes_chart(counts, told)
        return section(
            "Sizes",
            f'<div class="two"><div>{chart}</div><div>{pairs(figures)}</div></div>',
            details(some, listed),
        )

    def _centers(self) -> str:
        centers, counts = self.model._cluster_centers(), self.model.counts
        if centers is None or not counts.sum() > 0:
            return ""
        behind = None if self.examples is None else self.examples.behind.astype(np.float64)
        if behind is not None and not len(behind):
            behind = None
        order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        shown = np.sort(order[:MOST_CIRCLES])
        plane = _plane(centers[order], counts[order], behind)
        dots = Dots(
            centers=plane.places(centers[shown]),
            weights=counts[shown],
            names=[
                f"cluster {j}: weight {counts[j]:,.6g}, {100 * counts[j] / counts.sum():.2f} %"
                for j in shown
            ],
            numbers=shown.tolist(),
            chosen=np.isin(shown, self.chosen) & self._shows_clusters(),
            rows=None if behind is None else plane.places(behind),
        )
        some = "" if len(shown) == len(order) else f" The largest {len(shown):,} are drawn."
        rows = "" if behind is None else f" Behind them {len(behind):,} rows."
        told = f"{len(shown):,} centres as circles, with areas by the weight of their rows"
        chart = centers_chart(
            dots,
            f"{told}, on the first two principal axes",
            x_name=f"first principal axis, {plane.words(0)}",
            y_name=f"second principal axis, {plane.words(1)}",
        )
        marked = " Those in orange are told of below." if dots.chosen.any() else ""
        lead = (
            f"Centres on the plane in which {plane.of} differ most; areas by the weight of a "
            f"cluster's rows.{rows}{some}{marked}"
        )
        return section("Centres", chart, lead=lead)

    def _features(self) -> str:
        """Return the table of the largest clusters' centres, feature by feature."""
        centers, counts = self.model._cluster_centers(), self.model.counts
        if centers is None or not counts.sum() > 0 or self.shape is not None:
            return ""
        largest = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)][:MOST_COMPARED]
        shares = counts / counts.sum()
        values = centers.astype(np.float64)
        mean = shares @ values
        between = np.sqrt(shares @ np.square(values - mean))
        spread, of = between, "between the centres"
        if self.examples is not None and len(self.examples.behind) > 1:
            spread, of = self.examples.behind.astype(np.float64).std(axis=0), "of the rows"
        z = np.divide(values - mean, spread, out=np.zeros_like(values), where=spread > 0)
        # The features in which these clusters differ most come first.
        order = np.argsort(-np.abs(z[largest]).max(axis=0), kind="stable")[:MOST_FEATURES]
        names = self.model.feature_names
        rows = [
            (
                f"feature {f}" if names is None else str(names[f]),
                [(_number(float(f"{values[j, f]:.4g}")), float(z[j, f])) for j in largest],
            )
            for f in order
        ]
        listed = heat_table("feature", [f"cluster {j}" for j in largest], rows)
        which = f"the largest {len(largest)} of {len(counts):,} clusters"
        some = f", the {len(order)} of {len(mean):,} features in which they differ most"
        lead = (
            f"Means of {which if len(largest) < len(counts) else 'all clusters'}"
            f"{some if len(order) < len(mean) else ''}. Small figures are z-scores: the distance "
            f"to the overall mean, in standard deviations {of}; orange is above, blue below it."
        )
        return section("Centres by feature", listed, lead=lead)

    def _shows_clusters(self) -> bool:
        """Whether single clusters are told of."""
        return self.examples is not None or (
            self.shape is not None and self.model._cluster_centers() is not None
        )

    def _examples(self) -> str:
        if not self._shows_clusters():
            return ""
        look = _Pictures.of(self) if self.shape is not None else None
        cards = "".join(self._card(j, look) for j in self.chosen)
        title = "Rows near and far" if self.examples is not None else "Centres as pictures"
        lead = self._of_rows() if self.examples is not None else ""
        return section(title, f'<div class="cards">{cards}</div>', lead=lead)

    def _card(self, j: int, look: _Pictures | None) -> str:
        counts, examples = self.model.counts, self.examples
        share = 100 * counts[j] / (counts.sum() or 1.0)
        parts = [f"<h3>Cluster {j}</h3>"]
        about = f"weight {counts[j]:,.6g}, {share:.2f} % of all"
        if examples is not None and not np.isnan(examples.mean_distances[j]):
            about += f"; mean distance {_distance(examples.mean_distances[j])}"
        lead = f'<p class="quiet">{text(about)}</p>'
        if look is not None:
            centers = self.model._cluster_centers()
            assert centers is not None
            shown = look.show(centers[j], f"centre of cluster {j}")
            lead = f'<div class="lead">{shown}{lead}</div>'
        parts.append(lead)
        if examples is not None:
            for title, found in (
                ("nearest", examples.nearest.get(j)),
                ("farthest", examples.farthest.get(j)),
            ):
                parts.append(f'<div class="axis">{title}</div>')
                parts.append(self._some_rows(j, title, found, look))
        return f'<div class="card">{"".join(parts)}</div>'

    def _some_rows(self, j: int, title: str, found: Looked | None, look: _Pictures | None) -> str:
        if found is None:
            return '<p class="quiet">none of the rows that were looked at</p>'
        called = [self._name(row) for row in found.rows]
        distances = [_distance(value) for value in found.distances]
        if look is not None:
            items = []
            for x, row, name, distance in zip(found.x, found.rows, called, distances, strict=True):
                words = f"{title} to cluster {j}: {name or f'row {row}'}"
                items.append(
                    f"<li>{look.show(x, words)}{text(row if name is None else name, 12)}"
                    f"<br>{distance}</li>"
                )
            return f'<ul class="strip">{"".join(items)}</ul>'
        what = "name" if self.names is not None else "its first values"
        shown = [
            (f"{row:,}", distance, self._values(x) if name is None else name)
            for x, row, name, distance in zip(found.x, found.rows, called, distances, strict=True)
        ]
        return table(("row", "distance", what), shown, words=(what,))

    def _name(self, row: int) -> str | None:
        if self.names is None:
            return None
        name = str(self.names[int(row)])
        return name if len(name) <= MOST_NAME else f"{name[: MOST_NAME - 1]}…"

    def _values(self, x: NDArray[Any]) -> str:
        """The first values of a row, with the names of their columns where they have some."""
        called = self.model.feature_names
        shown = [
            f"{value:.3g}" if called is None else f"{called[i][:MOST_COLUMN]} {value:.3g}"
            for i, value in enumerate(x[:FIRST_VALUES].tolist())
        ]
        return ", ".join([*shown, *("…",) * (len(x) > FIRST_VALUES)])

    def _provenance(self) -> str:
        told = dict(self.model.provenance)
        groups = []
        for name, heading in (
            ("parameters", "Asked for"),
            ("engine", "What ran"),
            ("stop", "When to stop"),
            ("data", "Rows"),
            ("report", "Told by the algorithm"),
            ("versions", "Versions"),
        ):
            found = told.pop(name, None)
            if isinstance(found, Mapping) and found:
                facts = dict(_flat(found))
                groups.append(f"<div><h3>{heading}</h3>{pairs(facts)}</div>")
        rest = {"digest": self.model.digest(), **dict(_flat(told))}
        if self.model.feature_names is not None:
            rest["columns"] = ", ".join(self.model.feature_names)
        groups.append(f"<div><h3>The model</h3>{pairs(rest)}</div>")
        return section("Where it comes from", f'<div class="two">{"".join(groups)}</div>')


# --- small things ---------------------------------------------------------------------------------


def _number(value: float) -> str:
    """A figure of any size: seven digits or, of a larger one, all before the point."""
    return f"{value:,.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:,.7g}"


def _score(score: Score) -> str:
    """A score with its standard error."""
    error = f" ± {score.standard_error:.2g}" if score.standard_error else ""
    return f"{float(score):,.5g}{error}"


def _distance(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.4g}"


def _moment(created: object) -> str | None:
    """``2026-11-25T02:46:54+00:00`` as people write it."""
    if not isinstance(created, str):
        return None
    return created[:16].replace("T", " ") + " UTC" * created.endswith("+00:00")


def _flat(told: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """What a document says, one name a value."""
    for name, value in told.items():
        called = f"{before}{str(name).replace('_', ' ')}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{called}: ")
        elif isinstance(value, str):
            yield called, value
        else:
            yield called, "none" if value is None else json.dumps(value, default=str)


def _cost_lines(steps: Sequence[Any], n_rows: int) -> Iterator[Line]:
    """Stretches of steps over as many rows: values over other rows are no continuation."""
    begin = 0
    # Steps that go over all rows, or over some of them several times, are of all of them.
    rows = [min(step["rows"], n_rows) for step in steps]
    for end in range(1, len(steps) + 1):
        first = rows[begin]
        if end < len(steps) and abs(rows[end] - first) <= 0.01 * first:
            continue
        some = steps[begin:end]
        x, y = (np.array([step[name] for step in some], float) for name in ("seconds", "cost"))
        yield Line(x, y, "part" if first < 0.99 * n_rows else "")
        begin = end


@dataclass(frozen=True, slots=True)
class _Plane:
    """The plane of a picture."""

    middle: NDArray[np.float64]
    axes: NDArray[np.float64]
    """(d, 2)"""
    shares: tuple[float, float]
    """What of the variance lies along each."""
    of: str
    """What the plane was found from."""

    def places(self, points: NDArray[Any]) -> NDArray[np.float64]:
        """(n, 2) where points are."""
        found: NDArray[np.float64] = (points.astype(np.float64) - self.middle) @ self.axes
        return found

    def words(self, i: int) -> str:
        """How much an axis shows."""
        return f"{100 * self.shares[i]:.0f} % of their variance"


def _plane(
    centers: NDArray[Any], counts: NDArray[np.float64], rows: NDArray[np.float64] | None
) -> _Plane:
    """The two directions in which centres differ most, or rows where there are few centres.

    ``centers`` come with the largest first.
    """
    points, weights, of = centers[:MOST_AXES_CENTERS], counts[:MOST_AXES_CENTERS], "they"
    if len(points) < 3 and rows is not None:
        points, weights, of = rows, np.ones(len(rows)), "rows"
    weights = weights / weights.sum()
    middle = weights @ points.astype(np.float64)
    apart = (points - middle) * np.sqrt(weights)[:, None]
    n, d = apart.shape
    if d <= n:
        values, vectors = np.linalg.eigh(apart.T @ apart)
        axes = vectors[:, ::-1][:, :2]
    else:
        values, vectors = np.linalg.eigh(apart @ apart.T)
        axes = apart.T @ vectors[:, ::-1][:, :2]
        lengths = np.sqrt(np.square(axes).sum(axis=0))
        axes = np.divide(axes, lengths, out=np.zeros_like(axes), where=lengths > 0)
    total = max(float(values.sum()), 1e-300)
    shares = [*np.maximum(values[::-1][:2], 0) / total, 0.0, 0.0]
    full = np.zeros((d, 2))
    full[:, : axes.shape[1]] = axes
    # A direction and its opposite are alike: the largest part is positive.
    signs = np.sign(full[np.abs(full).argmax(axis=0), [0, 1]])
    return _Plane(middle, full * np.where(signs == 0, 1, signs), (shares[0], shares[1]), of)


@dataclass(frozen=True, slots=True)
class _Pictures:
    """Rows as pictures, all in one scale."""

    shape: tuple[int, ...]
    low: float
    high: float

    @classmethod
    def of(cls, found: _Found) -> _Pictures:
        """Bytes are shown as they are; other numbers from the least to the largest."""
        assert found.shape is not None
        content = found.model.provenance.get("data", {}).get("content", {})
        if content.get("dtype") == "uint8" and found.model.normalize is None:
            return cls(found.shape, 0.0, 255.0)
        centers = found.model._cluster_centers()
        assert centers is not None
        shown = [centers[found.chosen]]
        if found.examples is not None:
            ends = (*found.examples.nearest.values(), *found.examples.farthest.values())
            shown += [looked.x for looked in ends]
        return cls(
            found.shape,
            min(float(part.min()) for part in shown),
            max(float(part.max()) for part in shown),
        )

    def show(self, x: NDArray[Any], words: str) -> str:
        """A row as a picture."""
        scaled = (x.astype(np.float64) - self.low) * (255 / ((self.high - self.low) or 1.0))
        return picture(np.rint(scaled).clip(0, 255).astype(np.uint8).reshape(self.shape), words)
