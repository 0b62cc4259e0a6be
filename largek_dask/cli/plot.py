"""``largek plot``: charts of a fit, as pictures or as a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import (
    Command,
    emit,
    key_values,
    model_in,
    named_after,
    option_storage,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from largek_dask.driver.storage import Folder
    from largek_dask.model import PathModel
    from largek_dask.observe.album import Plot

__all__ = ["plot"]


@click.command(
    cls=Command,
    short_help="Draw a fit: the objective against time and passes, cluster sizes, and more.",
    example="largek plot run --out run.svg",
)
@click.argument("folder", metavar="DIR")
@click.option(
    "--out", metavar="FILE", help="The picture: .png, .svg or .pdf.  [DIR's name with .png]"
)
@click.option(
    "--html",
    is_flag=True,
    help="A page of charts that can be zoomed, in one file that loads nothing.  [DIR's name with "
    ".html]",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@option_storage
def plot(
    folder: str,
    out: str | None,
    html: bool,
    force: bool,
    storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Draw what the page of a job shows, of a job's folder or a model.

    The objective against time and passes, whether it still gains, rows a second, memory, work
    saved, cluster sizes, and what else its events tell; of a job that is still running, so far.
    The picture of a fit of all partitions is the inertia against the number of clusters instead,
    with lower bounds.
    """
    from pathlib import Path

    from largek_dask.driver.storage import Folder
    from largek_dask.errors import OutputError, ParameterError
    from largek_dask.model import PathModel

    place = Folder(folder, storage_options)
    path = Path(out if out is not None else named_after(place, ".html" if html else ".png"))
    if html and path.suffix != ".html":
        raise ParameterError(
            f"--html writes a page: choose an --out that ends in .html, not {path}"
        )
    if path.exists() and not force:
        raise OutputError(f"{path} exists: choose another --out, or --force")
    drawn, told, model = draw(place)
    if isinstance(model, PathModel) and path.suffix != ".html":
        try:
            draw_path(model).savefig(path)
        except (OSError, ValueError) as error:
            raise OutputError(
                f"{path} cannot be written: {error}; check its ending, space and permissions there."
            ) from error
    else:
        drawn.save(path, overwrite=force)
    told = {"out": str(path), **told}
    emit(told, as_json, lambda: key_values({key: str(value) for key, value in told.items()}))


def draw(place: Folder) -> tuple[Plot, dict[str, Any], Any]:
    """The charts of a job's folder or of a model, what they show, and the model if there is one.

    What its events tell is more than what a model holds of its fit, so they are taken if there are
    any.

    Raises
    ------
    DataError
        The folder holds neither a model nor events.
    """
    from itertools import chain

    from largek_dask.driver.event_log import JsonLines
    from largek_dask.errors import DataError
    from largek_dask.model import load_model
    from largek_dask.observe.album import events_of, plot_of

    model, told = None, {}
    title = place.url.rpartition("/")[2]
    if (model_url := model_in(place)) is not None:
        model = load_model(model_url, storage_options=place.storage_options)
        shape = shape_of(model)
        told = {
            "n_clusters": model.n_clusters,
            "n_iter": model.history[-1]["step"] if model.history else 0,
            **({} if shape is None else {"n_rows": shape[0]}),
        }
        of = "" if shape is None else f" of {shape[0]:,} rows × {shape[1]:,}"
        title = f"{model.n_clusters:,} clusters{of}"
    if JsonLines.is_in(place):
        heard: dict[str, Any] = {}
        events: Iterable[Mapping[str, Any]] = _noting(JsonLines.read(place), heard)
        if model is not None:
            # How large its clusters are says the model, where its events do not.
            events = chain(events_of(model)[-1:], events)
        status = {} if model is None else {"state": "finished"}
        found = plot_of(title, status, events, title)
        return found, {**heard, **told}, model
    if model is None:
        raise DataError(
            f"{place.url} holds neither model.zarr nor events, so there is nothing to draw: give a "
            "fit's folder"
        )
    return plot_of(title, {}, events_of(model), title), told, model


def _noting(
    events: Iterable[Mapping[str, Any]], told: dict[str, Any]
) -> Iterator[Mapping[str, Any]]:
    """The same events; how many rows and steps they are of is put into ``told``."""
    for event in events:
        if event.get("event") == "started":
            told["n_rows"] = event.get("n_rows")
        elif event.get("event") == "step":
            told["n_iter"] = event.get("step")
        yield event


def shape_of(model: Any) -> Sequence[int] | None:
    """The shape of the rows of a model, if it is known."""
    found: Sequence[int] | None = model.provenance.get("data", {}).get("content", {}).get("shape")
    return found


def draw_path(model: PathModel) -> Figure:
    """The elbow of a model that holds every partition."""
    from largek_dask.observe.plots import path_figure

    path, shape = model.path_, shape_of(model)
    of = "" if shape is None else f" of {shape[0]:,} rows × {shape[1]:,}"
    title = f"Partitions into 1 to {len(path):,} clusters{of}"
    found = path.suggest_k()
    return path_figure(
        path.inertia, path.lower_bound, model.counts, title, suggested=found.k, clear=found.clear
    )
