"""``largek elbow``: how many clusters data have, or a fit of every partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import (
    command,
    connected,
    emit,
    new_file,
    option_force,
    option_scheduler,
    option_storage,
    option_threads,
    option_weight,
    table,
    typed,
    wants_json,
)
from largek_dask.cli.options import fit_option

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from largek_dask.model import PathModel
    from largek_dask.model.suggest_k import SuggestedK
    from largek_dask.selection.elbow import ElbowCurve

__all__ = ["elbow", "path_picture"]

CERTAIN = 1e-3
"""Gap up to which a lower bound proves a partition the best one."""
SHARED = {"data", "out", "force", "storage_options"}
"""Parameters for data and models."""


def _sample(_ctx: click.Context, _option: click.Parameter, value: str | None) -> int | str:
    """Return ``--sample`` as `suggest_k` takes it."""
    if value is None or value == "all":
        return value or "auto"
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number of rows nor 'all'") from None


@command("largek elbow rows.zarr -k 500 --out elbow.png")
@click.argument("data", metavar="DATA_OR_MODEL")
@click.option(
    "-k",
    "--k-max",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    metavar="K",
    help="Largest number of clusters to look at.",
)
@click.option(
    "--sample",
    metavar="N|all",
    callback=_sample,
    help="Rows to search, or 'all' to count all of them in the end.  [as many as K needs]",
)
@click.option("--out", metavar="PNG", help="Draw the curve there.")
@option_force
@option_weight
@fit_option("normalize")
@fit_option("on_bad_rows")
@fit_option("seed")
@fit_option("max_time")
@option_threads
@option_scheduler
@option_storage
def elbow(
    data: str,
    k_max: int,
    out: str | None,
    force: bool,
    seed: int,
    threads: int | None,
    scheduler: str | None,
    storage_options: dict[str, Any] | None,
    **asked: Any,
) -> None:
    """Suggest how many clusters there are, from the whole curve.

    Lists for each number of clusters: the inertia; how far two halves of the rows agree, as
    adjusted Rand index; and the inertia over the least that one Gaussian of the same spectrum could
    have. Up to 50,000 rows and 100 clusters every number is tried, else fewer.

    For a model with every partition, or the folder of such a fit (--algorithm dcdbundle): also a
    lower bound of the inertia; the gap to it; rows that tie between two centres; rows that would do
    better elsewhere; and the best swap of a centre that was tried.
    """
    from largek_dask.errors import OutputError
    from largek_dask.selection.elbow import suggest_k

    path = None if out is None else new_file(out, force)
    model = _path_model(data, storage_options)
    if model is not None:
        if wrong := [name.replace("_", "-") for name in typed() if name not in SHARED]:
            raise click.UsageError(f"{data} holds a model, and --{wrong[0]} is for data")
        payload, notes = _of_model(model)
    else:
        with connected(scheduler, storage_options) as client:
            curve = suggest_k(
                data,
                k_max,
                storage_options=storage_options,
                client=client,
                random_state=seed,
                n_threads=threads,
                verbose=not wants_json(),
                **asked,
            )
        payload, notes = _of_curve(curve)
    if path is not None:
        try:
            (curve.plot() if model is None else path_picture(model)).savefig(path)
        except (OSError, ValueError) as error:
            raise OutputError(
                f"{path} cannot be written: {error}; choose another --out."
            ) from error
    emit({"data": data, "out": path and str(path), **payload}, lambda: _table(payload, notes))


def _path_model(url: str, storage_options: dict[str, Any] | None) -> PathModel | None:
    """Return the model at a URL; None where data are. It must have every partition."""
    from largek_dask.driver.storage import Folder
    from largek_dask.errors import ModelFormatError, ParameterError
    from largek_dask.model import PathModel, load_model

    try:
        model = load_model(url, storage_options=storage_options)
    except (ModelFormatError, OSError):
        if Folder(url, storage_options).exists("model.zarr"):
            raise
        return None
    if not isinstance(model, PathModel):
        raise ParameterError(
            f"{url} holds one partition, not a path of them: fit with --algorithm dcdbundle"
        )
    return model


def path_picture(model: PathModel) -> Figure:
    """Draw the inertia of every partition of a model above its lower bound."""
    from largek_dask.plots.model_panels import curve_panel
    from largek_dask.plots.pictures import draw

    path = model.path_
    title = f"Partitions into 1 to {len(path):,} clusters"
    return draw([curve_panel(path.suggest_k(), path.lower_bound)], title, n_columns=1)


def _of_model(model: PathModel) -> tuple[dict[str, Any], list[str]]:
    """Return what is known of every partition of a model, and notes."""
    found, partitions = model.path_.suggest_k(), model.path_.records()
    certain = [str(one["n_clusters"]) for one in partitions if one["gap"] < CERTAIN]
    proved = f"No partition is better by {CERTAIN:.1%} or more for: {', '.join(certain)} clusters."
    return {**_decision(found), "partitions": partitions}, [proved] if certain else []


def _of_curve(found: ElbowCurve) -> tuple[dict[str, Any], list[str]]:
    """Return what is known of a curve, and notes."""
    is_sample = found.n_searched < found.n_rows
    payload = {
        **_decision(found),
        "method": found.method,
        "n_rows": found.n_rows,
        "n_searched": found.n_searched,
        "partitions": found.records(),
    }
    sample = f"Found on {found.n_searched:,} of {found.n_rows:,} rows."
    return payload, [sample] if is_sample else []


def _decision(found: SuggestedK) -> dict[str, Any]:
    names = ("k", "range", "halves", "runner_up", "clear", "words")
    return {name: getattr(found, name) for name in names}


def _table(payload: dict[str, Any], notes: list[str]) -> Any:
    """Return the figures of every partition as a table; those not known are dashes."""
    partitions = payload["partitions"]
    # With large numbers these just fit 80 columns.
    names = [name for name in partitions[0] if name != "movement"]
    columns = [name.removeprefix("n_").replace("_", " ") for name in names]
    notes = [payload["words"], *notes]
    rows = [[_shown(one[name]) for name in names] for one in partitions]
    return table(columns, rows, notes, columns)


def _shown(value: float | None) -> str:
    """Return a figure, or a dash where it is not known."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
