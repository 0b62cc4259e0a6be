"""Rows of DataFrames and Arrow tables in memory, converted chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.arrow import ArrowColumns, has_missing
from largek_dask.data.columns import Selection, check_numbers, chosen_columns, names_of
from largek_dask.data.memory_rows import SlicedRows
from largek_dask.data.rows import Column, native_dtype
from largek_dask.data.stores import require
from largek_dask.errors import DataError


def is_of(source: Any, module: str, name: str) -> bool:
    """Return True if an object is of this class, without importing the class's library."""
    return any(
        base.__name__ == name and base.__module__.split(".")[0] == module
        for base in type(source).__mro__
    )


class FrameRows(SlicedRows):
    """Rows of a pandas or polars DataFrame, or a pyarrow table or batch.

    Raises DataError if a column is not numeric or has no name (see ``columns.chosen_columns``).
    """

    def __init__(
        self, frame: Any, *, selection: Selection | None = None, weight: Column | None = None
    ) -> None:
        if is_of(frame, "polars", "DataFrame"):
            require("pyarrow", "parquet", "polars DataFrames")
            frame = frame.to_arrow()
        kind = _PandasFrame if is_of(frame, "pandas", "DataFrame") else _ArrowFrame
        slices = kind(frame, selection)
        self._names = slices.names
        super().__init__(slices, weight=weight)

    def _find_names(self) -> Sequence[str] | None:
        return self._names


class _PandasFrame:
    """Wrapper of a pandas DataFrame that can be sliced by rows like an array."""

    def __init__(self, frame: Any, selection: Selection | None) -> None:
        labels = list(frame.columns)
        places = chosen_columns([str(label) for label in labels], selection, "the DataFrame")
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
    """Wrapper of a pyarrow table or batch that can be sliced by rows like an array."""

    def __init__(self, table: Any, selection: Selection | None) -> None:
        schema, where = table.schema, "the table"
        self._places = chosen_columns(schema.names, selection, where, schema.pandas_metadata)
        self._table = table
        self._values = ArrowColumns(schema, self._places, where, missing=self._missing)
        self.names, self.dtype = self._values.names, self._values.dtype
        self.shape = table.num_rows, self._values.n_features

    def _missing(self, places: Sequence[int]) -> list[int]:
        return [place for place in places if has_missing(self._table.column(place))]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        part = self._table.slice(rows.start, rows.stop - rows.start)
        return self._values.convert([part.column(place) for place in self._places], part.num_rows)


def is_frame(source: Any) -> bool:
    """Return True if a source is an in-memory table with named columns."""
    is_data_frame = is_of(source, "pandas", "DataFrame") or is_of(source, "polars", "DataFrame")
    is_table = is_of(source, "pyarrow", "Table") or is_of(source, "pyarrow", "RecordBatch")
    return is_data_frame or is_table


def frame_dtype(frame: Any) -> np.dtype[Any]:
    """Return the common numpy type of all columns of a pandas or Dask DataFrame.

    Raises DataError if columns are not numeric; the message names them.
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
    """Return the numpy type of a pandas type; None if the type is not numeric."""
    if is_of(kind, "pandas", "SparseDtype"):
        kind = kind.subtype
    if str(kind).startswith("decimal"):
        return np.dtype(np.float64)
    # Nullable pandas types have a numpy type; missing values become NaN.
    found = getattr(kind, "numpy_dtype", kind)
    if not (isinstance(found, np.dtype) and found.kind in "biuf"):
        return None
    return found if found is kind else np.result_type(found, np.float32)


def frame_values(frame: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert a pandas DataFrame to an array of type ``dtype``; missing values become NaN."""
    missing = {"na_value": np.nan} if dtype.kind == "f" else {}
    return np.asarray(frame.to_numpy(dtype=dtype, **missing))
