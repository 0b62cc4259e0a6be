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
    typed,
    wants_json,
)
from largek_dask.cli.options import fit_option

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from largek_dask.estimators.elbow import ElbowCurve
    from largek_dask.model import PathModel
    from largek_dask.model.suggest_k import SuggestedK

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
    from largek_dask.estimators.elbow import suggest_k

    path = None if out is None else new_file(out, force)
    model = _path_model(data, storage_options)
    if model is not None:
        if wrong := [name.replace("_", "-") for name in typed() if name not in SHARED]:
            raise click.UsageError(f"{data} holds a model, and --{wrong[0]} is for data")
        payload, shown = _of_model(model)
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
        payload, shown = _of_curve(curve)
    if path is not None:
        try:
            (curve.plot() if model is None else path_picture(model)).savefig(path)
        except (OSError, ValueError) as error:
            raise OutputError(
                f"{path} cannot be written: {error}; choose another --out."
            ) from error
    emit({"data": data, "out": path and str(path), **payload}, lambda: shown)


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
    from largek_dask.plots.model_panels import path_panel
    from largek_dask.plots.pictures import draw

    shape = model.provenance.get("data", {}).get("content", {}).get("shape")
    of = "" if shape is None else f" of {shape[0]:,} rows × {shape[1]:,}"
    title = f"Partitions into 1 to {len(model.path_):,} clusters{of}"
    return draw([path_panel(model)], title, n_columns=1)


def _of_model(model: PathModel) -> tuple[dict[str, Any], Any]:
    """Return what is known of every partition of a model, as JSON and as a table."""
    from largek_dask.plots.tables import TextTable

    found, partitions = model.path_.suggest_k(), model.path_.records()
    names = ("clusters", "inertia", "lower bound", "gap", "ties", "moves", "swap", "stability")
    ranks = (0, 0, 1, 2, 4, 5, 6, 3)
    rows = [
        (
            f"{one['n_clusters']:,}",
            f"{one['inertia']:.7g}",
            f"{one['lower_bound']:.5g}",
            f"{one['gap']:.2%}",
            _shown(one["ties"], ","),
            _shown(one["moves"], ","),
            _shown(one["swap"], ".3g"),
            _shown(one["stability"], ".3f"),
        )
        for one in partitions
    ]
    notes = [found.words, f"{_votes(found)}."]
    if certain := [str(one["n_clusters"]) for one in partitions if one["gap"] < CERTAIN]:
        proved = f"No partition is better by {CERTAIN:.1%} or more for"
        notes.insert(0, f"{proved}: {', '.join(certain)} clusters.")
    # Close together: with large numbers all of them just fit 80 columns.
    columns = dict(zip(names, ranks, strict=True))
    table = TextTable(columns, rows, notes, right=names, gap=1)
    return {**_decision(found), "partitions": partitions}, table


def _of_curve(found: ElbowCurve) -> tuple[dict[str, Any], Any]:
    """Return a curve as JSON and as a table."""
    from largek_dask.plots.tables import TextTable

    columns = {
        "clusters": 0,
        "inertia": 0,
        "± standard error": 2,
        "halves agree": 1,
        "of a Gaussian's": 3,
    }
    rows = [
        (
            f"{one['n_clusters']:,}",
            f"{one['inertia']:.7g}",
            "exact" if one["standard_error"] == 0 else f"{one['standard_error']:.2g}",
            _shown(one["stability"], ".3f"),
            _shown(one["gaussian"], ".3f"),
        )
        for one in found.records()
    ]
    agree = "" if found.k is None else f" ({len(found.agreeing)} of {len(found.votes)} agree)"
    notes = [found.words, f"{_votes(found)}{agree}."]
    if found.n_searched < found.n_rows:
        notes.append(f"Found on {found.n_searched:,} of {found.n_rows:,} rows.")
    payload = {
        **_decision(found),
        "agreeing": list(found.agreeing),
        "method": found.method,
        "n_rows": found.n_rows,
        "n_searched": found.n_searched,
        "partitions": found.records(),
    }
    return payload, TextTable(columns, rows, notes, right=list(columns), gap=1)


def _decision(found: SuggestedK) -> dict[str, Any]:
    names = ("k", "range", "halves", "runner_up", "clear", "words")
    return {name: getattr(found, name) for name in names} | {"votes": dict(found.votes)}


def _votes(found: SuggestedK) -> str:
    votes = (f"{rule} {_shown(k, ',')}" for rule, k in found.votes.items())
    return f"By the curve alone: {', '.join(votes)}"


def _shown(value: float | None, form: str) -> str:
    """Return a figure, or a dash where it is not known."""
    return "-" if value is None else format(value, form)
