"""``largek predict`` and ``largek score``: a saved model on other data."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import (
    Command,
    connected,
    emit,
    key_values,
    option_scheduler,
    option_source,
    option_storage,
    output,
)
from largek_dask.driver.formatting import human_seconds

if TYPE_CHECKING:
    from largek_dask.data.missing_chunks import Missing
    from largek_dask.driver.storage import Folder

__all__ = ["predict", "score"]


WRITTEN = {
    "labels": ("predict", "labels"),
    "density": ("score_samples", "log_likelihoods"),
    "proba": ("predict_proba", "probabilities"),
}
"""What may be written: the method of a model that does it, and what a store calls it."""


@click.command(
    cls=Command,
    short_help="Write the cluster of every row, or how likely it is.",
    example="largek predict run/model.zarr new.zarr --out labels.zarr",
)
@click.argument("model_url", metavar="MODEL")
@click.argument("data")
@click.option(
    "--out",
    required=True,
    metavar="OUT",
    help="Where they go: a Zarr array, or the file that the suffix says (.npy, .csv, .parquet).",
)
@click.option(
    "--density",
    is_flag=True,
    help="Of a mixture: write the logarithm of the density at every row, not labels. The strangest "
    "rows have the lowest.",
)
@click.option(
    "--proba",
    is_flag=True,
    help="Of a mixture: write the probabilities that a row comes from components, above 2^-20, as "
    "a sparse (CSR) group in AnnData's layout, not labels; or to .npy (dense).",
)
@click.option("--force", is_flag=True, help="Replace what such a run has written there.")
@option_source
@option_scheduler
@option_storage
def predict(
    model_url: str,
    data: str,
    out: str,
    density: bool,
    proba: bool,
    force: bool,
    component: str | None,
    missing: Missing,
    scheduler: str | None,
    storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Write the cluster of every row of DATA, chunk by chunk: the nearest, or the likeliest one.

    MODEL is a model's store, or the folder of a fit that holds one.
    A run that was stopped goes on where it was; that of --proba begins anew.
    """
    from largek_dask.data.sources import open_rows
    from largek_dask.errors import ParameterError
    from largek_dask.model import load_model

    if density and proba:
        raise click.UsageError("give --density or --proba: a run writes one of them")
    begun = perf_counter()
    what = "density" if density else "proba" if proba else "labels"
    method, kind = WRITTEN[what]
    model = load_model(model_url, storage_options=output(model_url, data, storage_options)[1])
    if not hasattr(model, method):
        raise ParameterError(
            f"--{what} is for mixtures, and {model_url} is a model of the kind {model.kind!r}: fit "
            "one with --mixture"
        )
    rows = open_rows(data, component=component, storage_options=storage_options, missing=missing)
    out, out_options = output(out, data, storage_options)
    if force:
        remove_written(kind, out, out_options)
    with connected(scheduler, storage_options) as client:
        getattr(model, method)(rows, out=out, client=client, storage_options=out_options)
    seconds = perf_counter() - begun
    told = {"out": out, "holds": kind, "n_rows": rows.n_rows, "seconds": seconds}
    emit(
        told,
        as_json,
        lambda: key_values(
            {
                kind.replace("_", " "): out,
                "rows": f"{rows.n_rows:,}",
                "time": human_seconds(seconds),
            }
        ),
    )


def remove_written(kind: str, url: str, storage_options: Mapping[str, Any] | None) -> None:
    """Remove what an earlier run has written, labels say, and nothing else.

    Raises
    ------
    OutputError
        Something else is there.
    """
    from largek_dask.driver.storage import Folder
    from largek_dask.driver.value_files import holds_values, stage_of
    from largek_dask.errors import OutputError

    place = Folder(url, storage_options)
    parent, name = place.parent()
    stage = stage_of(place)
    is_file = stage.url != place.url
    if place.exists():
        if not is_file:
            check_kind(place, kind)
        elif not holds_values(place, kind):
            words = kind.replace("_", " ")
            raise OutputError(f"{url} is not a file of {words}: remove it yourself")
        parent.remove(name)
    # What a killed run has left of a file; nobody else gives such names.
    left = stage.parent()[1]
    if is_file:
        parent.remove(left)
    parent.remove(f"{left}.progress.json")


def check_kind(store: Folder, kind: str) -> None:
    """Refuse a Zarr store that holds something else than values of this kind.

    Raises
    ------
    OutputError
        It does.
    """
    import json

    from largek_dask.data.stores import ATTRIBUTE
    from largek_dask.errors import OutputError

    words = kind.replace("_", " ")
    try:
        found = json.loads(store.read("zarr.json"))["attributes"][ATTRIBUTE]["kind"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{store.url} is not a store of {words}: remove it yourself") from error
    if found != kind:
        raise OutputError(f"{store.url} holds {found}, not {words}: remove it yourself")


@click.command(
    cls=Command,
    short_help="Tell how well a model fits other data.",
    example="largek score run/model.zarr held_out.zarr",
)
@click.argument("model_url", metavar="MODEL")
@click.argument("data")
@click.option(
    "--labels",
    "truth",
    metavar="TRUTH",
    help="The class of every row, known from elsewhere: a Zarr array or .npy file of one integer a "
    "row. Tells how far clusters agree with classes, too.",
)
@click.option(
    "--sample",
    type=click.IntRange(min=2),
    metavar="ROWS",
    help="Find silhouette, Davies-Bouldin and Calinski-Harabasz of that many rows, with their "
    "standard errors.  [all rows]",
)
@click.option("--seed", default=0, show_default=True, help="Draws the sample.")
@option_source
@option_scheduler
@option_storage
def score(
    model_url: str,
    data: str,
    truth: str | None,
    sample: int | None,
    seed: int,
    component: str | None,
    missing: Missing,
    scheduler: str | None,
    storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Tell how well MODEL, or the one in the folder of a fit, fits DATA: more is better.

    Of a model of centres that is minus the sum of squared distances; also the mean squared
    distance of a row.

    Also how far clusters lie apart: silhouette (simplified: to centres, not between rows; up to
    1), Davies-Bouldin (less is better) and Calinski-Harabasz (more is better). They take two passes
    over DATA, or a sample.

    With --labels also how far clusters agree with classes: accuracy (with the best matching of
    clusters and classes), nmi (normalised mutual information), ari (adjusted Rand index) and
    purity. They leave out rows of class -1 and those that the model skips, and take another pass.
    """
    from largek_dask.data.sources import open_rows, read_integers
    from largek_dask.model import load_model

    begun = perf_counter()
    model = load_model(model_url, storage_options=output(model_url, data, storage_options)[1])
    rows = open_rows(data, component=component, storage_options=storage_options, missing=missing)
    classes = None
    if truth is not None:
        from largek_dask.estimators.scores import check_integers

        found = read_integers(
            truth,
            rows.n_rows,
            what="--labels",
            storage_options=storage_options,
            missing=missing,
        )
        classes = check_integers(found, "--labels")
    told: dict[str, Any] = {}
    with connected(scheduler, storage_options) as client:
        told["score"] = model.score(rows, client=client)
        told |= model.score_figures(told["score"], rows.n_rows)
        told |= separation(model, rows, sample, seed, client)
        if classes is not None:
            told |= agreement(model.predict(rows, client=client), classes)
    n_left_out = told.pop("n_left_out", None)
    shown = {
        name.replace("_", " "): shown_score(figure, told.get(f"{name}_standard_error"))
        for name, figure in told.items()
        if not name.endswith("_standard_error")
    }
    if sample is not None and sample < rows.n_rows:
        told |= {"sample": sample, "seed": seed}
        shown["sample"] = f"{sample:,} rows drawn by seed {seed}, for scores with ±"
    told |= {"n_rows": rows.n_rows, "seconds": perf_counter() - begun}
    shown["rows"] = f"{rows.n_rows:,}"
    if n_left_out is not None:
        told["n_left_out"] = n_left_out
        shown["rows left out"] = f"{n_left_out:,}"
    shown["time"] = human_seconds(told["seconds"])
    emit(told, as_json, lambda: key_values(shown))


def separation(
    model: Any, rows: Any, sample: int | None, seed: int, client: Any
) -> dict[str, float | None]:
    """How far clusters lie apart, by the name of the score, with standard errors of a sample.

    None, with a warning, where there is no such score, as of a single cluster: the model fits
    these rows all the same. Nothing of a kind whose clusters have no centres.
    """
    from largek_dask.errors import ParameterError, ParameterWarning, warn
    from largek_dask.model.separation import NAMES, Separation

    if not Separation.is_told_of(model):
        return {}
    try:
        found = Separation.of(model, rows, sample=sample, seed=seed, client=client)
    except ParameterError as error:
        warn(f"{', '.join(NAMES)} are not computed: {error}", ParameterWarning)
        return dict.fromkeys(NAMES)
    return {**found.figures()}


def shown_score(figure: float | None, error: float | None) -> str:
    """A score as people read it."""
    if figure is None:
        return "not computed"
    return f"{figure:.10g}" if error is None else f"{figure:.6g} ± {error:.2g}"


def agreement(labels: Any, classes: Any) -> dict[str, Any]:
    """How far the labels of rows agree with their classes, by the name of the score.

    ``accuracy`` is None, with a warning, where its table does not fit the memory there is: the
    others need none, and a pass over all rows is behind them.
    """
    from largek_dask.errors import NotEnoughMemoryError, ParameterWarning, warn
    from largek_dask.estimators.scores import Contingency

    table = Contingency.of(labels, classes)
    accuracy = None
    try:
        accuracy = table.accuracy()
    except NotEnoughMemoryError as error:
        warn(f"The accuracy is not computed. {error}", ParameterWarning)
    return {
        "accuracy": accuracy,
        "nmi": table.nmi(),
        "ari": table.ari(),
        "purity": table.purity(),
        "n_left_out": table.n_left_out,
    }
