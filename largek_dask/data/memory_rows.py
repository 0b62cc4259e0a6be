"""Rows of arrays, memory maps and sparse matrices in this process."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from largek_dask import config
from largek_dask.data.csr_blocks import block_of, check_columns, sparse_bytes
from largek_dask.data.rows import (
    MAX_CHUNK_ROWS,
    Column,
    Rows,
    check_table_shape,
    native_dtype,
    refuse_masked,
    regular_table,
)
from largek_dask.errors import DataError
from largek_dask.kernels.blocks import SparseBlock, readonly

MIN_CHUNK_ROWS = 1_024
SPARSE_CHUNK_ROWS = 4_096
"""Minimum number of rows of a sparse chunk. Every chunk reads all centres, which do not fit in
the cache."""


def memory_table(
    n_rows: int, n_features: int, dtype: np.dtype[Any], chunk_bytes: int | None = None
) -> NDArray[np.int64]:
    """Return the chunk table of an array in memory, which depends only on the shape and the dtype.

    A chunk has about ``chunk_bytes`` bytes (default: ``largek.data.memory-chunk-bytes``) and 1,024
    to 65,536 rows. Such chunks fit in the processor's cache, and every thread has work.
    """
    row_bytes = max(1, n_features * native_dtype(dtype).itemsize)
    if chunk_bytes is None:
        chunk_bytes = int(config.get("data.memory-chunk-bytes"))
    wanted = chunk_bytes // row_bytes
    return regular_table(n_rows, min(max(wanted, MIN_CHUNK_ROWS), MAX_CHUNK_ROWS))


def array_of(source: Any, what: str = "the data") -> NDArray[Any]:
    """Convert ``source`` to an array; ``what`` names the source in error messages."""
    try:
        return np.asarray(source)
    except MemoryError:
        raise
    except Exception as error:
        # Each library raises its own error classes.
        raise DataError(
            f"{what} cannot be converted to an array of numbers: {type(error).__name__}: {error}; "
            "pass a numpy array of shape (rows, columns)."
        ) from error


class ArrayColumn:
    """Row weights in memory."""

    def __init__(self, values: Any) -> None:
        refuse_masked(values, "sample_weight", "sample_weight.filled(0)")
        values = array_of(values, "sample_weight")
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 1:
            raise DataError(f"sample_weight has shape {values.shape}; give one number per row.")
        native_dtype(values.dtype, "sample_weight")
        self._values = values
        self.n_rows = len(values)

    def read(self, start: int, stop: int) -> NDArray[np.float64]:
        return np.asarray(self._values[start:stop], np.float64)


class SlicedRows(Rows):
    """Rows of a two-dimensional source that can be sliced without loading all of it.

    A C-contiguous numpy array is not copied. Other arrays are converted one chunk at a time.
    """

    as_array: ClassVar[str] = "x"
    """Code, used in messages, that converts a source ``x`` to an array with a ``reshape``
    method."""

    def __init__(
        self,
        source: Any,
        *,
        chunk_table: NDArray[np.int64] | None = None,
        location: str | None = None,
        weight: Column | None = None,
    ) -> None:
        what = self.describe_source(location)
        shape = tuple(int(n) for n in source.shape)
        stored = native_dtype(source.dtype, what)
        check_table_shape(shape, what, self.as_array)
        self._source = source
        if chunk_table is None:
            chunk_table = memory_table(shape[0], shape[1], stored)
        super().__init__(
            n_features=shape[1],
            dtype=stored,
            chunk_table=chunk_table,
            location=location,
            weight=weight,
        )

    def _load(self, i: int, start: int, stop: int) -> Any:
        return self._source[start:stop]


class ArrayRows(SlicedRows):
    """Rows of a numpy array in memory."""

    def __init__(self, array: Any, *, weight: Column | None = None) -> None:
        refuse_masked(array)
        super().__init__(np.asarray(array), weight=weight)

    def in_memory(self) -> NDArray[Any] | None:
        """Return the array if ``read`` returns views of it; None if it is mapped from a file."""
        x: NDArray[Any] = self._source
        base: Any = x
        while isinstance(base, np.ndarray):
            if isinstance(base, np.memmap):
                return None
            base = base.base
        if x.dtype != self.dtype or not x.flags.c_contiguous:
            return None
        return readonly(x)


class SparseRows(Rows):
    """Rows of a scipy sparse matrix.

    A CSR matrix of float32 or float64 with sorted columns is not copied; any other matrix is
    converted once.
    """

    is_sparse = True

    def __init__(self, matrix: Any, *, weight: Column | None = None) -> None:
        what = "the sparse matrix"
        check_table_shape(tuple(matrix.shape), what)
        native_dtype(matrix.dtype, what)
        n_rows, n_features = (int(n) for n in matrix.shape)
        check_columns(n_features, what)
        csr = matrix.tocsr()
        try:
            self._block = block_of(csr.data, csr.indices, csr.indptr, n_features)
        except ValueError as error:
            raise DataError(f"{what} is invalid: {error}; build the matrix again.") from error
        dtype = self._block.dtype
        row_bytes = max(1, sparse_bytes(n_rows, len(self._block.data), dtype) // max(1, n_rows))
        wanted = int(config.get("data.memory-chunk-bytes")) // row_bytes
        super().__init__(
            n_features=n_features,
            dtype=dtype,
            chunk_table=regular_table(n_rows, min(max(wanted, SPARSE_CHUNK_ROWS), MAX_CHUNK_ROWS)),
            weight=weight,
        )

    @property
    def nbytes(self) -> int:
        return self._block.nbytes

    def in_memory(self) -> SparseBlock:
        return self._block

    def _load(self, i: int, start: int, stop: int) -> SparseBlock:
        rows = self._block[start:stop]
        # Slice the arrays, so that the size of the chunk does not include other rows.
        return SparseBlock(
            rows.data[rows.stored],
            rows.indices[rows.stored],
            readonly(rows.indptr - rows.indptr[0]),
            self.n_features,
        )
