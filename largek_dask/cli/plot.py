"""``largek plot``: pictures of a fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import Command, emit, key_values, model_in, option_storage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from largek_dask.algorithms.objective import Objective
    from largek_dask.model import PathModel

__all__ = ["plot"]


@click.command(
    cls=Command,
    short_help="Draw the objective against time and passes, and cluster sizes.",
    example="largek plot run --out run.png",
)
@click.argument("folder", metavar="DIR")
@click.option("--out", metavar="PNG", help="The picture.  [DIR's name with .png]")
@click.option("--force", is_flag=True, help="Replace the picture if it exists.")
@option_storage
def plot(
    folder: str, out: str | None, force: bool, storage_options: dict[str, Any] | None, as_json: bool
) -> None:
    """Draw the objective against time and passes, and cluster sizes, of a job's folder or a model.

    Of a job that is still running, what its events tell so far. Of a fit of all partitions the
    inertia against the number of clusters instead, with lower bounds.
    """
    from pathlib import Path

    from largek_dask.errors import OutputError

    name = folder.rstrip("/").rsplit("/", 1)[-1].removesuffix(".zarr")
    path = Path(out if out is not None else f"{name}.png")
    if path.exists() and not force:
        raise OutputError(f"{path} exists: choose another --out, or --force")
    figure, told = draw(folder, storage_options)
    try:
        figure.savefig(path)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error}; check space and permissions there."
        ) from error
    told = {"out": str(path), **told}
    emit(told, as_json, lambda: key_values({key: str(value) for key, value in told.items()}))


def draw(folder: str, storage_options: Mapping[str, Any] | None) -> tuple[Figure, dict[str, Any]]:
    """The figure of a job's folder or of a model, and what it shows.

    Raises
    ------
    DataError
        The folder holds neither a model nor events.
    """
    from largek_dask.driver.event_log import JsonLines
    from largek_dask.driver.storage import Folder
    from largek_dask.errors import DataError
    from largek_dask.model import PathModel, load_model
    from largek_dask.observe.plots import cost_figure, fit_figure, sizes_figure

    place = Folder(folder, storage_options)
    if (model_url := model_in(place)) is not None:
        model = load_model(model_url, storage_options=storage_options)
        n_iter = model.history[-1]["step"] if model.history else 0
        told = {"n_clusters": model.n_clusters, "n_iter": n_iter}
        shape = model.provenance.get("data", {}).get("content", {}).get("shape")
        if isinstance(model, PathModel):
            return draw_path(model, shape), told | ({} if shape is None else {"n_rows": shape[0]})
        if not model.history:
            return sizes_figure(model.counts), told
        n_rows, d = shape
        title = f"{model.n_clusters:,} clusters of {n_rows:,} rows × {d:,}"
        figure = fit_figure(model.history, model.counts, n_rows, title, model.objective)
        return figure, {**told, "n_rows": n_rows}
    if JsonLines.is_in(place):
        history, n_rows, objective = history_of(JsonLines.read(place))
        told = {"n_rows": n_rows, "n_iter": history[-1]["step"]}
        return cost_figure(history, n_rows, objective), told
    raise DataError(
        f"{folder} holds neither model.zarr nor events, so there is nothing to draw: give a fit's "
        "folder"
    )


def draw_path(model: PathModel, shape: Sequence[int] | None) -> Figure:
    """The elbow of a model that holds every partition; ``shape`` is that of its rows, if known."""
    from largek_dask.observe.plots import path_figure

    path = model.path_
    of = "" if shape is None else f" of {shape[0]:,} rows × {shape[1]:,}"
    title = f"Partitions into 1 to {len(path):,} clusters{of}"
    found = path.suggest_k()
    return path_figure(
        path.inertia, path.lower_bound, model.counts, title, suggested=found.k, clear=found.clear
    )


def history_of(
    events: Iterable[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], int, Objective]:
    """History (thinned), number of rows and objective from events.

    Of steps that were repeated by a resumed job, the last.

    Raises
    ------
    DataError
        No step has ended yet.
    """
    from largek_dask.algorithms.objective import INERTIA, objective_in
    from largek_dask.driver.history import MOST_STEPS, thinned
    from largek_dask.errors import DataError

    steps: dict[int, dict[str, Any]] = {}
    n_rows, objective = 1, INERTIA
    for event in events:
        if event["event"] == "started":
            n_rows, objective = event["n_rows"], objective_in(event)
        elif event["event"] == "step":
            steps[event["step"]] = {
                "step": event["step"],
                "cost": event["cost"],
                "rows": event["rows"],
                "seconds": event["elapsed"],
            }
            if len(steps) >= 2 * MOST_STEPS:
                steps = {step["step"]: step for step in thinned(_in_order(steps), objective)}
    if not steps:
        raise DataError("there is nothing to draw: the fit has made no step yet, so wait for one")
    return thinned(_in_order(steps), objective), n_rows, objective


def _in_order(steps: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    return [steps[step] for step in sorted(steps)]
