"""``largek report``: a page about a fit, in one file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import (
    Command,
    connected,
    emit,
    key_values,
    model_in,
    named_after,
    option_scheduler,
    option_storage,
)

if TYPE_CHECKING:
    from largek_dask.driver.storage import Folder
    from largek_dask.model import Model

__all__ = ["report"]

MOST_WARNINGS = 20
"""Warnings of a fit that a page repeats."""


def _clusters(_ctx: click.Context, _option: click.Parameter, value: str | None) -> list[int] | None:
    """``3,17`` as numbers."""
    if value is None:
        return None
    try:
        return [int(part) for part in value.split(",")]
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of clusters such as 3,17,42") from None


@click.command(
    cls=Command,
    short_help="Write a page about a fit: cost, sizes, centres, rows, scores.",
    example="largek report run --image 8x8x3",
)
@click.argument("run", metavar="RUN")
@click.option("--out", metavar="HTML", help="The page.  [RUN's name with -report.html]")
@click.option(
    "--data",
    "rows",
    metavar="DATA",
    help="The rows to show.  [those of the fit, if they can still be read where they were]",
)
@click.option(
    "--sample-weight", metavar="WEIGHTS", help="Their weights: an array of one number a row."
)
@click.option(
    "--sample",
    type=click.IntRange(min=2),
    metavar="ROWS",
    help="Rows that are looked at.  [20,000, or 20 a cluster up to 500,000]",
)
@click.option("--seed", default=0, show_default=True, help="Draws the sample.")
@click.option(
    "--clusters",
    callback=_clusters,
    metavar="J,J,…",
    help="Clusters whose nearest and farthest rows are shown.  [six, from the largest to the "
    "smallest]",
)
@click.option(
    "--image",
    metavar="HxW[x3]",
    help="Rows are pictures of this height and width, x3 with colours: show them so.",
)
@click.option(
    "--names",
    metavar="NAMES",
    help="What rows are called: a text file with one name a line, or a .npy file of texts.",
)
@click.option(
    "--every",
    metavar="TIME",
    help="Write the page again after each TIME, such as 30s, until the fit has ended; a browser "
    "that shows it reloads it.",
)
@click.option("--force", is_flag=True, help="Replace the page if it exists.")
@option_scheduler
@option_storage
def report(
    run: str,
    out: str | None,
    names: str | None,
    every: str | None,
    force: bool,
    scheduler: str | None,
    storage_options: dict[str, Any] | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Write a page about RUN, the folder of a fit or job, or a model.

    One HTML file that needs no server and loads nothing: what was fitted, cost against time,
    cluster sizes, a picture of the centres, the rows nearest to some centres and farthest from
    them, scores, warnings. Without rows it tells what the model knows. Of a fit that still runs it
    shows the last checkpoint.
    """
    from dataclasses import replace
    from pathlib import Path

    from largek_dask.driver.stopping import parse_duration
    from largek_dask.driver.storage import Folder
    from largek_dask.errors import DataError, OutputError
    from largek_dask.observe.report import make_report

    seconds = None if every is None else parse_duration(every, "every")
    place = Folder(run, storage_options)
    path = Path(out if out is not None else named_after(place, "-report.html"))
    if path.exists() and not force:
        raise OutputError(f"{path} exists: choose another --out, or --force")
    asked["names"] = None if names is None else read_names(names, storage_options)
    with connected(scheduler, storage_options) as client:
        while True:
            model, notes, is_last = _model_of(place)
            if model is None and (is_last or seconds is None):
                raise DataError(
                    f"{run} holds neither a model nor a checkpoint: give the folder of a fit, or a "
                    "model.zarr; of a fit that has just begun, add --every 30s to wait for its "
                    "first checkpoint"
                )
            if model is not None:
                page = make_report(
                    model, storage_options=storage_options, warnings=notes, client=client, **asked
                )
                page = replace(page, reload_seconds=None if is_last else seconds)
                page.save(path, overwrite=force)
                told = {"out": str(path), "bytes": path.stat().st_size, **page.figures}
                emit(told, as_json, partial(_table, told))
                force = True
            if is_last or seconds is None:
                return
            time.sleep(seconds)


def _model_of(place: Folder) -> tuple[Model | None, list[str], bool]:
    """The model of a folder, what is to be said of its fit, and whether it is the final one.

    Of a fit that runs it is the model of the last checkpoint, if there is one.
    """
    from largek_dask.driver.event_log import JsonLines
    from largek_dask.model import load_model
    from largek_dask.service.fit_folder import FitFolder
    from largek_dask.service.runner import model_so_far

    url = model_in(place)
    model = None if url is None else load_model(url, storage_options=place.storage_options)
    if not JsonLines.is_in(place):
        return model, [], True
    fit = FitFolder(place)
    warned = (str(e.get("message")) for e in fit.update() if e.get("event") == "warning")
    notes = list(dict.fromkeys(warned))[:MOST_WARNINGS]
    # A fit says that it has stopped before it writes its model.
    n_iter = fit.view.final_n_iter
    has_none = n_iter == 0 or fit.view.state == "failed"
    is_written = model is not None and n_iter in (None, model.provenance.get("n_iter"))
    is_last = fit.has_ended and (has_none or is_written)
    if (model is None or not fit.has_ended) and (found := model_so_far(place)) is not None:
        model, saved = found
        if not is_last:
            step = f"{saved.n_iter:,}"
            notes = [f"The fit has not ended: this is its checkpoint after step {step}.", *notes]
    return model, notes, is_last


def _table(told: Mapping[str, Any]) -> Any:
    return key_values(_shown(told))


def _shown(told: Mapping[str, Any]) -> dict[str, str]:
    from largek_dask.driver.formatting import human_bytes

    looked = told["n_rows_looked_at"]
    shown = {
        "written": f"{told['out']} ({human_bytes(told['bytes'])})",
        "clusters": f"{told['n_clusters']:,}",
        "rows looked at": "none" if looked is None else f"{looked:,}",
    }
    return shown | {"warning" + (f" {i}" if i > 1 else ""): note
                    for i, note in enumerate(told["warnings"], 1)}  # fmt: skip


def read_names(url: str, storage_options: Mapping[str, Any] | None) -> list[str]:
    """One name a row, from a text file or a .npy file of texts.

    Raises
    ------
    DataError
        It cannot be read, or holds other than texts.
    """
    import io

    import fsspec
    import numpy as np

    from largek_dask.errors import DataError

    try:
        with fsspec.open(url, "rb", **(storage_options or {})) as file:
            content: bytes = file.read()
        if not url.lower().endswith(".npy"):
            return content.decode().splitlines()
        found = np.load(io.BytesIO(content), allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(
            f"the names cannot be read from {url}: {error}; check the address."
        ) from error
    if found.ndim != 1 or found.dtype.kind not in "US":
        raise DataError(
            f"{url} holds {found.dtype} of shape {found.shape}, not one text a row: save an array "
            "of texts, or a text file with one name a line."
        )
    return [str(name) for name in found]
