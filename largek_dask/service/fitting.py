"""A fit into a folder: model, labels, checkpoints and events, begun or gone on with."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from largek_dask.driver.checkpoint import description_in
from largek_dask.driver.fit import FitResult, fit
from largek_dask.driver.labels import are_whole
from largek_dask.driver.saved import Saved, best_saved
from largek_dask.driver.storage import DamagedError, is_torn
from largek_dask.errors import ModelFormatError, RecoveryWarning, warn
from largek_dask.model import Model, load_model
from largek_dask.model.base import check_model
from largek_dask.model.kinds import kind_holding

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.data.rows import Rows
    from largek_dask.driver.options import FitOptions
    from largek_dask.driver.storage import Folder

__all__ = [
    "JOB_FILES",
    "LABELS",
    "MODEL",
    "UNFINISHED_LABELS",
    "fit_into",
    "labels_in",
    "loss_in",
    "model_in",
    "model_of_checkpoint",
    "model_so_far",
]

MODEL = "model.zarr"
LABELS = "labels.zarr"
UNFINISHED_LABELS = "labels.zarr.progress.json"
JOB_FILES = (
    "job.json",
    "counted.json",
    "events",
    "events.jsonl",
    "logs.jsonl",  # of earlier versions
    "checkpoints",
    "starts",
    MODEL,
    LABELS,
    UNFINISHED_LABELS,
    "results",
    "claims",
)
"""All that a job writes into its folder, in the order in which it is removed: as long as anything
is there the claims say whose it is, and labels that are not whole are marked as such."""


def model_in(folder: Folder) -> Model | None:
    """The model of a job's folder; None while there is no whole one."""
    try:
        return load_model(folder.sub(MODEL))
    except ModelFormatError:
        return None


def labels_in(folder: Folder) -> bool:
    """Whether labels of all rows are there."""
    return not folder.exists(UNFINISHED_LABELS) and are_whole(folder.sub(LABELS))


def loss_in(folder: Folder, *, labels: bool) -> str:
    """Return what is damaged of the output of a job that has a model; nothing if it looks whole.

    What is not there at all has been moved, or is out of reach. Object stores tear nothing.

    Parameters
    ----------
    folder : Folder
        The job's.
    labels : bool
        Whether it has labels too.

    Raises
    ------
    OSError
        It cannot be read now.
    """
    if not folder.is_local:
        return ""
    try:
        if folder.exists(MODEL):
            check_model(folder.sub(MODEL))
    except ModelFormatError as error:
        return f"its model cannot be read: {error}"
    if labels and folder.exists(LABELS) and not labels_in(folder):
        return f"its labels cannot be read: {folder.url}/{LABELS} is not whole."
    return ""


def _forget_useless_labels(folder: Folder) -> None:
    """Remove labels that no fit goes on with: torn ones, and those that a model was writing."""
    torn = of_model = False
    try:
        record = folder.read(UNFINISHED_LABELS)
        torn = is_torn(record)
        of_model = not torn and _is_of_model(record)
    except FileNotFoundError:
        torn = folder.exists(LABELS)
    except DamagedError:
        torn = True
    if torn:
        warn(
            f"{folder.url}/{LABELS} is not whole, as after a power failure: the labels are "
            "written again.",
            RecoveryWarning,
        )
    if torn or of_model:
        for name in (LABELS, UNFINISHED_LABELS):
            folder.remove(name)


def _is_of_model(record: bytes) -> bool:
    """Whether unfinished labels were begun by a model, in the place of earlier ones."""
    try:
        return "model" in json.loads(record)["owner"]
    except (RecursionError, KeyError, TypeError):
        # Whoever goes on with them says what is wrong.
        return False


def fit_into(
    folder: Folder,
    rows: Rows,
    options: FitOptions,
    *,
    labels: bool,
    client: Client | None = None,
    n_threads: int | None = None,
    **told: Any,
) -> tuple[Model, FitResult]:
    """Fit, and write model and labels; what an earlier run has left there is gone on with.

    Labels of an earlier run stay until it is known that they are out of date.

    Parameters
    ----------
    folder : Folder
        The job's.
    rows : Rows
    options : FitOptions
        What is asked of the fit.
    labels : bool
        Whether labels are written. None are after a cancel.
    client, n_threads
        Where to compute.
    told
        ``events``, ``log``, ``callbacks``, ``cancelled``, ``held``: see
        :func:`largek_dask.driver.fit.fit`, whose errors are raised.
    """
    before = model_in(folder)
    labelled = labels_in(folder)
    if not labelled:
        _forget_useless_labels(folder)
    out = folder.sub(LABELS)
    result = fit(
        rows,
        options,
        client=client,
        n_threads=n_threads,
        checkpoint=folder,
        labels=out if labels and not labelled else False,
        **told,
    )
    model = Model.of(result)
    changed = before is None or before.digest() != model.digest()
    if labelled and changed:
        # Never labels of another model than the one beside them, not even for a moment.
        folder.remove(LABELS)
        if labels and result.stop_reason != "cancelled":
            model.predict(rows, out=out, client=client, n_threads=n_threads)
    if changed or (before is not None and before.provenance.get("n_iter") != result.n_iter):
        _save(model, folder, before)
    return model, result


def model_of_checkpoint(
    folder: Folder, stop_reason: str, beyond: int = -1
) -> tuple[Model, Saved] | None:
    """Write the model of the last checkpoint, for a fit that is not gone on with.

    Neither rows nor workers are needed.

    Parameters
    ----------
    folder : Folder
        The job's.
    stop_reason : str
        Why it is not gone on with, for the model's provenance.
    beyond : int
        None of a checkpoint after so many steps or fewer.

    Returns
    -------
    The model and what it is of; None where there is no such checkpoint.

    Raises
    ------
    CheckpointError
        It cannot be understood.
    OSError
        It cannot be read, or the model not be written.
    """
    found = model_so_far(folder, stop_reason)
    if found is None or found[1].n_iter <= beyond:
        return None
    model, saved = found
    before = model_in(folder)
    changed = before is None or before.digest() != model.digest()
    if changed and labels_in(folder):
        folder.remove(LABELS)
    if changed or (before is not None and before.provenance.get("stop_reason") != stop_reason):
        _save(model, folder, before)
    return model, saved


def model_so_far(folder: Folder, stop_reason: str | None = None) -> tuple[Model, Saved] | None:
    """Return the model of the last checkpoint, and the checkpoint; None without one.

    Nothing is written. Parameters and errors as for :func:`model_of_checkpoint`.
    """
    about = description_in(folder)
    saved = best_saved(folder)
    if about is None or saved is None:
        return None
    provenance = {
        "parameters": about["job"],
        "data": {
            key: value
            for key, value in about["data"].items()
            if key not in ("stamps", "feature_names")
        },
        "versions": about["versions"],
        "n_iter": saved.n_iter,
        **({} if stop_reason is None else {"stop_reason": stop_reason}),
        saved.objective.name: saved.value,
        "start": saved.stream,
        "seconds": saved.seconds,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    asked = about["job"]
    model = kind_holding(saved.arrays)(
        saved.arrays,
        asked["normalize"],
        asked["on_bad_rows"],
        saved.history,
        provenance,
        None if (names := about["data"].get("feature_names")) is None else tuple(names),
    )
    return model, saved


def _save(model: Model, folder: Folder, before: Model | None) -> None:
    """Write a model in the place of the one before."""
    if before is None:
        # Half of one may be there, which nobody but an earlier run of this job has written.
        folder.remove(MODEL)
    model.save(folder.sub(MODEL), overwrite=True)
