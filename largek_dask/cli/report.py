"""``largek report``: write a report about a fit, or only its charts, to a file."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from largek_dask.cli.common import (
    DataOptions,
    command,
    emit,
    model_in,
    new_file,
    option_force,
    option_ids,
    with_data_options,
)

if TYPE_CHECKING:
    from largek_dask.driver.storage import Folder
    from largek_dask.model import Model
    from largek_dask.plots.plot_collection import Plot

MOST_WARNINGS = 20
"""Maximum number of warnings in a report."""
PICTURES = (".png", ".svg", ".pdf")


@command("largek report run")
@click.argument("run", metavar="RUN")
@click.option(
    "--out",
    metavar="FILE",
    help="File to write: .html, or .png, .svg or .pdf for charts only.  [RUN-report.html]",
)
@click.option(
    "--every",
    metavar="TIME",
    help="Update the page at intervals of TIME, such as 30s, until the fit has ended.",
)
@click.option(
    "--rows",
    "data",
    metavar="DATA",
    help="Also list the rows nearest to the centres; takes one pass over DATA.",
)
@option_ids
@option_force
@with_data_options
def report(
    run: str,
    out: str | None,
    every: str | None,
    data: str | None,
    ids: str | None,
    force: bool,
    data_options: DataOptions,
) -> None:
    """Write an HTML report about a fit: cost, sizes and centres.

    RUN is the folder of a fit or job, or a model. The report is one self-contained HTML file;
    during a fit, the report shows the last checkpoint. With --every, browsers reload the report.

    With --out FILE.png, the command draws the objective, gain, rows per second, work and cluster
    sizes, even if the fit has no checkpoint.
    """
    from largek_dask.driver.stopping import parse_duration
    from largek_dask.driver.storage import Folder
    from largek_dask.errors import DataError, ParameterError
    from largek_dask.model import CentersModel
    from largek_dask.plots.report import make_report

    seconds = None if every is None else parse_duration(every, "every")
    place = Folder(run, data_options.storage_options)
    name = place.url.rpartition("/")[2].removesuffix(".zarr")
    path = new_file(out or f"{name}-report.html", force)
    if data is None and (ids or data_options.column):
        raise click.UsageError("--ids and --column require --rows")
    if data is not None and path.suffix in PICTURES:
        raise click.UsageError("--rows requires an .html file")
    rows = None if data is None else data_options.open(data, ids=ids)
    if path.suffix in PICTURES:
        draw(place).figure().savefig(path)
        emit({"out": str(path)})
        return
    goes_on = True
    while goes_on:
        model, notes, has_ended = _model_of(place)
        goes_on = seconds is not None and not has_ended
        if model is not None:
            if rows is not None and not isinstance(model, CentersModel):
                raise ParameterError(f"--rows: a model of kind {model.kind!r} has no centres")
            found = None if rows is None or goes_on else model.exemplars(rows)
            page = make_report(model, notes, seconds if goes_on else None, found)
            page.save(path, overwrite=force)
            force = True
            known = {"n_clusters": model.n_clusters, "warnings": page.content["notes"]}
            emit({"out": str(path), "bytes": path.stat().st_size, **known})
        elif not goes_on:
            raise DataError(
                f"{place.url} contains neither a model nor a checkpoint: give the folder of a fit, "
                "or a model.zarr; if the fit has just begun, use --every 30s to wait for the first "
                "checkpoint"
            )
        if seconds is not None and goes_on:
            time.sleep(seconds)


def _model_of(place: Folder) -> tuple[Model | None, list[str], bool]:
    """Return the model in a folder, warnings of the fit, and whether the fit has ended.

    During a fit, the last checkpoint provides the model; without a checkpoint, it is None.
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

    Events are preferred, because they have more details than the history in the model.
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
            f"{place.url} contains neither model.zarr nor events to draw: give the folder of a fit"
        )
    title = place.url.rpartition("/")[2]
    return plot_of(title, {}, events, title)
