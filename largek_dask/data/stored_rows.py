"""Rows in a Zarr store, which are pickled as an address without the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict

import numpy as np
import zarr

from largek_dask.data.missing_chunks import warn_of_missing
from largek_dask.data.rows import Column, Rows, regular_table
from largek_dask.data.storage_errors import retry_io
from largek_dask.data.stores import open_node
from largek_dask.errors import DataError


def name_node(kind: str, location: str | None, column: str | None) -> str:
    """Return a name for a node, made from the URL and the column, for messages."""
    where = kind if location is None else location
    return f"{where}/{column}" if column else where


class Address(TypedDict, total=False):
    """Address of a node in a store, and the weights of its rows."""

    location: str | None
    """URL or absolute path of the store; None if only this process can open it."""
    column: str | None
    storage_options: Mapping[str, Any] | None
    weight: Column | None


class StoredRows(Rows):
    """Rows of an array or group in a Zarr store, read in chunks of ``chunk_rows`` rows.

    ``node`` is an open array or group. The last four parameters are the fields of an
    :class:`Address`.
    """

    _notes: Mapping[str, Any]
    """Metadata that this package stored in the attributes of the node."""
    kind: ClassVar[str]
    """Name of a node without a location, used in messages."""

    def __init__(
        self,
        node: Any,
        *,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        chunk_rows: int,
        location: str | None = None,
        column: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        weight: Column | None = None,
    ) -> None:
        self.column = column
        self.storage_options = dict(storage_options) if storage_options else None
        self._node = node
        self._chunk_rows = chunk_rows
        super().__init__(
            n_features=shape[1],
            dtype=dtype,
            chunk_table=regular_table(shape[0], chunk_rows),
            location=location,
            weight=weight,
        )

    @property
    def _is_complete(self) -> bool:
        return bool(self._notes.get("complete"))

    def warn_of_missing(self) -> None:
        """Warn of missing chunks, unless the metadata mark the store as complete."""
        # Single chunks of an HDF5 file cannot be missing.
        is_zarr = isinstance(self._node, (zarr.Array, zarr.Group))
        if is_zarr and not self._is_complete:
            warn_of_missing(self._node, self.describe_source(self.location))

    def describe_source(self, location: str | None) -> str:
        return name_node(self.kind, location, self.column)

    def stored_statistics(self) -> dict[str, Any] | None:
        # stored statistics are valid only for unit weights
        statistics = self._notes.get("statistics") if self.weight is None else None
        return statistics if isinstance(statistics, dict) else None

    def _find_names(self) -> Sequence[str] | None:
        """Return the column names that ``ingest`` or AnnData stored."""
        names = self._notes.get("feature_names")
        if names is not None:
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                where = self.describe_source(self.location)
                raise DataError(
                    f"the column names stored in {where} are not a list of strings; write the "
                    "store again."
                )
            return names
        above, _, own = str(getattr(self._node, "path", "")).rpartition("/")
        if above.split("/")[-1] == "layers":
            above, own = above.rpartition("/")[0], "X"
        if own != "X" or not isinstance(self._node, (zarr.Array, zarr.Group)):
            return None
        return retry_io(lambda: names_in_anndata(_group_at(self._node.store, above)))

    def __reduce__(self) -> tuple[Any, ...]:
        options = {
            "location": self.location,
            "column": self.column,
            "storage_options": self.storage_options,
            "weight": self.weight,
            "chunk_rows": self._chunk_rows,
        }
        return _reopen, (type(self), self._node if self.location is None else None, options)


def _reopen(kind: type[Any], node: Any, options: Mapping[str, Any]) -> Any:
    if node is None:
        address = (options[name] for name in ("location", "column", "storage_options"))
        node = open_node(*address)
    return kind(node, **options)


def _group_at(store: Any, path: str) -> Any:
    try:
        return zarr.open_group(store, path=path, mode="r")
    except FileNotFoundError:
        return {}


def names_in_anndata(group: Any) -> list[str] | None:
    """Return the names of the variables in an AnnData group; None for other groups."""
    variables = group.get("var")
    if not hasattr(variables, "attrs"):
        return None
    index = variables.attrs.get("_index")
    if index is None or index not in variables:
        return None
    names = variables[index]
    # Newer AnnData versions may store the names together with a mask of missing values.
    names = names["values"] if "values" in getattr(names, "keys", tuple)() else names
    names = names.asstr()[:] if hasattr(names, "asstr") else names[:]
    return [str(name) for name in np.asarray(names).tolist()]
