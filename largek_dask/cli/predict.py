"""``largek predict`` and ``largek score``: apply a saved model to other data."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import (
    DataOptions,
    Decorated,
    command,
    connected,
    emit,
    option_ids,
    option_include,
    option_partition,
    option_scheduler,
    options,
    output,
    with_data_options,
)

if TYPE_CHECKING:
    from largek_dask.data.rows import Rows
    from largek_dask.model import Model

WRITTEN = {
    "labels": ("predict", "labels"),
    "density": ("score_samples", "log_likelihoods"),
    "proba": ("predict_proba", "probabilities"),
}
"""Method of the model and kind of the output store, by type of output."""

model_and_data: Decorated = options(
    click.argument("model_url", metavar="MODEL"),
    click.argument("data"),
    with_data_options,
    option_scheduler,
)


def _load(model_url: str, data: str, data_options: DataOptions) -> Model:
    from largek_dask.model import load_model

    options = output(model_url, data, data_options.storage_options)[1]
    return load_model(model_url, storage_options=options)


@command("largek predict run/model.zarr new.zarr --out labels.zarr")
@click.option(
    "--out",
    required=True,
    metavar="OUT",
    help="New Zarr array, or .npy, .csv or .parquet file, depending on the suffix.",
)
@option_include("Further columns of a .csv or .parquet file")
@option_ids
@option_partition
@click.option(
    "--density",
    is_flag=True,
    help="For a mixture: write the log density of each row, which is low for outliers.",
)
@click.option(
    "--proba",
    is_flag=True,
    help="For a mixture: write component probabilities above 2^-20 as a sparse (CSR) matrix in "
    "AnnData's layout.",
)
@model_and_data
def predict(
    model_url: str,
    data: str,
    out: str,
    include: tuple[str, ...],
    ids: str | None,
    partition_by: str | None,
    density: bool,
    proba: bool,
    scheduler: str | None,
    data_options: DataOptions,
) -> None:
    """Write the label, density or probabilities of each row of DATA.

    Rows are assigned to the nearest cluster or, for a mixture, to the most likely component. MODEL
    is the URL of a model or the folder of a fit. Repeat the command to resume an interrupted run;
    runs with --proba cannot be resumed.
    """
    from largek_dask.errors import ParameterError

    if density and proba:
        raise click.UsageError("--density and --proba cannot be used together; choose one of them")
    begun = perf_counter()
    what = "density" if density else "proba" if proba else "labels"
    method, kind = WRITTEN[what]
    given: dict[str, Any] = {}
    if include or partition_by:
        if what != "labels":
            raise click.UsageError(f"--{what} cannot be used with --include or --partition-by")
        given = {"include": include, "partition_by": partition_by}
    model = _load(model_url, data, data_options)
    if not hasattr(model, method):
        raise ParameterError(
            f"--{what} requires a mixture, but {model_url} is a model of kind {model.kind!r}; fit "
            "a mixture with --mixture"
        )
    rows = data_options.open(data, ids=ids)
    out, storage_options = output(out, data, data_options.storage_options)
    with connected(scheduler, data_options.storage_options) as client:
        given |= {"out": out, "client": client, "storage_options": storage_options}
        getattr(model, method)(rows, **given)
    seconds = perf_counter() - begun
    emit({"out": out, "holds": kind, "n_rows": rows.n_rows, "seconds": seconds})


@command("largek score run/model.zarr held_out.zarr")
@click.option(
    "--labels",
    "truth",
    metavar="TRUTH",
    help="Classes of the rows: a Zarr array or .npy file with one integer per row.",
)
@model_and_data
def score(
    model_url: str, data: str, truth: str | None, scheduler: str | None, data_options: DataOptions
) -> None:
    """Evaluate a model on other data.

    MODEL is the URL of a model or the folder of a fit. Higher scores are better. The score of a
    model with centres is the negative sum of squared distances.

    The command also prints scores of cluster separation: the simplified silhouette (based on
    distances to centres; at most 1), Davies-Bouldin (lower is better) and Calinski-Harabasz (higher
    is better).

    With --labels, the command also prints scores of the agreement between clusters and classes:
    accuracy (with the best matching of clusters to classes), nmi (normalised mutual information),
    ari (adjusted Rand index) and purity. Rows of class -1 and rows that the model skips are
    excluded.
    """
    from largek_dask.data.sources import read_integers
    from largek_dask.selection.scores import check_integers

    begun = perf_counter()
    model, rows = _load(model_url, data, data_options), data_options.open(data)
    classes = None
    if truth is not None:
        more: Any = {"storage_options": data_options.storage_options}
        read = read_integers(truth, rows.n_rows, what="--labels", **more)
        classes = check_integers(read, "--labels")
    payload: dict[str, Any] = {}
    with connected(scheduler, data_options.storage_options) as client:
        payload["score"] = model.score(rows, client=client)
        payload |= model.score_figures(payload["score"], rows.n_rows)
        payload |= _separation(model, rows, client)
        if classes is not None:
            payload |= _agreement(model.predict(rows, client=client), classes)
    emit({**payload, "n_rows": rows.n_rows, "seconds": perf_counter() - begun})


def _separation(model: Model, rows: Rows, client: Any) -> dict[str, float | None]:
    """Return cluster separation scores by name; all scores are None for a single cluster."""
    from largek_dask.errors import ParameterError, ParameterWarning, warn
    from largek_dask.selection.scores import NAMES, separation

    try:
        return {**separation(model, rows, client=client)}
    except ParameterError as error:
        warn(f"{', '.join(NAMES)} are not computed: {error}", ParameterWarning)
        return dict.fromkeys(NAMES)


def _agreement(labels: Any, classes: Any) -> dict[str, Any]:
    """Return agreement scores by name; accuracy is None if it would need too much memory."""
    from largek_dask.errors import NotEnoughMemoryError, ParameterWarning, warn
    from largek_dask.selection import scores

    found: dict[str, Any] = {"accuracy": None}
    try:
        found["accuracy"] = scores.accuracy(labels, classes)
    except NotEnoughMemoryError as error:
        warn(f"The accuracy is not computed. {error}", ParameterWarning)
    found |= {name: getattr(scores, name)(labels, classes) for name in ("nmi", "ari", "purity")}
    return found | {"n_left_out": int(((labels < 0) | (classes < 0)).sum())}
