"""Read rows from DataFrames and Arrow tables in memory, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.arrow import (
    ArrowColumns,
    as_ids,
    check_lengths,
    first_length,
    has_missing,
    kinds_of,
)
from largek_dask.data.columns import (
    Kind,
    Selection,
    check_numbers,
    chosen_columns,
    names_of,
    without,
)
from largek_dask.data.memory_rows import SlicedRows
from largek_dask.data.rows import Column, native_dtype
from largek_dask.data.stores import require
from largek_dask.errors import DataError


def is_of(source: Any, module: str, name: str) -> bool:
    """Return True if an object is an instance of a class, without importing its module."""
    return any(
        base.__name__ == name and base.__module__.split(".")[0] == module
        for base in type(source).__mro__
    )


class FrameRows(SlicedRows):
    """Rows of a pandas or polars DataFrame, or of a pyarrow Table or RecordBatch.

    Raises DataError if a column is not numeric or has no name (see ``columns.chosen_columns``).
    """

    def __init__(
        self,
        frame: Any,
        *,
        selection: Selection | None = None,
        ids: str | None = None,
        weight: Column | None = None,
    ) -> None:
        if ids is not None:
            selection = without(selection, ids)
        if is_of(frame, "polars", "DataFrame"):
            require("pyarrow", "parquet", "polars DataFrames")
            frame = frame.to_arrow()
        is_pandas = is_of(frame, "pandas", "DataFrame")
        slices = _pandas_slices(frame, selection) if is_pandas else _ArrowFrame(frame, selection)
        self._names = slices.names
        super().__init__(slices, weight=weight)
        if ids is not None:
            self._ids = frame[ids].to_numpy() if is_pandas else as_ids(frame.column(ids))

    def _find_names(self) -> Sequence[str] | None:
        return self._names


def _pandas_slices(
    frame: Any, selection: Selection | None
) -> _PandasFrame | _PandasLists | _ArrowFrame:
    names = [str(label) for label in frame.columns]
    kinds = [_kind_of(frame.iloc[:, place]) for place in range(len(names))]
    places = chosen_columns(names, selection, "the DataFrame", kinds=kinds)
    if [kinds[place] for place in places] == ["list"]:
        column = frame.iloc[:, places[0]]
        if is_of(column.dtype, "pandas", "ArrowDtype"):
            import pyarrow as pa

            return _ArrowFrame(pa.table({names[places[0]]: pa.array(column)}), None)
        return _PandasLists(column)
    return _PandasFrame(frame, places)


def _kind_of(column: Any) -> Kind:
    if _type_of_numbers(column.dtype) is not None:
        return "float" if "float" in str(column.dtype).lower() else "other"
    first = _first_list(column)
    return "other" if first is None or first.dtype.kind not in "biuf" else "list"


def _first_list(column: Any) -> NDArray[Any] | None:
    """Return the first list in a pandas column; None if the column contains no lists."""
    for value in column:
        if isinstance(value, list | tuple | np.ndarray):
            return np.asarray(value)
        if value is not None and value == value:
            return None
    return None


class _PandasLists:
    """Array-like view of a DataFrame column of lists; supports row slices only."""

    names = None

    def __init__(self, column: Any) -> None:
        first = _first_list(column)
        assert first is not None
        # Lists that start with Python integers may contain floats later.
        self.dtype = first.dtype if isinstance(column.iloc[0], np.ndarray) else np.dtype(float)
        self.shape = len(column), first.size
        self._column = column

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        values, what = self._column.iloc[rows].tolist(), f"column {self._column.name!r}"
        out = np.empty((len(values), self.shape[1]), self.dtype)
        first = rows.start or 0
        lengths = np.array([len(v) if hasattr(v, "__len__") else out.shape[1] for v in values])
        check_lengths(lengths, out.shape[1], first, what)
        for row, value in enumerate(values):
            is_list = isinstance(value, list | tuple | np.ndarray)
            x = np.asarray(value if is_list else np.nan)
            if x.dtype.kind == "O":
                x = np.array([np.nan if one is None else one for one in value])
            if x.dtype.kind not in "biuf" or not np.can_cast(x.dtype, self.dtype, "same_kind"):
                raise DataError(
                    f"row {first + row} of {what} is missing or has dtype {x.dtype}, which "
                    f"{self.dtype} cannot represent; pass lists of numbers of the same type."
                )
            out[row] = x
        return out


class _PandasFrame:
    """Array-like view of a pandas DataFrame; supports row slices only."""

    def __init__(self, frame: Any, places: list[int]) -> None:
        labels = list(frame.columns)
        self.names = names_of([labels[place] for place in places])
        """Names of the features; None if no column label is a string."""
        self.dtype = frame_dtype(frame.iloc[:0, places])
        self.shape = len(frame), len(places)
        self._frame = frame
        self._places = None if places == list(range(len(labels))) else places

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        part = self._frame.iloc[rows]
        return frame_values(
            part if self._places is None else part.iloc[:, self._places], self.dtype
        )


class _ArrowFrame:
    """Array-like view of a pyarrow Table or RecordBatch; supports row slices only."""

    def __init__(self, table: Any, selection: Selection | None) -> None:
        schema, where = table.schema, "the table"
        self._places = chosen_columns(
            schema.names, selection, where, schema.pandas_metadata, kinds_of(schema)
        )
        self._table = table
        self._values = ArrowColumns(
            schema, self._places, where, missing=self._missing, width=self._width
        )
        self.names, self.dtype = self._values.names, self._values.dtype
        self.shape = table.num_rows, self._values.n_features

    def _missing(self, places: Sequence[int]) -> list[int]:
        return [place for place in places if has_missing(self._table.column(place))]

    def _width(self, place: int) -> int:
        return first_length(self._table.column(place)) or 0

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        part = self._table.slice(rows.start, rows.stop - rows.start)
        columns = [part.column(place) for place in self._places]
        return self._values.convert(columns, rows.start, "the table")


def is_frame(source: Any) -> bool:
    """Return True if a source is an in-memory table with named columns."""
    is_data_frame = is_of(source, "pandas", "DataFrame") or is_of(source, "polars", "DataFrame")
    is_table = is_of(source, "pyarrow", "Table") or is_of(source, "pyarrow", "RecordBatch")
    return is_data_frame or is_table


def frame_dtype(frame: Any) -> np.dtype[Any]:
    """Return the common numpy dtype of all columns of a pandas or Dask DataFrame.

    Raises DataError if columns are not numeric.
    """
    kinds = list(frame.dtypes)
    types = [_type_of_numbers(kind) for kind in kinds]
    check_numbers(
        [
            (str(label), kind, found is not None)
            for label, kind, found in zip(frame.columns, kinds, types, strict=True)
        ],
        "the DataFrame",
    )
    if not types:
        raise DataError("the DataFrame has no columns; pass a DataFrame with numeric columns.")
    return native_dtype(np.result_type(*(kind for kind in types if kind is not None)))


def _type_of_numbers(kind: Any) -> np.dtype[Any] | None:
    """Return the numpy dtype for a pandas dtype; None if the pandas dtype is not numeric."""
    if is_of(kind, "pandas", "SparseDtype"):
        kind = kind.subtype
    if str(kind).startswith("decimal"):
        return np.dtype(np.float64)
    # Missing values of nullable pandas types become NaN, which requires floats.
    found = getattr(kind, "numpy_dtype", kind)
    if not (isinstance(found, np.dtype) and found.kind in "biuf"):
        return None
    return found if found is kind else np.result_type(found, np.float32)


def frame_values(frame: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert a pandas DataFrame to an array; missing values become NaN."""
    missing = {"na_value": np.nan} if dtype.kind == "f" else {}
    return np.asarray(frame.to_numpy(dtype=dtype, **missing))
