"""A small store of rows that have weights, which :func:`~largek_dask.open_rows` reads with them.

A Zarr group of the rows ``X``, their ``weights`` and, where they were picked out of a larger table,
their ``rows`` in it. The note ``largek.weights`` of the group names the array of weights: a group
of anybody else may hold one of that name that means something else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from largek_dask.data.rows import MAX_CHUNK_ROWS
from largek_dask.data.store_writer import (
    StoreWriter,
    fresh_store,
    publish_store,
    refuse_existing,
    refuse_file,
    unfinished,
)
from largek_dask.data.stores import ATTRIBUTE, check_complete, normalize
from largek_dask.data.zarr_rows import ZarrColumn
from largek_dask.errors import DataError, OutputError

__all__ = ["own_weights", "write_weighted_rows"]

WEIGHTS = "weights"


def write_weighted_rows(
    out: str | os.PathLike[str],
    x: NDArray[Any],
    weights: NDArray[np.float64],
    rows: NDArray[np.int64],
    notes: Mapping[str, Any],
    *,
    feature_names: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    force: bool = False,
) -> None:
    """Write rows with their weights; the store is refused as data until its last byte is there.

    Parameters
    ----------
    out : str or path
        URL or path of the new store.
    rows : (n,)
        Where they are in the table that they are of.
    notes : mapping
        JSON that says where they come from.
    feature_names : sequence of str, optional
        Names of the columns of ``x``.
    force : bool
        Replace a Zarr store that is there.

    Raises
    ------
    OutputError
        ``out`` exists, cannot be written, or does not read back.
    """
    target = normalize(out)
    refuse_file(target)
    refuse_existing(target, storage_options, force=force)
    try:
        group = zarr.create_group(
            fresh_store(target, storage_options),
            attributes={ATTRIBUTE: {"format": 1, "complete": False}},
        )
    except Exception as error:
        # drivers raise errors of their own kinds
        raise OutputError(
            f"{target} cannot be written: {error}; check space and permissions there."
        ) from error
    named = {} if feature_names is None else {"feature_names": list(feature_names)}
    columns = {"X": x, WEIGHTS: weights[:, None], "rows": rows[:, None]}
    with unfinished(target, storage_options):
        for name, values in columns.items():
            writer = StoreWriter(
                f"{target}/{name}",
                n_features=values.shape[1],
                dtype=values.dtype,
                n_rows=len(values),
                chunk_rows=min(len(values), MAX_CHUNK_ROWS),
                storage_options=storage_options,
            )
            writer.append(values)
            writer.finish(named if name == "X" else {})
        publish_store(group, target, {ATTRIBUTE: {**notes, "weights": WEIGHTS}})


def own_weights(group: Any, where: str) -> ZarrColumn | None:
    """The weights that a group of this package says that its rows have, None if it says nothing.

    Raises
    ------
    DataError
        They are not there.
    """
    name = check_complete(group, where).get("weights")
    if name is None:
        return None
    if name not in group:
        raise DataError(
            f"{where} lacks its array {name!r}, the weights of its rows: write it anew."
        )
    return ZarrColumn(group[name], f"{where}/{name}")
