"""Rows of tables in memory whose columns have names: DataFrames, Arrow tables, dicts of arrays.

They are converted one chunk at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.arrow import ArrowColumns, has_missing
from largek_dask.data.cf_attributes import decoded
from largek_dask.data.columns import (
    WRITTEN,
    Selection,
    is_index_name,
    left_out_as_index,
    names_of,
    not_told_from_index,
    noted_as_index,
)
from largek_dask.data.memory_rows import SlicedRows, array_of
from largek_dask.data.not_numbers import HEAD_ROWS, counts_rows, is_id_name, look_at, not_numbers
from largek_dask.data.rows import Column, is_added_type, native_dtype, refuse_masked
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
        self.dtype = frame_dtype(frame.iloc[:HEAD_ROWS, self._places])
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

    library: ClassVar[str]
    """Library of the table, for messages."""

    def __init__(self, frame: Any, places: Sequence[int]) -> None:
        super().__init__(frame, places)
        kinds = {place: self._kind(place) for place in places}
        numbers = [kind for kind in kinds.values() if kind is not None]
        if len(numbers) < len(kinds):
            raise self._refused(kinds)
        self.dtype = native_dtype(np.result_type(*numbers))
        self.shape = self._n_rows(), len(places)

    @abstractmethod
    def _kind(self, place: int) -> np.dtype[Any] | None:
        """The type of a column's numbers; None where it has none."""

    @abstractmethod
    def _array(self, place: int, rows: slice) -> NDArray[Any]:
        """The numbers of a column."""

    @abstractmethod
    def _head(self, place: int) -> tuple[Any, list[Any]]:
        """A column's type, and its first values."""

    @abstractmethod
    def _n_rows(self) -> int:
        """How many rows there are."""

    def _refused(self, kinds: dict[int, np.dtype[Any] | None]) -> DataError:
        """The error about columns that are not numbers."""
        labels = list(map(str, self.labels(self._frame)))
        wrong, ids = {}, []
        for place, kind in kinds.items():
            name, (held, head) = labels[place], self._head(place)
            if kind is None:
                wrong[name] = look_at(name, held, head)
            elif is_id_name(name) or counts_rows(head):
                ids.append(name)
        return not_numbers(self.where, wrong, self.library, ids)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        arrays = [self._array(place, rows) for place in self._places]
        out = np.empty((len(arrays[0]), len(arrays)), self.dtype)
        for j, array in enumerate(arrays):
            out[:, j] = array
        return out


class _PolarsFrame(_SeparateColumns):
    library = "polars"

    @classmethod
    def holds(cls, source: Any) -> bool:
        return is_of(source, "polars", "DataFrame")

    def _kind(self, place: int) -> np.dtype[Any] | None:
        column = self._frame.to_series(place)
        if not (column.dtype.is_numeric() or str(column.dtype) == "Boolean"):
            return None
        kind = self._array(place, slice(0, 0)).dtype
        # missing values of integers need NaN
        return np.result_type(kind, np.float32) if column.null_count() else kind

    def _array(self, place: int, rows: slice) -> NDArray[Any]:
        column = self._frame.to_series(place)[rows]
        if column.dtype.is_decimal() or str(column.dtype) in ("Int128", "UInt128"):
            # numpy has no such numbers
            column = column.cast(float)
        return np.asarray(column.to_numpy())

    def _head(self, place: int) -> tuple[Any, list[Any]]:
        column = self._frame.to_series(place)
        return column.dtype, column.head(HEAD_ROWS).to_list()

    def _n_rows(self) -> int:
        return int(self._frame.height)


class _DictFrame(_SeparateColumns):
    where = "the dict of arrays"
    library = "dict"

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
        if is_of(column, "pandas", "Series"):
            column = column.to_frame(name)
            array = frame_values(column, frame_dtype(column))[:, 0]
        else:
            what = f"{name!r} of the dict of arrays"
            array = array_of(decoded(column, what), what)
        if array.ndim != 1:
            raise DataError(
                f"{name!r} of the dict of arrays has shape {array.shape}; give one value per row "
                "in each."
            )
        return array

    def _kind(self, place: int) -> np.dtype[Any] | None:
        kind = self._columns[place].dtype
        if is_added_type(kind):
            return native_dtype(kind)
        return kind if is_number_type(kind) else None

    def _array(self, place: int, rows: slice) -> NDArray[Any]:
        return self._columns[place][rows]

    def _head(self, place: int) -> tuple[Any, list[Any]]:
        column = self._columns[place]
        return column.dtype, column[:HEAD_ROWS].tolist()

    def _n_rows(self) -> int:
        return len(self._columns[0])


class _ArrowFrame(_Frame):
    where = "the table"

    def __init__(self, frame: Any, places: Sequence[int]) -> None:
        super().__init__(frame, places)
        self._values = ArrowColumns(
            frame.schema, places, self.where, missing=self._missing, table=frame
        )
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

    def _missing(self, places: Sequence[int]) -> list[int]:
        """The columns with missing values."""
        return [place for place in places if has_missing(self._frame.column(place))]

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
        Columns are not numeric; the message names all of them with their types, and of pandas'
        the first value that is no number.
    """
    types = [_type_of_numbers(kind) for kind in frame.dtypes]
    numbers = [kind for kind in types if kind is not None]
    if len(numbers) < len(types):
        raise _not_numbers(frame, types)
    if not numbers:
        raise DataError("the DataFrame has no columns: give one with columns of numbers.")
    return native_dtype(np.result_type(*numbers))


def _not_numbers(frame: Any, types: Sequence[np.dtype[Any] | None]) -> DataError:
    """The error about columns of a DataFrame that have no type of numbers."""
    is_lazy = is_of(frame, "dask", "DataFrame")
    wrong, ids = {}, []
    for place, (label, kind) in enumerate(zip(frame.columns, frame.dtypes, strict=True)):
        name = str(label)
        head = [] if is_lazy else frame.iloc[:HEAD_ROWS, place].tolist()
        if types[place] is None:
            wrong[name] = look_at(name, kind, head)
        elif is_id_name(name) or counts_rows(head):
            ids.append(name)
    return not_numbers("the DataFrame", wrong, "dask" if is_lazy else "pandas", ids)


def _type_of_numbers(kind: Any) -> np.dtype[Any] | None:
    """The numpy type for a type of pandas; None for one that is not of numbers."""
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
    """Whether a type is one of numpy's real numbers, or boolean."""
    return isinstance(kind, np.dtype) and kind.kind in "biuf"


def frame_values(frame: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A pandas DataFrame as an array of that type; missing values become NaN."""
    if dtype.kind == "f":
        return np.asarray(frame.to_numpy(dtype=dtype, na_value=np.nan))
    return np.asarray(frame.to_numpy(dtype=dtype))
