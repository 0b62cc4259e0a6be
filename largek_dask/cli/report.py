"""``largek report``: write a page about a fit, or its charts, to one file."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import command, emit, model_in, new_file, option_force, option_storage

if TYPE_CHECKING:
    from largek_dask.driver.storage import Folder
    from largek_dask.model import Model
    from largek_dask.plots.plot_collection import Plot

MOST_WARNINGS = 20
"""Maximum number of warnings of a fit on its page."""
PICTURES = (".png", ".svg", ".pdf")


@command("largek report run")
@click.argument("run", metavar="RUN")
@click.option(
    "--out",
    metavar="FILE",
    help="The page (.html), or a picture of the charts (.png, .svg, .pdf).  [RUN-report.html]",
)
@click.option(
    "--every",
    metavar="TIME",
    help="Update the page after each TIME, such as 30s, until the fit has ended.",
)
@option_force
@option_storage
def report(
    run: str,
    out: str | None,
    every: str | None,
    force: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Write a page about a fit: cost, sizes, centres.

    RUN is the folder of a fit or job, or a model. The page is one self-contained HTML file; while
    the fit runs, it shows the last checkpoint. With --every browsers reload it.

    With --out FILE.png, draws the objective, gain, rows per second, work and cluster sizes, even
    for a fit without a checkpoint.
    """
    from largek_dask.driver.stopping import parse_duration
    from largek_dask.driver.storage import Folder
    from largek_dask.errors import DataError
    from largek_dask.plots.report import make_report

    seconds = None if every is None else parse_duration(every, "every")
    place = Folder(run, storage_options)
    name = place.url.rpartition("/")[2].removesuffix(".zarr")
    path = new_file(out or f"{name}-report.html", force)
    if path.suffix in PICTURES:
        draw(place).figure().savefig(path)
        emit({"out": str(path)})
        return
    goes_on = True
    while goes_on:
        model, notes, has_ended = _model_of(place)
        goes_on = seconds is not None and not has_ended
        if model is not None:
            page = make_report(model, notes, reload_seconds=seconds if goes_on else None)
            page.save(path, overwrite=force)
            force = True
            known = {"n_clusters": model.n_clusters, "warnings": page.content["notes"]}
            emit({"out": str(path), "bytes": path.stat().st_size, **known})
        elif not goes_on:
            raise DataError(
                f"{place.url} has neither a model nor a checkpoint: give the folder of a fit, or a "
                "model.zarr; if the fit has just begun, use --every 30s to wait for its first "
                "checkpoint"
            )
        if seconds is not None and goes_on:
            time.sleep(seconds)


def _model_of(place: Folder) -> tuple[Model | None, list[str], bool]:
    """Return the model of a folder, notes on its fit, and whether the fit has ended.

    While the fit runs, this is the model of the last checkpoint, if there is one.
    """
    from largek_dask.driver.event_log import JsonLines
    from largek_dask.driver.job_view import JobView
    from largek_dask.model import load_model
    from largek_dask.service.runner import model_so_far

    url = model_in(place)
    model = None if url is None else load_model(url, storage_options=place.storage_options)
    if not JsonLines.is_in(place):
        return model, [], True
    events = list(JsonLines.read(place))
    warned = (str(event.get("message")) for event in events if event.get("event") == "warning")
    notes = list(dict.fromkeys(warned))[:MOST_WARNINGS]
    view = JobView().update_all(events)
    # A fit emits its last event before it writes its model.
    has_ended = view.has_ended and (model is not None or view.state != "finished")
    if (model is None or not has_ended) and (found := model_so_far(place)) is not None:
        model, saved = found
        notes = [f"This is the checkpoint after step {saved.n_iter:,}.", *notes]
    return model, notes, has_ended


def draw(place: Folder) -> Plot:
    """Return the charts of a job's folder or of a model.

    Events are preferred, because they say more about a fit than its model does.
    """
    from largek_dask.driver.event_log import JsonLines
    from largek_dask.errors import DataError
    from largek_dask.model import load_model
    from largek_dask.plots.plot_collection import plot_of, plot_of_model

    url = model_in(place)
    events = JsonLines.read(place) if JsonLines.is_in(place) else None
    if url is not None:
        return plot_of_model(load_model(url, storage_options=place.storage_options), events)
    if events is None:
        raise DataError(
            f"{place.url} has neither model.zarr nor events, so there is nothing to draw: give the "
            "folder of a fit"
        )
    title = place.url.rpartition("/")[2]
    return plot_of(title, {}, events, title)
