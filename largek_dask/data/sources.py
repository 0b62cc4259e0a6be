"""Anything a user hands in, as rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr

from largek_dask.data.memory_rows import ArrayColumn, ArrayRows
from largek_dask.data.rows import Column, Rows
from largek_dask.data.stores import normalize, open_node
from largek_dask.data.zarr_rows import ZarrColumn, ZarrRows, open_zarr_array

__all__ = ["open_rows"]


def open_rows(
    source: Any,
    *,
    sample_weight: Any = None,
    component: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Rows:
    """A table of rows from whatever there is."""
    weight = open_weight(sample_weight, storage_options)
    if isinstance(source, Rows):
        return source
    if isinstance(source, (str, os.PathLike)):
        url = normalize(source)
        node = open_node(url, component, storage_options)
        return open_zarr_array(node, weight=weight, location=(url, component, storage_options))
    if isinstance(source, zarr.Array):
        return open_zarr_array(source, weight=weight)
    return ArrayRows(np.asarray(source), weight=weight)


def open_weight(sample_weight: Any, storage_options: Mapping[str, Any] | None) -> Column | None:
    """Row weights from an array-like or a URL."""
    if sample_weight is None:
        return None
    if isinstance(sample_weight, (str, os.PathLike)):
        url = normalize(sample_weight)
        return ZarrColumn(open_node(url, None, storage_options), url)
    return ArrayColumn(sample_weight)
