"""Convert columns of Arrow tables to rows: numbers, and lists of numbers such as embeddings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.columns import Kind, check_numbers
from largek_dask.data.rows import native_dtype
from largek_dask.errors import DataError


class ArrowColumns:
    """Converter of the columns at positions ``places`` of one schema, in this order.

    A column of lists gives one feature per element. Missing values become NaN, and decimals the
    nearest float64. ``missing`` takes positions of columns and returns the positions that have
    missing values; ``width`` takes the position of a column of lists and returns the length of its
    first list. Raises DataError if columns are not numbers.
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
            raise DataError(f"{where} has no columns: give a table of numbers.")
        for place in missing([place for place, kind in types.items() if kind.kind != "f"]):
            types[place] = np.result_type(types[place], np.float32)
        self.dtype = native_dtype(np.result_type(*types.values()))
        self.n_features = sum(self._widths)

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the features, with ``a[0]``, ``a[1]`` ... for a column ``a`` of lists.

        None if one column of lists holds all features, since their elements have no names.
        """
        if self._are_lists == [True]:
            return None
        return tuple(
            name if width == 1 else f"{name}[{j}]"
            for name, width in zip(self._columns, self._widths, strict=True)
            for j in range(width)
        )

    def convert(self, columns: Sequence[Any], first: int, where: str) -> NDArray[Any]:
        """Convert pyarrow columns, in the order of ``places``, to an (n, d) array.

        ``first`` is the index of the first row in the whole table, and ``where`` names the source
        in messages. Raises DataError if lists have different lengths, or if a value is missing and
        the type cannot represent missing values.
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
    """Convert one array of a column to rows ``out``; a missing list makes its features NaN."""
    if out.dtype.kind != "f" and (missing := _missing_rows(chunk)).any():
        raise DataError(
            f"row {first + int(missing.argmax())} of {what} has missing values, which {out.dtype} "
            "cannot hold; fill them, or write the column as floats."
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
            f"row {first + at} of {what} is a list of {lengths[at]} numbers, and the first row has "
            f"{width}; all lists must have the same length."
        )


def _missing_rows(chunk: Any) -> NDArray[np.bool_]:
    """Return, for each row of an array, whether it or an element of its list is missing."""
    missing = np.asarray(chunk.is_null().to_numpy(zero_copy_only=False))
    if is_list(chunk.type) and chunk.flatten().null_count:
        lists = chunk.to_pylist()
        missing = np.array([row is None or None in row for row in lists])
    return missing


def is_list(kind: Any) -> bool:
    """Return True for Arrow's types of lists."""
    import pyarrow as pa

    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def kinds_of(schema: Any) -> list[Kind]:
    """Return the kind of each column of a schema."""
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
    """Return True for Arrow's types of numbers, booleans included."""
    import pyarrow as pa

    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def has_missing(column: Any) -> bool:
    """Return True if a column, or a list in it, has missing values."""
    return any(
        chunk.null_count or (is_list(chunk.type) and chunk.flatten().null_count)
        for chunk, _ in _chunks(column)
    )


def as_ids(column: Any) -> NDArray[Any]:
    """Convert a column of ids to an array; a missing id becomes None, so that integers stay."""
    if column.null_count:
        return np.array(column.to_pylist(), object)
    return np.asarray(column)


def first_length(column: Any) -> int | None:
    """Return the length of the first list that is not missing; None if all are missing."""
    for chunk, _ in _chunks(column):
        there = chunk.drop_null()
        if len(there):
            return len(there[0])
    return None


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
