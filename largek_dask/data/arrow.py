"""Convert Arrow columns of numbers, or of fixed-size lists of numbers, to rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.columns import check_numbers
from largek_dask.data.rows import native_dtype
from largek_dask.errors import DataError


class ArrowColumns:
    """Converter of the columns at the positions ``places`` of an Arrow schema.

    A column of fixed-size lists (embeddings) becomes one feature per element. Missing values become
    NaN, and decimals become the nearest float64. ``missing`` is a function that takes column
    positions and returns the positions of columns with missing values. Raises DataError if a column
    is not numeric.
    """

    def __init__(
        self,
        schema: Any,
        places: Sequence[int],
        where: str,
        *,
        missing: Callable[[list[int]], Collection[int]],
    ) -> None:
        import pyarrow as pa

        self.where = where
        self._columns = [schema.field(place).name for place in places]
        self._widths, types, checked = [], {}, []
        for place, name in zip(places, self._columns, strict=True):
            kind, width = schema.field(place).type, 1
            if pa.types.is_fixed_size_list(kind):
                kind, width = kind.value_type, kind.list_size
            if pa.types.is_decimal(kind):
                kind = pa.float64()
            is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
            is_number = is_number or pa.types.is_boolean(kind)
            checked.append((name, schema.field(place).type, is_number))
            if is_number:
                types[place] = np.dtype(kind.to_pandas_dtype())
            self._widths.append(width)
        check_numbers(checked, where)
        if not types:
            raise DataError(f"{where} has no columns; pass a table of numbers.")
        for place in missing([place for place, kind in types.items() if kind.kind != "f"]):
            types[place] = np.result_type(types[place], np.float32)
        self.dtype = native_dtype(np.result_type(*types.values()))
        self.n_features = sum(self._widths)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features; a list column ``a`` has the features ``a[0]``, ``a[1]``, ..."""
        return tuple(
            name if width == 1 else f"{name}[{j}]"
            for name, width in zip(self._columns, self._widths, strict=True)
            for j in range(width)
        )

    def convert(self, columns: Sequence[Any], n_rows: int) -> NDArray[Any]:
        """Convert pyarrow columns, given in the order of ``places``, to an (n, d) array.

        Raises DataError if a value is missing and the type cannot represent missing values.
        """
        out = np.empty((n_rows, self.n_features), self.dtype)
        at = 0
        for name, width, column in zip(self._columns, self._widths, columns, strict=True):
            if self.dtype.kind != "f" and has_missing(column):
                raise DataError(
                    f"column {name!r} of {self.where} has missing values, which {self.dtype} "
                    "cannot represent; fill the missing values, or store the column as floats."
                )
            part = out[:, at : at + width]
            at += width
            for chunk, begin in _chunks(column):
                is_list = hasattr(chunk.type, "list_size")
                numbers = _floats_or_integers(chunk.flatten() if is_list else chunk)
                rows = part[begin : begin + len(chunk)]
                if is_list and chunk.null_count:
                    # If a list is missing, all of its features become NaN.
                    there = chunk.is_valid().to_numpy(zero_copy_only=False)
                    rows[~there] = np.nan
                    rows[there] = numbers.reshape(-1, width)
                else:
                    rows[:] = numbers.reshape(-1, width)
        return out


def has_missing(column: Any) -> bool:
    """Return True if a column contains missing values or lists with missing values."""
    return any(
        chunk.null_count or (hasattr(chunk.type, "list_size") and chunk.flatten().null_count)
        for chunk, _ in _chunks(column)
    )


def _chunks(column: Any) -> list[tuple[Any, int]]:
    """Return the arrays of a column, each with the index of its first row."""
    chunks = getattr(column, "chunks", [column])
    begins = np.cumsum([0, *map(len, chunks)]).tolist()
    return list(zip(chunks, begins, strict=False))


def _floats_or_integers(values: Any) -> NDArray[Any]:
    import pyarrow as pa

    if pa.types.is_decimal(values.type):
        # Arrow's direct cast may be wrong in the last bit, but parsing text is exact
        values = values.cast(pa.string()).cast(pa.float64())
    elif pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    return np.asarray(values.to_numpy(zero_copy_only=False))
