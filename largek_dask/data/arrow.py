"""Columns of Arrow tables as features: numbers, and lists of the same length, of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.columns import not_numbers
from largek_dask.data.rows import native_dtype
from largek_dask.errors import DataError

__all__ = ["ArrowColumns"]


class ArrowColumns:
    """Some columns of tables of one schema, side by side.

    A column of lists of fixed length (embeddings) gives one feature an element.

    Parameters
    ----------
    schema : pyarrow.Schema
    places : sequence of int
        Positions of the columns, in the order in which they are taken.
    where : str
        What messages call the table.

    Raises
    ------
    DataError
        Columns are not numbers (all of them are named), or there is none.
    """

    def __init__(self, schema: Any, places: Sequence[int], where: str) -> None:
        import pyarrow as pa

        self.where = where
        self._columns = [schema.field(place).name for place in places]
        self._widths, types, wrong = [], [], {}
        for place in places:
            field = schema.field(place)
            kind, width = field.type, 1
            if pa.types.is_fixed_size_list(kind):
                kind, width = kind.value_type, kind.list_size
            is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
            if not (is_number or pa.types.is_boolean(kind)):
                wrong[field.name] = str(field.type)
                continue
            types.append(np.dtype(kind.to_pandas_dtype()))
            self._widths.append(width)
        if wrong:
            raise not_numbers(where, wrong)
        if not types:
            raise DataError(f"{where} has no columns: give a table of numbers.")
        self.dtype: np.dtype[Any] = native_dtype(np.result_type(*types))
        """The common type of the numbers; another one may be set."""
        self.n_features = sum(self._widths)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features: ``a`` for a column of numbers, ``a[0]``, ``a[1]`` for one of lists."""
        return tuple(
            name if width == 1 else f"{name}[{j}]"
            for name, width in zip(self._columns, self._widths, strict=True)
            for j in range(width)
        )

    def of(self, columns: Sequence[Any], n_rows: int) -> NDArray[Any]:
        """The (n, d) numbers of these columns, pyarrow arrays in the order of ``places``.

        Raises
        ------
        DataError
            A value is missing where the type cannot say so.
        """
        out = np.empty((n_rows, self.n_features), self.dtype)
        at = 0
        for name, width, column in zip(self._columns, self._widths, columns, strict=True):
            if hasattr(column, "combine_chunks"):
                column = column.combine_chunks()
            values = column.flatten() if hasattr(column.type, "list_size") else column
            if (column.null_count or values.null_count) and self.dtype.kind != "f":
                raise DataError(
                    f"column {name!r} of {self.where} has missing values, which integers cannot "
                    "hold; fill them, or write the column as floats."
                )
            if column.null_count and width > 1:
                raise DataError(f"column {name!r} of {self.where} has missing lists; fill them.")
            numbers = values.to_numpy(zero_copy_only=False)
            out[:, at : at + width] = numbers.reshape(-1, width)
            at += width
        return out
