"""``largek report``: a page about a fit, in one file."""

from __future__ import annotations

from collections.abc import Mapping
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
@click.option("--force", is_flag=True, help="Replace the page if it exists.")
@option_scheduler
@option_storage
def report(
    run: str,
    out: str | None,
    data: str | None,
    sample_weight: str | None,
    sample: int | None,
    seed: int,
    clusters: list[int] | None,
    image: str | None,
    names: str | None,
    force: bool,
    scheduler: str | None,
    storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Write a page about RUN, the folder of a fit or job, or a model.

    One HTML file that needs no server and loads nothing: what was fitted, cost against time,
    cluster sizes, a picture of the centres, the rows nearest to some centres and farthest from
    them, scores, warnings. Without rows it tells what the model knows.
    """
    from pathlib import Path

    from largek_dask.driver.storage import Folder
    from largek_dask.errors import DataError, OutputError
    from largek_dask.model import load_model
    from largek_dask.observe.report import make_report

    place = Folder(run, storage_options)
    path = Path(out if out is not None else named_after(place, "-report.html"))
    if path.exists() and not force:
        raise OutputError(f"{path} exists: choose another --out, or --force")
    if (model_url := model_in(place)) is None:
        raise DataError(
            f"{run} holds no model: give the folder of a fit that has ended, or a model.zarr"
        )
    model = load_model(model_url, storage_options=storage_options)
    called = None if names is None else read_names(names, storage_options)
    with connected(scheduler, storage_options) as client:
        page = make_report(
            model,
            data,
            sample=sample,
            clusters=clusters,
            image=image,
            names=called,
            seed=seed,
            sample_weight=sample_weight,
            storage_options=storage_options,
            warnings=warnings_of(place),
            client=client,
        )
    page.save(path, overwrite=force)
    told = {"out": str(path), "bytes": path.stat().st_size, **page.figures}
    emit(told, as_json, lambda: key_values(_shown(told)))


def _shown(told: Mapping[str, Any]) -> dict[str, str]:
    from largek_dask.driver.words import human_bytes

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


def warnings_of(place: Folder) -> list[str]:
    """What the fit of a folder has warned of, each once."""
    from largek_dask.driver.event_log import JsonLines

    if not JsonLines.is_in(place):
        return []
    told = (
        str(event.get("message"))
        for event in JsonLines.read(place)
        if event.get("event") == "warning"
    )
    return list(dict.fromkeys(told))[:MOST_WARNINGS]
