"""Rows of DataFrames and Arrow tables in memory, converted chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.arrow import ArrowColumns, has_missing
from largek_dask.data.columns import Selection, chosen_columns, names_of
from largek_dask.data.memory_rows import SlicedRows
from largek_dask.data.not_numbers import HEAD_ROWS, check_numbers
from largek_dask.data.rows import Column, native_dtype
from largek_dask.errors import DataError

__all__ = ["FrameRows", "frame_dtype", "frame_values", "is_frame", "is_of"]


def is_of(source: Any, module: str, name: str) -> bool:
    """Return whether an object is of a class of an optional library, without importing it."""
    return any(
        base.__name__ == name and base.__module__.split(".")[0] == module
        for base in type(source).__mro__
    )


class FrameRows(SlicedRows):
    """Rows of a pandas or polars DataFrame, or a pyarrow table or batch.

    Raises DataError if columns are not numbers, or have no name (see ``columns.chosen_columns``).
    """

    def __init__(
        self,
        frame: Any,
        *,
        selection: Selection | None = None,
        weight: Column | None = None,
    ) -> None:
        kind = next(kind for kind in KINDS if kind.holds(frame))
        labels = [str(label) for label in kind.labels(frame)]
        slices = kind(frame, chosen_columns(labels, selection, kind.where, kind.notes(frame)))
        self._names = slices.names
        super().__init__(slices, weight=weight)

    def _find_names(self) -> Sequence[str] | None:
        return self._names


class _Frame:
    """Some columns of a table, with shape, dtype and slices of rows."""

    where: ClassVar[str] = "the DataFrame"
    library: ClassVar[str]
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    names: Sequence[str] | None
    """Names of the features; None if no label is a text."""

    def __init__(self, frame: Any, places: Sequence[int]) -> None:
        labels = self.labels(frame)
        self.names = names_of([labels[place] for place in places])
        self._frame, self._places = frame, list(places)

    @classmethod
    def holds(cls, source: Any) -> bool:
        return is_of(source, cls.library, "DataFrame")

    @classmethod
    def labels(cls, frame: Any) -> list[Any]:
        return list(frame.columns)

    @classmethod
    def notes(cls, frame: Any) -> Mapping[str, Any] | None:
        return None

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        raise NotImplementedError


class _PandasFrame(_Frame):
    library = "pandas"

    def __init__(self, frame: Any, places: Sequence[int]) -> None:
        super().__init__(frame, places)
        self.dtype = frame_dtype(frame.iloc[:HEAD_ROWS, self._places])
        self.shape = len(frame), len(places)
        self._all = self._places == list(range(frame.shape[1]))

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        part = self._frame.iloc[rows]
        return frame_values(part if self._all else part.iloc[:, self._places], self.dtype)


class _PolarsFrame(_Frame):
    library = "polars"

    def __init__(self, frame: Any, places: Sequence[int]) -> None:
        super().__init__(frame, places)
        columns = frame.get_columns()
        self._columns = [columns[place] for place in places]
        types = [self._type(column) for column in self._columns]
        check_numbers(
            [
                (column.name, column.dtype, kind is not None)
                for column, kind in zip(self._columns, types, strict=True)
            ],
            lambda i: self._columns[i][:HEAD_ROWS].to_list(),
            self.where,
        )
        self.dtype = native_dtype(np.result_type(*(kind for kind in types if kind is not None)))
        self.shape = len(frame), len(places)

    def _type(self, column: Any) -> np.dtype[Any] | None:
        """Return the type of a column's numbers; None if it has none."""
        if not (column.dtype.is_numeric() or str(column.dtype) == "Boolean"):
            return None
        kind = self._array(column[:0]).dtype
        # missing values of integers need NaN
        return np.result_type(kind, np.float32) if column.null_count() else kind

    def _array(self, column: Any) -> NDArray[Any]:
        if column.dtype.is_decimal() or str(column.dtype) in ("Int128", "UInt128"):
            # numpy has no such numbers
            column = column.cast(float)
        return np.asarray(column.to_numpy())

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        arrays = [self._array(column[rows]) for column in self._columns]
        out = np.empty((len(arrays[0]), len(arrays)), self.dtype)
        for j, array in enumerate(arrays):
            out[:, j] = array
        return out


class _ArrowFrame(_Frame):
    where = "the table"

    def __init__(self, frame: Any, places: Sequence[int]) -> None:
        super().__init__(frame, places)

        def missing(places: Sequence[int]) -> list[int]:
            return [place for place in places if has_missing(frame.column(place))]

        self._values = ArrowColumns(frame.schema, places, self.where, missing=missing, table=frame)
        self.names, self.dtype = self._values.names, self._values.dtype
        self.shape = frame.num_rows, self._values.n_features

    @classmethod
    def holds(cls, source: Any) -> bool:
        return is_of(source, "pyarrow", "Table") or is_of(source, "pyarrow", "RecordBatch")

    @classmethod
    def labels(cls, frame: Any) -> list[Any]:
        return list(frame.schema.names)

    @classmethod
    def notes(cls, frame: Any) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = frame.schema.pandas_metadata
        return found

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        part = self._frame.slice(rows.start, rows.stop - rows.start)
        return self._values.of([part.column(place) for place in self._places], part.num_rows)


KINDS: tuple[type[_Frame], ...] = (_PandasFrame, _PolarsFrame, _ArrowFrame)


def is_frame(source: Any) -> bool:
    """Return whether something is a table in memory with named columns."""
    return any(kind.holds(source) for kind in KINDS)


def frame_dtype(frame: Any) -> np.dtype[Any]:
    """Return the common type of the columns of a pandas or Dask DataFrame.

    Raises DataError, which names all columns that are not numeric.
    """
    is_lazy = is_of(frame, "dask", "DataFrame")
    kinds = list(frame.dtypes)
    types = [_type_of_numbers(kind) for kind in kinds]
    check_numbers(
        [
            (str(label), kind, found is not None)
            for label, kind, found in zip(frame.columns, kinds, types, strict=True)
        ],
        lambda i: [] if is_lazy else frame.iloc[:HEAD_ROWS, i].tolist(),
        "the DataFrame",
    )
    if not types:
        raise DataError("the DataFrame has no columns: give one with columns of numbers.")
    return native_dtype(np.result_type(*(kind for kind in types if kind is not None)))


def _type_of_numbers(kind: Any) -> np.dtype[Any] | None:
    """Return the numpy type for a type of pandas; None for one that is not of numbers."""
    if is_of(kind, "pandas", "SparseDtype"):
        kind = kind.subtype
    if str(kind).startswith("decimal"):
        return np.dtype(np.float64)
    # nullable types carry the numpy type of their values; a missing value needs NaN
    found = getattr(kind, "numpy_dtype", kind)
    if not is_number_type(found):
        return None
    return found if found is kind else np.result_type(found, np.float32)


def is_number_type(kind: Any) -> bool:
    """Return whether it is one of numpy's real numbers or booleans."""
    return isinstance(kind, np.dtype) and kind.kind in "biuf"


def frame_values(frame: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a pandas DataFrame as an array of that type, with NaN for missing values."""
    if dtype.kind == "f":
        return np.asarray(frame.to_numpy(dtype=dtype, na_value=np.nan))
    return np.asarray(frame.to_numpy(dtype=dtype))
