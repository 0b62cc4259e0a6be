"""The charts of a job or a model, shown in a notebook or saved as a picture."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from largek_dask.driver.events import Event
from largek_dask.driver.formatting import human_seconds
from largek_dask.driver.job_view import JobView
from largek_dask.errors import ParameterError
from largek_dask.model import Model, PathModel
from largek_dask.plots.job_text import NONE, iso
from largek_dask.plots.model_panels import curve_panel, events_of, shape_of
from largek_dask.plots.panels import Panel, marks_of, panels
from largek_dask.plots.pictures import draw
from largek_dask.plots.render import render, section, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Plot", "plot_of", "plot_of_model"]

NOTEBOOK_ROWS = 40
"""Most rows of a table in a notebook."""


class Plot:
    """Charts of a job or a model; in a notebook they are shown without any script.

    Parameters
    ----------
    panels : sequence of Panel
    title : str
    marks : sequence of dict
        Events to mark on axes of time, see ``largek_dask.plots.panels.marks_of``.

    Examples
    --------
    >>> import numpy as np
    >>> import largek_dask as lk
    >>> x = np.random.default_rng(0).normal(size=(500, 3))
    >>> plot = lk.KMeans(5, algorithm="lloyd", random_state=0).fit(x).model_.plot()
    >>> plot.kinds
    ['cost', 'gain', 'work', 'sizes']
    """

    def __init__(
        self, panels: Sequence[Panel], title: str, marks: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.panels = list(panels)
        self.title = title
        self.marks = marks

    @property
    def kinds(self) -> list[str]:
        """Kinds of the panels that have a chart."""
        return [panel.kind for panel in self.panels if panel.series]

    def figure(self) -> Figure:
        """Return all charts as one matplotlib figure."""
        return draw(self.panels, self.title, self.marks)

    def bokeh(self, kind: str = "cost", *, theme: str = "light", log: bool | None = None) -> Any:
        """Return a panel as a Bokeh figure; ``bokeh.io.show`` shows it.

        Parameters
        ----------
        kind : str
            One of :attr:`kinds`.
        theme : {"light", "dark"}
        log : bool, optional
            Whether the vertical axis is logarithmic; for the cost, that of its distance to the best
            value.

        Raises
        ------
        ParameterError
            There is no such panel.
        """
        from largek_dask.plots.figures import figure

        for panel in self.panels:
            if panel.kind == kind and panel.series:
                return figure(panel, theme, log=log, marks=self.marks)
        raise ParameterError(f"there is no panel {kind!r}; choose one of {', '.join(self.kinds)}.")

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the charts to a picture; :meth:`bokeh` has charts that can be zoomed.

        Parameters
        ----------
        path : str or path
            Ends in ``.png``, ``.svg`` or ``.pdf``.
        overwrite : bool
            Replace an existing file.

        Raises
        ------
        OutputError
            The file exists, or cannot be written.
        DataError
            There is nothing to draw.
        """
        drawn = self.figure()
        import matplotlib

        # Text stays text: smaller, searchable, readable aloud.
        with matplotlib.rc_context({"svg.fonttype": "none"}):
            write(path, drawn.savefig, overwrite)

    def _repr_html_(self) -> str:
        sections = [section(panel, panel.words, most=NOTEBOOK_ROWS) for panel in self.panels]
        events = [
            ((iso(mark["time"] / 1e3) or NONE)[:19].replace("T", " "),
             human_seconds(mark["elapsed"] / 1e3), mark["kind"], mark["text"])
            for mark in reversed(self.marks)
        ]  # fmt: skip
        if events:
            table = ("at (UTC)", "after", "kind", "what"), events[:NOTEBOOK_ROWS], ("what",)
            sections.append({"title": "What happened", "table": table})
        return render("report.html", title=self.title, sections=sections, marks=self.marks)

    def __repr__(self) -> str:
        return f"<Plot of {self.title}: {', '.join(self.kinds) or 'nothing yet'}; save(path)>"


def plot_of(
    job_id: str, status: Mapping[str, Any], events: Iterable[Event], title: str | None = None
) -> Plot:
    """Return the charts of a job, from its status and its events so far."""
    view = JobView().update_all(events)
    view.set_status({"id": job_id, **status})
    return Plot(panels(view), view.title if title is None else title, marks_of(view))


def plot_of_model(model: Model, events: Iterable[Event] | None = None) -> Plot:
    """Return the charts of a model, from the events of its fit or from its history."""
    shape = shape_of(model)
    of = f" of {shape[0]:,} rows × {shape[1]:,}" if shape else ""
    known = events_of(model)
    # Its history may not contain all that the events do, and these may lack sizes.
    status, told = (
        ({}, known) if events is None else ({"state": "finished"}, [*known[-1:], *events])
    )
    found = plot_of("", status, told, f"{model.n_clusters:,} clusters{of}")
    if isinstance(model, PathModel):
        path = curve_panel(model.path_.suggest_k(), model.path_.lower_bound)
        found.panels = [path, *found.panels]
    return found
