"""Rows of tables in memory whose columns have names: DataFrames, Arrow tables, dicts of arrays.

They are converted one chunk at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.arrow import ArrowColumns
from largek_dask.data.cf_attributes import decoded
from largek_dask.data.columns import (
    WRITTEN,
    Selection,
    is_index_name,
    left_out_as_index,
    names_of,
    not_numbers,
    not_told_from_index,
    noted_as_index,
)
from largek_dask.data.memory_rows import SlicedRows
from largek_dask.data.rows import Column, native_dtype, refuse_masked
from largek_dask.errors import DataError

__all__ = ["FrameRows", "chosen_columns", "frame_dtype", "frame_values", "is_frame", "is_of"]


def is_of(source: Any, module: str, name: str) -> bool:
    """Whether an object is of a class of an optional library, without importing it."""
    return any(
        base.__name__ == name and base.__module__.split(".")[0] == module
        for base in type(source).__mro__
    )


class FrameRows(SlicedRows):
    """Rows of a pandas or polars DataFrame, a pyarrow table or batch, or a dict of arrays.

    Parameters
    ----------
    frame : object
        What :func:`is_frame` is true of.
    selection : Selection
        Which of its columns.
    leave_index : bool
        A first column that is called as an index is and counts the rows is left out with a warning;
        without this it is refused.
    weight : Column, optional
        Row weights.

    Raises
    ------
    DataError
        Columns are not numbers (all are named), or one is an index.
    """

    def __init__(
        self,
        frame: Any,
        *,
        selection: Selection | None = None,
        leave_index: bool = False,
        weight: Column | None = None,
    ) -> None:
        kind = next(kind for kind in KINDS if kind.holds(frame))
        labels = [str(label) for label in kind.labels(frame)]
        places = chosen_columns(labels, selection, kind.where)
        for name in noted_as_index(labels, kind.notes(frame)):
            place = labels.index(name)
            if place in places and len(places) > 1 and not (selection and selection.says(name)):
                if not leave_index:
                    raise not_told_from_index(name, kind.where, f"and {WRITTEN}")
                left_out_as_index(name, kind.where, WRITTEN)
                places = [other for other in places if other != place]
        slices = kind(frame, places)
        if may_be_index(labels, places, selection):
            index = kind(frame, places[:1])
            if index.dtype.kind in "iu":
                values = index[0 : index.shape[0]][:, 0]
                _check_index(values, labels[0], kind.where, leave_index and len(places) > 1)
                slices = kind(frame, places[1:])
        self._names = slices.names
        super().__init__(slices, weight=weight)

    def _find_names(self) -> Sequence[str] | None:
        return self._names


def chosen_columns(names: Sequence[str], selection: Selection | None, where: str) -> list[int]:
    """Positions of the columns that are taken: all unless others are asked for."""
    return selection.places(names, where) if selection else list(range(len(names)))


def may_be_index(labels: Sequence[str], places: Sequence[int], selection: Selection | None) -> bool:
    """Whether the first column is called as an index is, and nobody has said what becomes of it."""
    if places[:1] != [0] or not is_index_name(labels[0]):
        return False
    return selection is None or not selection.says(labels[0])


def _check_index(values: NDArray[Any], name: str, where: str, leave: bool) -> None:
    """Refuse a column that seems to be an index, or warn that it is left out."""
    counts = np.array_equal(values, np.arange(len(values)))
    if not counts:
        raise not_told_from_index(name, where, "and holds whole numbers")
    if not leave:
        raise not_told_from_index(name, where, "and counts the rows from 0 on")
    left_out_as_index(name, where, "it counts the rows from 0 on, as an index that pandas wrote")


class _Frame(ABC):
    """Some columns of a table: something with shape, dtype and row slices, and names."""

    where: ClassVar[str] = "the DataFrame"
    """What messages call the table."""
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    names: Sequence[str] | None
    """Names of the features; None if they are called by numbers or the like."""

    def __init__(self, frame: Any, places: Sequence[int]) -> None:
        labels = self.labels(frame)
        self.names = names_of([labels[place] for place in places])
        self._frame, self._places = frame, list(places)

    @classmethod
    @abstractmethod
    def holds(cls, source: Any) -> bool:
        """Whether something is such a table."""

    @classmethod
    def labels(cls, frame: Any) -> list[Any]:
        """What its columns are called."""
        return list(frame.columns)

    @classmethod
    def notes(cls, frame: Any) -> Mapping[str, Any] | None:
        """What pandas has noted in its schema."""
        return None

    @abstractmethod
    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """The values of some rows."""


class _PandasFrame(_Frame):
    def __init__(self, frame: Any, places: Sequence[int]) -> None:
        super().__init__(frame, places)
        self.dtype = frame_dtype(frame.iloc[:0, self._places])
        self.shape = len(frame), len(places)
        self._all = self._places == list(range(frame.shape[1]))

    @classmethod
    def holds(cls, source: Any) -> bool:
        return is_of(source, "pandas", "DataFrame")

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        part = self._frame.iloc[rows]
        return frame_values(part if self._all else part.iloc[:, self._places], self.dtype)


class _SeparateColumns(_Frame):
    """Columns that lie apart, each an array."""

    def __init__(self, frame: Any, places: Sequence[int]) -> None:
        super().__init__(frame, places)
        arrays = self._arrays(slice(0, 0))
        wrong = {
            str(self.labels(frame)[place]): self._held(place)
            for place, array in zip(places, arrays, strict=True)
            if array is None or array.dtype.kind not in "biuf"
        }
        if wrong:
            raise not_numbers(self.where, wrong)
        kinds = [self._kind(place, array) for place, array in zip(places, arrays, strict=True)]
        self.dtype = native_dtype(np.result_type(*kinds))
        self.shape = self._n_rows(), len(places)

    @abstractmethod
    def _arrays(self, rows: slice) -> list[Any]:
        """The columns' values; None for what cannot be an array of numbers."""

    def _kind(self, place: int, array: NDArray[Any]) -> np.dtype[Any]:
        """The type of a column of which these are no values."""
        return array.dtype

    @abstractmethod
    def _held(self, place: int) -> str:
        """What a column holds, in words."""

    @abstractmethod
    def _n_rows(self) -> int:
        """How many rows there are."""

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        arrays = self._arrays(rows)
        out = np.empty((len(arrays[0]), len(arrays)), self.dtype)
        for j, array in enumerate(arrays):
            out[:, j] = array
        return out


class _PolarsFrame(_SeparateColumns):
    @classmethod
    def holds(cls, source: Any) -> bool:
        return is_of(source, "polars", "DataFrame")

    def _arrays(self, rows: slice) -> list[Any]:
        part = self._frame[rows]
        found = []
        for place in self._places:
            column = part.to_series(place)
            plain = column.dtype.is_integer() or column.dtype.is_float()
            is_number = plain or str(column.dtype) == "Boolean"
            found.append(column.to_numpy() if is_number else None)
        return found

    def _kind(self, place: int, array: NDArray[Any]) -> np.dtype[Any]:
        # missing values of integers need NaN
        column = self._frame.to_series(place)
        return np.result_type(array, np.float32) if column.null_count() else array.dtype

    def _held(self, place: int) -> str:
        return str(self._frame.to_series(place).dtype)

    def _n_rows(self) -> int:
        return int(self._frame.height)


class _DictFrame(_SeparateColumns):
    where = "the dict of arrays"

    def __init__(self, frame: Any, places: Sequence[int]) -> None:
        if not frame:
            raise DataError("the dict of arrays has no columns: give at least one array.")
        self._columns = [self._array_of(name, column) for name, column in frame.items()]
        lengths = {name: len(column) for name, column in zip(frame, self._columns, strict=True)}
        if len(set(lengths.values())) > 1:
            least, most = (pick(lengths, key=lengths.__getitem__) for pick in (min, max))
            raise DataError(
                f"the dict of arrays is no table: {least!r} has {lengths[least]} values and "
                f"{most!r} has {lengths[most]}; give one value per row in each."
            )
        super().__init__(frame, places)

    @classmethod
    def holds(cls, source: Any) -> bool:
        # scipy's matrices of keys are dicts, too
        return isinstance(source, dict) and not hasattr(source, "tocsr")

    @classmethod
    def labels(cls, frame: Any) -> list[Any]:
        return list(frame)

    @staticmethod
    def _array_of(name: Any, column: Any) -> NDArray[Any]:
        if hasattr(column, "__dask_graph__"):
            raise DataError(
                f"{name!r} of the dict of arrays is a {type(column).__name__} of Dask: give "
                "dask.array.stack(list(columns.values()), axis=1), or a Dask DataFrame."
            )
        refuse_masked(column, f"{name!r} of the dict of arrays is", "column.filled(np.nan)")
        array = np.asarray(decoded(column, f"{name!r} of the dict of arrays"))
        if array.ndim != 1:
            raise DataError(
                f"{name!r} of the dict of arrays has shape {array.shape}; give one value per row "
                "in each."
            )
        return array

    def _arrays(self, rows: slice) -> list[Any]:
        return [self._columns[place][rows] for place in self._places]

    def _held(self, place: int) -> str:
        return str(self._columns[place].dtype)

    def _n_rows(self) -> int:
        return len(self._columns[0])


class _ArrowFrame(_Frame):
    where = "the table"

    def __init__(self, frame: Any, places: Sequence[int]) -> None:
        super().__init__(frame, places)
        self._values = ArrowColumns(frame.schema, places, self.where)
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


KINDS: tuple[type[_Frame], ...] = (_PandasFrame, _PolarsFrame, _ArrowFrame, _DictFrame)


def is_frame(source: Any) -> bool:
    """Whether something is a table in memory whose columns have names."""
    return any(kind.holds(source) for kind in KINDS)


def frame_dtype(frame: Any) -> np.dtype[Any]:
    """The common type of a DataFrame's columns (pandas or Dask).

    Raises
    ------
    DataError
        Columns are not numeric; the message names all of them with their types.
    """
    types, wrong = [], {}
    for name, kind in zip(frame.columns, frame.dtypes, strict=True):
        # pandas' nullable types carry the numpy type of their values; a missing value needs NaN
        numpy_kind = getattr(kind, "numpy_dtype", kind)
        if not isinstance(numpy_kind, np.dtype) or numpy_kind.kind not in "biuf":
            wrong[str(name)] = str(kind)
            continue
        nullable = numpy_kind is not kind
        types.append(np.result_type(numpy_kind, np.float32) if nullable else numpy_kind)
    if wrong:
        raise not_numbers("the DataFrame", wrong)
    if not types:
        raise DataError("the DataFrame has no columns: give one with columns of numbers.")
    return native_dtype(np.result_type(*types))


def frame_values(frame: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A pandas DataFrame as an array of that type; missing values become NaN."""
    if dtype.kind == "f":
        return np.asarray(frame.to_numpy(dtype=dtype, na_value=np.nan))
    return np.asarray(frame.to_numpy(dtype=dtype))
