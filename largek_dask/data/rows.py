"""Common interface to all data: a table of rows, read chunk by chunk.

Any source (a Zarr store, an array, a DataFrame) becomes a :class:`Rows`. A chunk is a range of
consecutive rows; only a few chunks are in memory at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.fingerprint import content_of, rows_per_chunk
from largek_dask.errors import DataError
from largek_dask.html_table import html_table
from largek_dask.kernels.blocks import SparseBlock, Table

MAX_CHUNK_ROWS = 65_536
"""Maximum number of rows of a chunk, unless a single stored chunk is larger."""


class Column(Protocol):
    """Column with one number per row, read by ranges of rows."""

    n_rows: int

    def read(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return the values of the rows ``start`` to ``stop`` (exclusive)."""


class Rows(ABC):
    """A table of numbers, read chunk by chunk.

    Reading is thread-safe, and a chunk always holds the same rows. Rows with a :attr:`location` are
    pickled as their address, without the data. Raises DataError if there are no rows or columns, or
    if the number of weights differs from the number of rows.

    Parameters
    ----------
    n_features : int
    dtype : numpy.dtype
        Type of the numbers as stored; see ``native_dtype``.
    chunk_table : (n_chunks + 1,) int64
        Global index of every chunk's first row, followed by the number of rows.
    location : str, optional
        URL or absolute path that another process can open.
    weight : Column, optional
        Row weights.
    """

    is_sparse: ClassVar[bool] = False
    """True if ``read`` returns sparse rows."""
    _ids: NDArray[Any] | None = None
    shuffled: bool = False
    """True if the rows were stored in random order by ``ingest(shuffle=...)``. Any range of rows
    is then a random sample, so the first rows of a chunk represent the chunk."""

    def __init__(
        self,
        *,
        n_features: int,
        dtype: np.dtype[Any],
        chunk_table: NDArray[np.int64],
        location: str | None = None,
        weight: Column | None = None,
    ) -> None:
        self.dtype = native_dtype(dtype, self.describe_source(location))
        """Type of the numbers that ``read`` returns; see ``native_dtype``."""
        self.chunk_table = np.ascontiguousarray(chunk_table, np.int64)
        self.chunk_table.flags.writeable = False
        self.n_rows = int(chunk_table[-1])
        self.n_features = int(n_features)
        self.location = location
        """URL or absolute path; None if other processes cannot open the rows."""
        self.weight: Column | None = None
        where = self.describe_source(location)
        if self.n_rows == 0:
            raise DataError(
                f"{where} has no rows (shape {self.shape}), but clustering needs at least one row."
            )
        if self.n_features == 0:
            raise DataError(
                f"{where} has no columns (shape {self.shape}); pass a table of numbers."
            )
        self._set_weight(weight)

    def _set_weight(self, weight: Column | None) -> None:
        if weight is not None and weight.n_rows != self.n_rows:
            where = self.describe_source(self.location)
            raise DataError(
                f"sample_weight has {weight.n_rows} values, but {where} has {self.n_rows} rows; "
                "give one weight per row."
            )
        self.weight = weight

    def _copy(self) -> Self:
        """Return a shallow copy; unlike ``copy.copy``, do not open a store again."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def with_weight(self, weight: Column | None) -> Self:
        """Return the same rows with these weights; None means that every row has weight 1."""
        other = self._copy()
        other._set_weight(weight)
        return other

    @cached_property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of the columns; None if the source has none."""
        names = self._find_names()
        return None if names is None else self._checked_names(names)

    def _find_names(self) -> Sequence[str] | None:
        return None

    def _checked_names(self, names: Sequence[str]) -> tuple[str, ...]:
        if len(names) != self.n_features:
            raise DataError(
                f"{self.describe_source(self.location)} has {self.n_features} columns, but "
                f"{len(names)} column names were given; give one name per column."
            )
        return tuple(names)

    def with_ids(self, ids: Any) -> Self:
        """Return the same rows with these ids, one per row (integers, text or missing)."""
        found = np.asarray(ids)
        if found.shape != (self.n_rows,):
            raise DataError(
                f"ids has shape {found.shape}, but {self.describe_source(self.location)} has "
                f"{self.n_rows} rows; give one id per row."
            )
        other = self._copy()
        other._ids = found
        return other

    def read_ids(self, i: int) -> NDArray[Any]:
        """Return the ids of chunk ``i``'s rows; indices in the table for rows without ids."""
        start, stop = self.chunk_rows(i)
        return np.arange(start, stop) if self._ids is None else self._ids[start:stop]

    def with_names(self, names: Sequence[str] | None) -> Self:
        """Return the same rows with these column names, or without names if ``names`` is None."""
        other = self._copy()
        other.feature_names = None if names is None else self._checked_names(names)
        return other

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns (n, d)."""
        return self.n_rows, self.n_features

    @property
    def nbytes(self) -> int:
        """Number of bytes of all rows in the dtype that ``read`` returns."""
        return self.n_rows * self.n_features * self.dtype.itemsize

    @property
    def n_chunks(self) -> int:
        """Number of reading chunks."""
        return len(self.chunk_table) - 1

    def chunk_rows(self, i: int) -> tuple[int, int]:
        """Return the global row range ``(start, stop)`` of chunk ``i``."""
        if not 0 <= i < self.n_chunks:
            raise IndexError(
                f"chunk {i} does not exist; there are {self.n_chunks} chunks, numbered from 0."
            )
        return int(self.chunk_table[i]), int(self.chunk_table[i + 1])

    def read(self, i: int) -> Any:
        """Return chunk ``i`` as a dense (n, d) array, C-contiguous and read-only, in :attr:`dtype`.

        Sparse rows are returned as a :class:`~largek_dask.kernels.blocks.SparseBlock`. Raises
        DataError, whose message names the chunk, if the chunk is missing or damaged.
        """
        start, stop = self.chunk_rows(i)
        return self._checked(i, self._load(i, start, stop), stop - start)

    def in_memory(self) -> Table | None:
        """Return all rows as one read-only block, if they are in memory; None otherwise."""
        return None

    def numbers(self, i: int | None) -> NDArray[np.int64] | None:
        """Return the indices in the original table of the rows of chunk ``i`` (None: all chunks).

        Returns None for rows that were not taken from another table.
        """
        return None

    def stretch(self, i: int, begin: int, end: int) -> tuple[int, int]:
        """Return the range that must be read for the rows ``begin`` to ``end`` of chunk ``i``.

        The range is the whole chunk unless rows are stored in smaller pieces.
        """
        start, stop = self.chunk_rows(i)
        return 0, stop - start

    def read_part(self, i: int, begin: int, end: int) -> Any:
        """Return ``read(i)[begin:end]``, reading no more than the :meth:`stretch` of these rows."""
        return self.read(i)[begin:end]

    def _checked(self, i: int, x: Any, n: int) -> Any:
        if isinstance(x, SparseBlock):
            return x
        x = np.asarray(x)
        if x.dtype == np.bool_:
            x = x.view(np.uint8) if x.flags.c_contiguous else x.astype(np.uint8)
        if problem := difference(x, (n, self.n_features), self.dtype):
            raise DataError(
                f"{self.name_chunk(i)} {problem}. "
                "The source has changed since it was opened: open it again."
            )
        x = np.ascontiguousarray(x, self.dtype).view()
        x.flags.writeable = False
        return x

    @abstractmethod
    def _load(self, i: int, start: int, stop: int) -> Any:
        """Return chunk ``i`` (rows ``start`` to ``stop``) as an array-like or a sparse block."""

    def read_weight(
        self, i: int, begin: int = 0, end: int | None = None
    ) -> NDArray[np.float64] | None:
        """Return the weights of rows ``begin`` to ``end`` of chunk ``i``; None if all are 1.

        Raises DataError, whose message names the row, if a weight is negative, NaN or infinite.
        """
        if self.weight is None:
            return None
        first, stop = self.chunk_rows(i)
        start, stop = first + begin, stop if end is None else first + end
        weight = np.ascontiguousarray(self.weight.read(start, stop), np.float64)
        if weight.shape != (stop - start,):
            raise DataError(
                f"sample_weight of rows {start} to {stop - 1} ({self.name_chunk(i)}) has shape "
                f"{weight.shape}; give one number per row."
            )
        wrong = ~((weight >= 0) & (weight < np.inf))
        if wrong.any():
            at = int(np.argmax(wrong))
            raise DataError(
                f"sample_weight of row {start + at} is {weight[at]} ({self.name_chunk(i)}); "
                "weights must be finite and not negative."
            )
        return weight

    def fingerprint(self) -> dict[str, Any]:
        """Return a fingerprint of these data for JSON; ``same_data`` compares two fingerprints.

        ``content`` (shape, dtype, and a hash of sampled rows and weights) does not depend on the
        location and format of the data. ``chunk_rows`` is the run-length encoded chunk table, and
        ``shuffled`` is the attribute of this name. ``stamps`` has one entry per chunk, made from
        the sizes and modification times (or ETags) of its files, or is None for data that are not
        stored.
        """
        return {
            "content": content_of(self),
            "chunk_rows": rows_per_chunk(self.chunk_table),
            "shuffled": self.shuffled,
            "location": self.location,
            "stamps": self._stamps(),
        }

    def _stamps(self) -> list[str] | None:
        """Return one short text per chunk, which changes whenever the chunk is written again."""
        return None

    def stored_statistics(self) -> dict[str, Any] | None:
        """Return the statistics that ``ingest`` stored for unit weights, or None."""
        return None

    def describe_source(self, location: str | None) -> str:
        """Return a name for this source, used in messages."""
        return location if location is not None else "the data"

    def name_chunk(self, i: int) -> str:
        """Return a name for chunk ``i``, used in messages."""
        start, stop = self.chunk_rows(i)
        where = self.describe_source(self.location)
        return f"chunk {i} (rows {start} to {stop - 1}) of {where}"

    @property
    def row_values(self) -> int:
        """Number of values per row in memory; for sparse rows, the mean number of stored values."""
        if not self.is_sparse:
            return self.n_features
        return max(1, -(-self.nbytes // max(1, self.n_rows * self.dtype.itemsize)))

    def __repr__(self) -> str:
        where = self.location or "in this process"
        return (
            f"<{type(self).__name__} {self.n_rows} x {self.n_features} {self.dtype}, "
            f"{self.n_chunks} chunks, {where}>"
        )

    def _repr_html_(self) -> str:
        lengths = np.diff(self.chunk_table)
        facts = {
            "rows × features": f"{self.n_rows:,} × {self.n_features:,}",
            "numbers": f"{'sparse ' if self.is_sparse else ''}{self.dtype}",
            "size": f"{self.nbytes / 1e6:,.1f} MB",
            "chunks": f"{self.n_chunks:,} of {lengths.min():,} to {lengths.max():,} rows",
            "weighted": "yes" if self.weight is not None else "no",
            "order": "shuffled" if self.shuffled else "as given",
            "location": self.location or "this process",
        }
        return html_table("largek_dask rows", facts)


def native_dtype(dtype: Any, what: str = "the data") -> np.dtype[Any]:
    """Return the dtype in which ``Rows.read`` returns numbers of a stored dtype.

    The type has native byte order. bool becomes uint8, extended precision becomes float64, and
    types that ``ml_dtypes`` adds to numpy (bfloat16, float8, int4) become float32. Raises DataError
    for types that are not real numbers.
    """
    dtype = np.dtype(dtype)
    if dtype.names:
        raise DataError(
            f"{what} has named fields ({dtype}); pass a plain (rows, columns) array, e.g. "
            "numpy.lib.recfunctions.structured_to_unstructured(x)."
        )
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if is_added_type(dtype) and np.can_cast(dtype, np.float32):
        return np.dtype(np.float32)
    if dtype.kind in "iu" or (dtype.kind == "f" and dtype.itemsize <= 8):
        native: np.dtype[Any] = dtype.newbyteorder("=")
        return native
    if dtype.kind == "f":
        return np.dtype(np.float64)
    advice = {
        "c": "Complex data not supported; stack the real and imaginary parts as columns",
        "O": "an array of Python objects; convert it with .astype(float)",
        "U": "text; encode it as numbers first",
        "S": "text; encode it as numbers first",
        "T": "text; encode it as numbers first",
        "M": "dates; convert them to numbers first",
        "m": "time spans; convert them to numbers first",
        "V": "raw bytes; if numpy saved bfloat16, use x.view(ml_dtypes.bfloat16)",
    }.get(dtype.kind, "convert it to float32 first")
    raise DataError(f"{what} has dtype {dtype}, but real numbers are required: {advice}.")


def is_added_type(dtype: np.dtype[Any]) -> bool:
    """Return True if a dtype is not part of numpy itself, such as bfloat16 from ``ml_dtypes``."""
    return dtype.isbuiltin == 2


def difference(x: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    """Describe how an array differs from the declared shape and dtype; "" if it does not differ."""
    if x.shape != shape:
        return f"has shape {x.shape}, but {shape} was declared"
    if x.dtype != dtype and not np.can_cast(native_dtype(x.dtype, "a block"), dtype):
        return (
            f"has dtype {x.dtype}, which cannot be converted to the declared {dtype} without loss"
        )
    return ""


def refuse_masked(
    values: Any, what: str = "the data", fill: str = "x.filled(np.nan) and on_bad_rows='skip'"
) -> None:
    """Raise DataError for a masked array; the message suggests the code ``fill``."""
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(
            f"{what} must not be a masked array; fill the masked values first, e.g. with {fill}."
        )


def check_table_shape(shape: tuple[int, ...], what: str, array: str = "x") -> None:
    """Raise DataError if a table does not have two dimensions.

    ``what`` names the source in messages, and ``array`` is code that converts the source to an
    array.
    """
    if len(shape) == 2:
        return
    if len(shape) == 1:
        advice = (
            f"use {array}.reshape(-1, 1) for a single column, or {array}.reshape(1, -1) for a "
            "single row"
        )
    elif len(shape) == 0:
        advice = "pass more than a single value"
    else:
        length = "len(x)" if array == "x" else shape[0]
        advice = f"flatten each row: {array}.reshape({length}, -1)"
    raise DataError(
        f"{what} has {len(shape)} dimensions (shape {tuple(shape)}), but a table of rows has two "
        f"(rows, columns); {advice}."
    )


def regular_table(n_rows: int, chunk_rows: int) -> NDArray[np.int64]:
    """Return a chunk table with chunks of equal length; the last chunk may be shorter."""
    n_chunks = -(-n_rows // chunk_rows)
    table = np.arange(n_chunks + 1, dtype=np.int64) * chunk_rows
    table[-1] = n_rows
    return table


def table_from_lengths(lengths: Any) -> NDArray[np.int64]:
    """Return the chunk table for chunks of these lengths, which must be positive."""
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))]).astype(np.int64)
