"""Tables inside objects that hold several: open HDF5 files, and AnnData objects in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from largek_dask.data.cf_attributes import decoded
from largek_dask.data.columns import listed
from largek_dask.data.csr_rows import CSRRows, is_sparse_group
from largek_dask.data.memory_rows import SlicedRows
from largek_dask.data.rows import Column, Rows
from largek_dask.data.storage_errors import reading
from largek_dask.data.stored_rows import names_in_anndata
from largek_dask.errors import DataError

__all__ = ["HDF5Rows", "is_of_variables", "open_hdf5", "table_in_anndata"]


class HDF5Rows(SlicedRows):
    """Rows of a dataset in an open HDF5 file, read range by range.

    Parameters
    ----------
    location : str, optional
        URL or path of the file, where others can open it.
    weight : Column, optional
        Row weights.
    """

    as_array: ClassVar[str] = "dask.array.from_array(x)"

    def __init__(
        self, dataset: Any, *, location: str | None = None, weight: Column | None = None
    ) -> None:
        self._where = f"{location or dataset.file.filename}{dataset.name}"
        source = decoded(dataset, self._where)
        super().__init__(source, location=location, weight=weight)

    def describe_source(self, location: str | None) -> str:
        """File and name of the dataset, for messages."""
        return self._where

    def _load(self, i: int, start: int, stop: int) -> Any:
        advice = "open the file again; if it is damaged, take another copy."
        with reading(self.name_chunk(i), advice):
            return self._source[start:stop]


def open_hdf5(
    node: Any,
    component: str | None,
    *,
    location: str | None = None,
    weight: Column | None = None,
) -> Rows:
    """Rows of an open HDF5 file, group or dataset.

    Parameters
    ----------
    component : str or None
        The dataset, or the sparse (CSR) group of AnnData's layout, inside a group; None: ``X``, or
        the only dataset of two dimensions.
    location : str, optional
        URL or path of the file, where others can open it.

    Raises
    ------
    DataError
        There is no such table, or more than one.
    """
    where = f"{location or node.file.filename}{node.name}".rstrip("/")
    if not hasattr(node, "keys"):
        if component is not None:
            raise DataError(
                f"component={component!r} names a dataset inside a file, but {where} is one "
                "itself: leave it out."
            )
        return HDF5Rows(node, location=location, weight=weight)
    if component is None and is_sparse_group(node):
        return CSRRows(node, location=location, weight=weight)
    if component is None:
        component = _only_table(node, where)
    if component not in node:
        raise DataError(
            f"{where} has no dataset named {component!r}; pass component= one that it has "
            f"({_shown(node)})."
        )
    table = node[component]
    rows: Rows
    if not hasattr(table, "keys"):
        rows = HDF5Rows(table, location=location, weight=weight)
    elif is_sparse_group(table):
        rows = CSRRows(table, location=location, component=component, weight=weight)
    else:
        raise DataError(
            f"{component!r} of {where} is a group; name a dataset inside it ({_shown(table)})."
        )
    return rows.with_names(names_in_anndata(node)) if is_of_variables(component) else rows


def _only_table(group: Any, where: str) -> str:
    if "X" in group:
        return "X"
    tables = [name for name, node in _members(group) if getattr(node, "ndim", 0) == 2]
    if len(tables) == 1:
        return tables[0]
    if tables:
        names = ", ".join(tables)
        raise DataError(
            f"{where} holds {len(tables)} two-dimensional datasets ({names}); pass component= one."
        )
    raise DataError(
        f"{where} holds no two-dimensional dataset; pass component= a table that it has "
        f"({_shown(group)})."
    )


def _members(group: Any) -> list[tuple[str, Any]]:
    """The datasets in a group of HDF5, and the sparse matrices, by their paths."""
    found: list[tuple[str, Any]] = []

    def note(name: str, node: Any) -> None:
        if hasattr(node, "ndim") or (hasattr(node, "keys") and is_sparse_group(node)):
            found.append((name, node))

    group.visititems(note)
    return found


def _shown(group: Any) -> str:
    names = [name for name, node in _members(group) if hasattr(node, "keys") or node.ndim >= 2]
    return listed(names) if names else "there is none"


def is_of_variables(component: str | None) -> bool:
    """Return True if the columns of a table in AnnData's layout are its variables."""
    return component in (None, "X") or str(component).startswith("layers/")


def table_in_anndata(data: Any, component: str | None) -> Any:
    """Return the array that an AnnData object holds by this name, for ``open_rows``.

    Parameters
    ----------
    data : anndata.AnnData
        In memory, or backed by a file.
    component : str or None
        As in a store that AnnData has written: ``X`` (None says so, too), ``layers/NAME``,
        ``obsm/NAME``, ``raw/X``.

    Raises
    ------
    DataError
        It holds no such array; the message names those that there are.
    """
    tables = dict(_tables_of(data))
    wanted = "X" if component is None else component
    if wanted not in tables:
        names = ", ".join(tables) or "no other table"
        raise DataError(
            f"the AnnData object has no {wanted!r}; pass component= one that it has ({names})."
        )
    found = tables[wanted]
    # A sparse matrix that is still in its file.
    return getattr(found, "group", found) if hasattr(found, "format") else found


def _tables_of(data: Any) -> Iterator[tuple[str, Any]]:
    if data.X is not None:
        yield "X", data.X
    for part in ("layers", "obsm"):
        for name, values in getattr(data, part).items():
            yield f"{part}/{name}", values
    if data.raw is not None:
        yield "raw/X", data.raw.X
