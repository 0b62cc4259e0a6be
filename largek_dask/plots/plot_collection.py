"""Charts of a job or model, for notebooks and image files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from largek_dask.driver.events import Event
from largek_dask.driver.job_view import JobView
from largek_dask.errors import ParameterError
from largek_dask.model import Model, PathModel
from largek_dask.plots.model_panels import curve_panel, events_of, title_of
from largek_dask.plots.panels import Panel, marks_of, panels
from largek_dask.plots.pictures import draw
from largek_dask.plots.render import render, section

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Plot:
    """Charts of a job or model; notebooks display the charts as images, without scripts.

    Parameters
    ----------
    panels : sequence of Panel
    title : str
    marks : sequence of dict
        Events to mark on time axes: see ``largek_dask.plots.panels.marks_of``.

    Examples
    --------
    >>> import numpy as np
    >>> import largek_dask as lk
    >>> x = np.random.default_rng(0).normal(size=(500, 3))
    >>> plot = lk.KMeans(5, algorithm="lloyd", random_state=0).fit(x).model_.plot()
    >>> plot.kinds
    ['cost', 'gain', 'sizes']
    """

    def __init__(
        self, panels: Sequence[Panel], title: str, marks: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.panels = list(panels)
        self.title = title
        self.marks = marks

    @property
    def kinds(self) -> list[str]:
        """Names of the panels that have a chart."""
        return [panel.kind for panel in self.panels if panel.series]

    def figure(self) -> Figure:
        """Return all charts as one matplotlib figure; use ``figure().savefig(path)`` to save it."""
        return draw(self.panels, self.title, self.marks)

    def bokeh(self, kind: str = "cost", *, theme: str = "light") -> Any:
        """Return one panel as a Bokeh figure, which ``bokeh.io.show`` displays.

        Parameters
        ----------
        kind : str
            One of :attr:`kinds`.
        theme : {"light", "dark"}

        Raises
        ------
        ParameterError
            There is no such panel.
        """
        from largek_dask.plots.figures import figure

        for panel in self.panels:
            if panel.kind == kind and panel.series:
                return figure(panel, theme, marks=self.marks)
        raise ParameterError(
            f"kind={kind!r} is not a panel of this plot; choose one of {', '.join(self.kinds)}."
        )

    def _repr_html_(self) -> str:
        sections = [section(panel, panel.words) for panel in self.panels]
        return render("report.html", title=self.title, sections=sections, marks=self.marks)

    def __repr__(self) -> str:
        return f"<Plot of {self.title}: {', '.join(self.kinds) or 'nothing yet'}>"


def plot_of(
    job_id: str, status: Mapping[str, Any], events: Iterable[Event], title: str | None = None
) -> Plot:
    """Make the charts of a job from its status and its events so far."""
    view = JobView().update_all(events)
    view.set_status({"id": job_id, **status})
    return Plot(panels(view), view.title if title is None else title, marks_of(view))


def plot_of_model(model: Model, events: Iterable[Event] | None = None) -> Plot:
    """Make the charts of a model from its fit's events or, by default, from its history."""
    known = events_of(model)
    # Combine both sources: the history may lack steps, and the events may lack cluster sizes.
    status, fit_events = (
        ({}, known) if events is None else ({"state": "finished"}, [*known[-1:], *events])
    )
    found = plot_of("", status, fit_events, title_of(model))
    if isinstance(model, PathModel):
        path = curve_panel(model.path_.suggest_k(), model.path_.lower_bound)
        found.panels = [path, *found.panels]
    return found
