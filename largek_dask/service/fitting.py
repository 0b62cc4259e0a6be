"""A fit into a folder: model, labels, checkpoints and events, begun or gone on with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from largek_dask.driver.fit import FitResult, fit
from largek_dask.errors import ModelFormatError
from largek_dask.model import Model, load_model

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.data.rows import Rows
    from largek_dask.driver.storage import Folder

__all__ = ["JOB_FILES", "LABELS", "MODEL", "fit_into", "model_in"]

MODEL = "model.zarr"
LABELS = "labels.zarr"
UNFINISHED_LABELS = "labels.zarr.progress.json"
JOB_FILES = (
    "job.json",
    "counted.json",
    "events",
    "events.jsonl",
    "checkpoints",
    "starts",
    MODEL,
    LABELS,
    UNFINISHED_LABELS,
    "claims",
    "results",
)
"""All that a job writes into its folder."""


def model_in(folder: Folder) -> Model | None:
    """The model of a job's folder; None while there is no whole one."""
    try:
        return load_model(folder.sub(MODEL))
    except ModelFormatError:
        return None


def fit_into(
    folder: Folder,
    rows: Rows,
    *,
    labels: bool,
    client: Client | None = None,
    n_threads: int | None = None,
    **options: Any,
) -> tuple[Model, FitResult]:
    """Fit, and write model and labels; what an earlier run has left there is gone on with.

    Labels of an earlier run stay until it is known that they are out of date.

    Parameters
    ----------
    folder : Folder
        The job's.
    rows : Rows
    labels : bool
        Whether labels are written. None are after a cancel.
    client, n_threads
        Where to compute.
    options
        Of :func:`largek_dask.driver.fit.fit`, whose errors are raised.
    """
    before = model_in(folder)
    labelled = folder.exists(LABELS) and not folder.exists(UNFINISHED_LABELS)
    out = folder.sub(LABELS)
    result = fit(
        rows,
        client=client,
        n_threads=n_threads,
        checkpoint=folder,
        labels=out if labels and not labelled else False,
        **options,
    )
    model = Model.of(result)
    changed = before is None or before.digest() != model.digest()
    if labelled and changed:
        # Never labels of another model than the one beside them, not even for a moment.
        folder.remove(LABELS)
        if labels and result.stop_reason != "cancelled":
            model.predict(rows, out=out, client=client, n_threads=n_threads)
    if changed or (before is not None and before.provenance.get("n_iter") != result.n_iter):
        if before is None:
            # Half of one may be there, which nobody but an earlier run of this job has written.
            folder.remove(MODEL)
        model.save(folder.sub(MODEL), overwrite=True)
    return model, result
