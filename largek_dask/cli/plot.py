"""``largek plot``: charts of a fit, as pictures or as a page."""

from __future__ import annotations

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
    from largek_dask.driver.storage import Folder
    from largek_dask.observe.plot_collection import Plot

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
    For a fit of all partitions, also the inertia against the number of clusters, with lower bounds.
    """
    from pathlib import Path

    from largek_dask.driver.storage import Folder
    from largek_dask.errors import OutputError, ParameterError

    place = Folder(folder, storage_options)
    path = Path(out if out is not None else named_after(place, ".html" if html else ".png"))
    if html and path.suffix != ".html":
        raise ParameterError(
            f"--html writes a page: choose an --out that ends in .html, not {path}"
        )
    if path.exists() and not force:
        raise OutputError(f"{path} exists: choose another --out, or --force")
    drawn, told = draw(place)
    drawn.save(path, overwrite=force)
    told = {"out": str(path), **told}
    emit(told, as_json, lambda: key_values({key: str(value) for key, value in told.items()}))


def draw(place: Folder) -> tuple[Plot, dict[str, Any]]:
    """Return the charts of a job's folder or of a model, and what they show.

    Raises
    ------
    DataError
        The folder contains neither a model nor events.
    """
    from largek_dask.driver.event_log import JsonLines
    from largek_dask.errors import DataError
    from largek_dask.model import load_model
    from largek_dask.observe.plot_collection import plot_of, plot_of_model

    events = list(JsonLines.read(place)) if JsonLines.is_in(place) else None
    told: dict[str, Any] = {}
    for event in events or ():
        if event.get("event") == "started":
            told["n_rows"] = event.get("n_rows")
        elif event.get("event") == "step":
            told["n_iter"] = event.get("step")
    if (model_url := model_in(place)) is not None:
        model = load_model(model_url, storage_options=place.storage_options)
        shape = model.provenance.get("data", {}).get("content", {}).get("shape")
        told |= {
            "n_clusters": model.n_clusters,
            "n_iter": model.history[-1]["step"] if model.history else 0,
            **({"n_rows": shape[0]} if shape else {}),
        }
        return plot_of_model(model, events), told
    if events is None:
        raise DataError(
            f"{place.url} holds neither model.zarr nor events, so there is nothing to draw: give a "
            "fit's folder"
        )
    title = place.url.rpartition("/")[2]
    return plot_of(title, {}, events, title), told
