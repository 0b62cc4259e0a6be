"""Convert Arrow columns of numbers, or of lists of numbers such as embeddings, to rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.columns import Kind, check_numbers
from largek_dask.data.rows import native_dtype
from largek_dask.errors import DataError


class ArrowColumns:
    """Convert the columns at the given positions of an Arrow schema to rows.

    Each element of a list becomes a feature. Missing values become NaN, and decimals are rounded to
    float64. The function ``missing`` selects the column positions that have missing values. The
    function ``width`` returns the length of the first list in a column. Raises DataError if a
    column is not numeric.
    """

    def __init__(
        self,
        schema: Any,
        places: Sequence[int],
        where: str,
        *,
        missing: Callable[[list[int]], Collection[int]],
        width: Callable[[int], int],
    ) -> None:
        import pyarrow as pa

        self._columns = [schema.field(place).name for place in places]
        self._widths: list[int] = []
        self._are_lists: list[bool] = []
        types, checked = {}, []
        for place, name in zip(places, self._columns, strict=True):
            kind = schema.field(place).type
            self._are_lists.append(is_list(kind))
            value = kind.value_type if is_list(kind) else kind
            if pa.types.is_decimal(value):
                value = pa.float64()
            is_number = is_number_type(value)
            checked.append((name, kind, is_number))
            if is_number:
                types[place] = np.dtype(value.to_pandas_dtype())
            fixed = getattr(kind, "list_size", 1)
            known = not is_list(kind) or hasattr(kind, "list_size") or not is_number
            self._widths.append(fixed if known else width(place))
        check_numbers(checked, where)
        if not types:
            raise DataError(f"{where} has no columns; pass a table with numeric columns.")
        for place in missing([place for place, kind in types.items() if kind.kind != "f"]):
            types[place] = np.result_type(types[place], np.float32)
        self.dtype = native_dtype(np.result_type(*types.values()))
        self.n_features = sum(self._widths)

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the features: elements of a list column ``a`` are called ``a[0]``, ``a[1]``, ...

        None if a single column of lists contains all features, because list elements have no names.
        """
        if self._are_lists == [True]:
            return None
        return tuple(
            name if width == 1 else f"{name}[{j}]"
            for name, width in zip(self._columns, self._widths, strict=True)
            for j in range(width)
        )

    def convert(self, columns: Sequence[Any], first: int, where: str) -> NDArray[Any]:
        """Convert pyarrow columns to an (n, d) array.

        ``first`` is the index of the first row in the table. Messages name the source as ``where``.
        Raises DataError if lists have different lengths, or if a value is missing and the type
        cannot represent missing values.
        """
        out = np.empty((len(columns[0]), self.n_features), self.dtype)
        at = 0
        for name, width, column in zip(self._columns, self._widths, columns, strict=True):
            part = out[:, at : at + width]
            at += width
            for chunk, begin in _chunks(column):
                what = f"column {name!r} of {where}"
                _fill(part[begin : begin + len(chunk)], chunk, first + begin, what)
        return out


def _fill(out: NDArray[Any], chunk: Any, first: int, what: str) -> None:
    """Write the values of an Arrow array to ``out``; missing lists become rows of NaN."""
    if out.dtype.kind != "f" and (missing := _missing_rows(chunk)).any():
        raise DataError(
            f"row {first + int(missing.argmax())} of {what} has missing values, which {out.dtype} "
            "cannot represent; fill them, or convert the column to floats."
        )
    if not is_list(chunk.type):
        out[:, 0] = _floats_or_integers(chunk)
        return
    width = out.shape[1]
    there = np.ones(len(chunk), bool)
    if chunk.null_count:
        there = chunk.is_valid().to_numpy(zero_copy_only=False)
        out[~there] = np.nan
    if not hasattr(chunk.type, "list_size"):
        lengths = chunk.value_lengths().fill_null(width).to_numpy(zero_copy_only=False)
        check_lengths(lengths, width, first, what)
    out[there] = _floats_or_integers(chunk.flatten()).reshape(-1, width)


def check_lengths(lengths: NDArray[Any], width: int, first: int, what: str) -> None:
    """Raise DataError, naming the row, unless all lists have ``width`` elements."""
    if (wrong := lengths != width).any():
        at = int(np.argmax(wrong))
        raise DataError(
            f"row {first + at} of {what} is a list of {lengths[at]} numbers, but the first row has "
            f"{width} numbers; all lists must have the same length."
        )


def _missing_rows(chunk: Any) -> NDArray[np.bool_]:
    """Return an (n,) mask: True for rows that are missing or contain missing values."""
    missing = np.asarray(chunk.is_null().to_numpy(zero_copy_only=False))
    if is_list(chunk.type) and chunk.flatten().null_count:
        lists = chunk.to_pylist()
        missing = np.array([row is None or None in row for row in lists])
    return missing


def is_list(kind: Any) -> bool:
    import pyarrow as pa

    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def kinds_of(schema: Any) -> list[Kind]:
    import pyarrow as pa

    kinds: list[Kind] = []
    for field in schema:
        if is_list(field.type):
            kinds.append("list" if is_number_type(field.type.value_type) else "other")
        else:
            is_float = pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
            kinds.append("float" if is_float else "other")
    return kinds


def is_number_type(kind: Any) -> bool:
    """Return True if an Arrow type is numeric or boolean."""
    import pyarrow as pa

    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def has_missing(column: Any) -> bool:
    """Return True if values of a column, or elements of its lists, are missing."""
    return any(
        chunk.null_count or (is_list(chunk.type) and chunk.flatten().null_count)
        for chunk, _ in _chunks(column)
    )


def as_ids(column: Any) -> NDArray[Any]:
    """Convert a column of ids to an array; missing ids become None, not NaN."""
    if column.null_count:
        return np.array(column.to_pylist(), object)
    return np.asarray(column)


def first_length(column: Any) -> int | None:
    """Return the length of the first list in a column, or None if all lists are missing."""
    for chunk, _ in _chunks(column):
        there = chunk.drop_null()
        if len(there):
            return len(there[0])
    return None


def _chunks(column: Any) -> list[tuple[Any, int]]:
    """Return the arrays of a column, each with the index of the array's first row."""
    chunks = getattr(column, "chunks", [column])
    begins = np.cumsum([0, *map(len, chunks)]).tolist()
    return list(zip(chunks, begins, strict=False))


def _floats_or_integers(values: Any) -> NDArray[Any]:
    import pyarrow as pa

    if pa.types.is_decimal(values.type):
        # Arrow's direct cast of decimals to floats can be wrong in the last bit.
        values = values.cast(pa.string()).cast(pa.float64())
    elif pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    return np.asarray(values.to_numpy(zero_copy_only=False))
