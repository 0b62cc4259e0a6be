"""Find the table of rows in a Zarr or HDF5 group that may contain several arrays."""

from __future__ import annotations

from typing import Any, ClassVar

import zarr

from largek_dask.data.cf_attributes import refuse_encoded
from largek_dask.data.csr_rows import CSRRows, is_sparse_group
from largek_dask.data.memory_rows import SlicedRows
from largek_dask.data.rows import Column, Rows
from largek_dask.data.storage_errors import reading
from largek_dask.data.stored_rows import names_in_anndata
from largek_dask.data.stores import check_complete, members_of
from largek_dask.errors import DataError


class HDF5Rows(SlicedRows):
    """Rows of a dataset in an open HDF5 file at ``location``."""

    as_array: ClassVar[str] = "dask.array.from_array(x)"

    def __init__(
        self, dataset: Any, *, location: str | None = None, weight: Column | None = None
    ) -> None:
        self._where = f"{location or dataset.file.filename}{dataset.name}"
        refuse_encoded(dataset, self._where)
        super().__init__(dataset, location=location, weight=weight)

    def describe_source(self, location: str | None) -> str:
        return self._where

    def _load(self, i: int, start: int, stop: int) -> Any:
        advice = "open the file again; if it is damaged, take another copy."
        with reading(self.name_chunk(i), advice):
            return self._source[start:stop]


def open_hdf5(
    node: Any, column: str | None, *, location: str | None = None, weight: Column | None = None
) -> Rows:
    """Open the rows of an HDF5 file, group or dataset; see :func:`find_table`.

    ``location`` is the URL or path of the file, or None if other processes cannot open the file.
    """
    if not hasattr(node, "keys"):
        return HDF5Rows(node, location=location, weight=weight)
    where = f"{location or node.file.filename}{node.name}".rstrip("/")
    table, path = find_table(node, column, where)
    rows: Rows
    if hasattr(table, "keys"):
        rows = CSRRows(table, location=location, column=path, weight=weight)
    else:
        rows = HDF5Rows(table, location=location, weight=weight)
    # In AnnData files, only these tables have the variables as columns.
    is_of_variables = path in (None, "X") or str(path).startswith("layers/")
    return rows.with_names(names_in_anndata(node)) if is_of_variables else rows


def find_table(
    group: Any, column: str | None, where: str, path: str | None = None
) -> tuple[Any, str | None]:
    """Return the table in a Zarr or HDF5 group, and the path of the table in the store.

    ``column`` names the table, or a group that contains the table. In a group, the table is the
    group itself if it is a sparse matrix, otherwise the array ``X``, otherwise the only
    two-dimensional array. ``where`` names the group in messages. Raises DataError if there is no
    such table.
    """
    if column is not None:
        if column not in group:
            raise DataError(
                f"{where} has no array or group named {column!r}; set column to one of: "
                f"{members_of(group)}."
            )
        node = group[column]
        path = f"{path}/{column}" if path else column
        if hasattr(node, "shape"):
            return node, path
        group = node
    check_complete(group, where)
    if is_sparse_group(group):
        return group, path
    if "X" in group:
        return find_table(group, "X", where, path)
    tables = [name for name, array in _arrays_in(group) if array.ndim == 2]
    if len(tables) == 1:
        return find_table(group, tables[0], where, path)
    raise DataError(
        f"{where} is a group that does not contain exactly one table (it contains "
        f"{members_of(group)}); set column to the path of the array to read."
    )


def _arrays_in(group: Any) -> list[tuple[str, Any]]:
    """Return the arrays in a group; for HDF5, also the arrays in its subgroups."""
    if isinstance(group, zarr.Group):
        return list(group.arrays())
    found: list[tuple[str, Any]] = []
    group.visititems(lambda name, node: found.append((name, node)))
    return [(name, node) for name, node in found if hasattr(node, "shape")]
