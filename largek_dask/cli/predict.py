"""``largek predict`` and ``largek score``: a saved model on other data."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import click

from largek_dask.cli.common import (
    Command,
    connected,
    emit,
    key_values,
    option_scheduler,
    option_storage,
    output,
)
from largek_dask.driver.words import human_seconds

__all__ = ["predict", "score"]


@click.command(
    cls=Command,
    short_help="Write the nearest cluster of every row.",
    example="largek predict run/model.zarr new.zarr --out labels.zarr",
)
@click.argument("model_url", metavar="MODEL")
@click.argument("data")
@click.option("--out", required=True, metavar="LABELS.zarr", help="Where the labels go.")
@click.option("--force", is_flag=True, help="Replace the labels if they exist.")
@option_scheduler
@option_storage
def predict(
    model_url: str,
    data: str,
    out: str,
    force: bool,
    scheduler: str | None,
    storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Write the nearest cluster of every row of DATA, chunk by chunk.

    A run that was stopped goes on where it was.
    """
    from largek_dask.data.sources import open_rows
    from largek_dask.model import load_model

    begun = perf_counter()
    model = load_model(model_url)
    rows = open_rows(data, storage_options=storage_options)
    out, out_options = output(out, data, storage_options)
    if force:
        remove_labels(out, out_options)
    with connected(scheduler) as client:
        model.predict(rows, out=out, client=client, storage_options=out_options)
    seconds = perf_counter() - begun
    told = {"out": out, "n_rows": rows.n_rows, "seconds": seconds}
    emit(
        told,
        as_json,
        lambda: key_values(
            {
                "labels": out,
                "rows": f"{rows.n_rows:,}",
                "time": human_seconds(seconds),
            }
        ),
    )


def remove_labels(url: str, storage_options: Mapping[str, Any] | None) -> None:
    """Remove labels that an earlier run has written, and nothing else.

    Raises
    ------
    OutputError
        Something else is there.
    """
    import json

    from largek_dask.data.stores import ATTRIBUTE
    from largek_dask.driver.storage import Folder
    from largek_dask.errors import OutputError

    place = Folder(url, storage_options)
    if not place.exists():
        return
    try:
        kind = json.loads(place.read("zarr.json"))["attributes"][ATTRIBUTE]["kind"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{url} is not a store of labels: remove it yourself") from error
    if kind != "labels":
        raise OutputError(f"{url} holds {kind}, not labels: remove it yourself")
    parent, _, name = place.url.rpartition("/")
    folder = Folder(parent, storage_options)
    folder.remove(name)
    folder.remove(f"{name}.progress.json")


@click.command(
    cls=Command,
    short_help="Tell how well a model fits other data.",
    example="largek score run/model.zarr held_out.zarr",
)
@click.argument("model_url", metavar="MODEL")
@click.argument("data")
@option_scheduler
@option_storage
def score(
    model_url: str,
    data: str,
    scheduler: str | None,
    storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Tell how well a model fits DATA, as scikit-learn: more is better.

    Of a model of centres that is minus the sum of squared distances; also the mean squared
    distance of a row.
    """
    from largek_dask.data.sources import open_rows
    from largek_dask.model import load_model

    begun = perf_counter()
    model = load_model(model_url)
    rows = open_rows(data, storage_options=storage_options)
    with connected(scheduler) as client:
        value = model.score(rows, client=client)
    told = {"score": value, **model.score_figures(value, rows.n_rows)}
    shown = {name.replace("_", " "): f"{figure:.10g}" for name, figure in told.items()}
    told |= {"n_rows": rows.n_rows, "seconds": perf_counter() - begun}
    shown |= {"rows": f"{rows.n_rows:,}", "time": human_seconds(told["seconds"])}
    emit(told, as_json, lambda: key_values(shown))
