"""The panels of a job or a model, to be shown in a notebook or saved as a page or a picture."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.driver.events import Event
from largek_dask.driver.history import sample_of
from largek_dask.driver.job_view import JobView
from largek_dask.driver.sizes import sizes_of
from largek_dask.errors import DataError, OutputError, ParameterError
from largek_dask.observe.drawings import Line, lines_chart, pieces_of
from largek_dask.observe.looks import LOOKS, TIMES, X_LABELS, Look, time_unit
from largek_dask.observe.page import details, document, fragment, section, table, text
from largek_dask.observe.panels import Panel
from largek_dask.observe.snapshot import snapshot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from largek_dask.model import Model

__all__ = ["Plot", "events_of", "plot_of"]

NOT_SHOWN = ("alive", "job")
"""Panels without anything that a picture of a fit needs."""
KINDS = ("", "n1", "n2", "n3", "n4", "n5")
"""Looks of the lines of a chart in a notebook; more are not drawn, and the table names all."""
PAGE_LINES = 40
"""Rows of a table in a notebook."""


class Plot:
    """Panels of a job or a model; in a notebook it shows itself, without any script.

    Parameters
    ----------
    answer : mapping
        Of ``observe.snapshot``: all that is drawn, as plain values.
    title : str

    Attributes
    ----------
    answer : mapping

    Examples
    --------
    >>> import numpy as np
    >>> import largek_dask as lk
    >>> x = np.random.default_rng(0).normal(size=(500, 3))
    >>> plot = lk.KMeans(5, algorithm="lloyd", random_state=0).fit(x).model_.plot()
    >>> plot.kinds
    ['cost', 'gain', 'work', 'sizes']
    """

    def __init__(self, answer: Mapping[str, Any], title: str) -> None:
        self.answer = answer
        self.title = title

    @property
    def kinds(self) -> list[str]:
        """Panels that have lines, by their kind."""
        return [panel["kind"] for panel in self.answer["panels"] if panel["series"]]

    def figure(self) -> Figure:
        """All panels as one matplotlib figure.

        Raises
        ------
        MissingDependencyError
            There is no matplotlib.
        DataError
            There is nothing to draw.
        """
        from largek_dask.observe.plots import panels_figure

        return panels_figure(self.answer, self.title)

    def bokeh(
        self, kind: str = "cost", *, theme: str = "light", x: str | None = None,
        log: bool | None = None,
    ) -> Any:  # fmt: skip
        """A panel as a Bokeh figure, which can be zoomed; ``bokeh.io.show`` shows it.

        Parameters
        ----------
        kind : str
            One of :attr:`kinds`.
        theme : {"light", "dark"}
        x : {"elapsed", "time", "passes"}, optional
            Of the cost: what it is drawn against; time used by default.
        log : bool, optional
            Whether the upright axis is logarithmic: of the cost that of how far it is from its
            best value.

        Raises
        ------
        ParameterError
            There is no such panel.
        """
        from largek_dask.observe.figures import figure

        for panel in self.answer["panels"]:
            if panel["kind"] == kind and panel["series"]:
                return figure(panel, theme, x=x, log=log, marks=self.answer["marks"])
        raise ParameterError(f"there is no panel {kind!r} here: choose of {', '.join(self.kinds)}.")

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the panels to a file: a page that can be zoomed, or a picture.

        Parameters
        ----------
        path : str or path
            Its ending says what: ``.html`` (one file that loads nothing), ``.png``, ``.svg``, or
            ``.pdf``.
        overwrite : bool
            Replace a file that is there.

        Raises
        ------
        OutputError
            It exists, or cannot be written.
        DataError
            There is nothing to draw.
        """
        place = Path(path)
        if place.exists() and not overwrite:
            raise OutputError(
                f"{place} exists already; nothing was changed. Choose another name, or "
                "overwrite=True to replace it."
            )
        drawn = None if place.suffix == ".html" else self.figure()
        page = self.html if drawn is None else ""
        try:
            if drawn is None:
                place.write_text(page, encoding="utf-8")
            else:
                import matplotlib

                # Letters stay letters: smaller, and can be searched and read aloud.
                with matplotlib.rc_context({"svg.fonttype": "none"}):
                    drawn.savefig(place)
        except (OSError, ValueError) as error:
            raise OutputError(
                f"{place} cannot be written: {error}; check its ending, space and permissions "
                "there."
            ) from error

    @property
    def html(self) -> str:
        """A page in one file, with BokehJS inside.

        Raises
        ------
        DataError
            There is nothing to draw.
        """
        from largek_dask.observe.figures import filled_item

        drawn = [(panel, None, None) for panel in self._panels() if panel["series"]]
        if not drawn:
            raise DataError(
                "there is nothing to draw: the fit has made no step yet, so wait for one"
            )
        parts: list[str] = []
        items: list[list[Any]] = []
        for panel in self._panels():
            charts = ""
            for about in _views(panel):
                node = f"chart-{len(items)}"
                items.append([node, *(filled_item(panel, theme, **about, marks=self.answer["marks"])
                                      for theme in ("light", "dark"))])  # fmt: skip
                charts += f'<div id="{node}"></div>'
            parts.append(_section(panel, charts))
        library = resources.files("bokeh") / "server" / "static" / "js" / "bokeh.min.js"
        data = json.dumps(items, separators=(",", ":")).replace("<", "\\u003c")
        scripts = (
            f"<script>{library.read_text(encoding='utf-8')}</script>"
            f'<script type="application/json" id="items">{data}</script><script>{DRAW}</script>'
        )
        return document(self.title, self._head() + "".join(parts) + scripts)

    def _panels(self) -> list[Panel]:
        return [panel for panel in self.answer["panels"] if panel["kind"] not in NOT_SHOWN]

    def _head(self) -> str:
        return f"<h1>{text(self.title)}</h1>"

    def _repr_html_(self) -> str:
        parts = [
            _section(panel, _chart(panel, self.answer["marks"]), PAGE_LINES)
            for panel in self._panels()
        ]
        return fragment(self._head() + "".join(parts))

    def __repr__(self) -> str:
        return f"<Plot of {self.title}: {', '.join(self.kinds) or 'nothing yet'}; save(path)>"


DRAW = """
const dark = matchMedia("(prefers-color-scheme: dark)");
const items = JSON.parse(document.getElementById("items").textContent);
let shown = [];
const draw = async () => {
  shown.forEach((views) => views.clear());
  shown = [];
  for (const [node, light, night] of items) {
    document.getElementById(node).replaceChildren();
    shown.push(await Bokeh.embed.embed_item(dark.matches ? night : light, node));
  }
};
Bokeh.logger.set_level("error");
dark.addEventListener("change", draw);
draw();
"""
"""What draws the items of a page: again where the reader changes from light to dark."""


def _views(panel: Panel) -> list[dict[str, Any]]:
    """How a panel is drawn on a page, where nobody can choose: the cost in two ways."""
    if not panel["series"]:
        return []
    views: list[dict[str, Any]] = [{"x": None, "log": None}]
    if panel["kind"] == "cost":
        views.append({"x": "passes", "log": True})
    return views


def _section(panel: Panel, charts: str, most: int | None = None) -> str:
    """A panel: its charts, and its table behind them; what happened is listed openly."""
    listed = ""
    if rows := panel["table"]["rows"][:most]:
        columns = panel["table"]["columns"]
        words = columns[-1:] if panel["kind"] == "events" else columns[:1]
        listed = table(columns, rows, words=words)
    shown = listed if panel["kind"] == "events" or not listed else details("The figures", listed)
    return section(panel["title"], charts, shown, lead=text(panel["words"]))


def _chart(panel: Panel, marks: Sequence[Mapping[str, Any]]) -> str:
    """A panel as it is drawn without a script."""
    is_bars, size = LOOKS.get(panel["kind"], Look()).bars, 1.0
    unit = "powers of ten" if is_bars else ""
    if panel["x"] in TIMES:
        places = (x or 0 for line in panel["series"] for x in line["x"])
        size, unit = time_unit(max(places, default=0))
    lines: list[Line] = []
    names: dict[str, str] = {}
    for series, kind in zip(panel["series"], KINDS, strict=False):
        x, y = _floats(series["x"]) / size, _floats(series["y"])
        if is_bars:
            # Outlines of bars between powers of ten.
            edges = np.log10(np.append(x, series["right"][-1:]))
            x, y = np.repeat(edges, 2)[1:-1], np.repeat(y, 2)
        pieces = [Line(a, b, kind) for a, b in pieces_of(x, y)]
        lines += pieces
        names |= {kind: series["name"]} if pieces else {}
    if not lines:
        return ""
    return lines_chart(
        lines,
        panel["words"],
        x_name=f"{X_LABELS.get(panel['x'], panel['x'])}{f' ({unit})' if unit else ''}",
        y_name=panel["y"],
        key=names if len(names) > 1 else None,
        events=[mark[panel["x"]] / size for mark in marks
                if panel["x"] in TIMES and mark["kind"] != "checkpoint"
                and mark[panel["x"]] is not None],
    )  # fmt: skip


def _floats(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], float)


# --- where panels come from -----------------------------------------------------------------------


def plot_of(
    job_id: str, status: Mapping[str, Any], events: Iterable[Event], title: str | None = None
) -> Plot:
    """The panels of a job, from its status and its events so far."""
    view = JobView().update_all(events)
    view.set_status({"id": job_id, **status})
    answer = snapshot(view)
    return Plot(answer, answer["title"] if title is None else title)


def events_of(model: Model) -> list[dict[str, Any]]:
    """What the fit of a model told, as far as its history and its sizes say so."""
    shape: Sequence[int] = model.provenance.get("data", {}).get("content", {}).get("shape") or ()
    n_rows = shape[0] if shape else max((step["rows"] for step in model.history), default=0)
    events: list[dict[str, Any]] = [
        {"event": "started", "n_rows": n_rows, "n_features": model.n_features,
         **model.objective.describe()},
    ]  # fmt: skip
    for step in model.history:
        about = {name: value for name, value in step.items() if name != "seconds"}
        events.append(
            {**about, "event": "step", "elapsed": step["seconds"],
             "sample": sample_of(step, n_rows)}
        )  # fmt: skip
    return [*events, {"event": "sizes", **sizes_of(model.counts)}]
