"""Stream a file in svmlight (libsvm) format: ``label column:number column:number ...``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from largek_dask.data.csr_blocks import MAX_COLUMNS, block_of
from largek_dask.data.stores import filesystem
from largek_dask.errors import DataError
from largek_dask.kernels.blocks import SparseBlock

SVMLIGHT = (".svm", ".svmlight", ".libsvm")
BLOCK_BYTES = 32 << 20


class SvmlightTable:
    """Stream of the sparse rows of an svmlight file, parsed by scikit-learn, without labels.

    Columns are numbered from 1, as defined by the format, or from 0 if the file has a column 0. The
    number of columns is known only at the end, so the file is read twice.
    """

    is_sparse = True

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None) -> None:
        self.where = url
        self.location: str | None = url
        self.names: tuple[str, ...] | None = None
        self.n_bytes = 0
        self.dtype = np.dtype(np.float64)
        self._fs, self._path = filesystem(url, storage_options)
        lowest, highest, n_rows = 2**62, -1, 0
        for matrix in self._pieces():
            n_rows += matrix.shape[0]
            if matrix.nnz:
                lowest = min(lowest, int(matrix.indices.min()))
                highest = max(highest, int(matrix.indices.max()))
        if highest < 0:
            what = "rows" if n_rows == 0 else "columns"
            raise DataError(f"{url} has no {what}; pass a file with at least one value.")
        self._first = min(lowest, 1)
        self.n_features = highest + 1 - self._first
        self.n_rows: int | None = n_rows

    def blocks(self) -> Iterator[SparseBlock]:
        for matrix in self._pieces():
            yield block_of(
                matrix.data, matrix.indices - self._first, matrix.indptr, self.n_features
            )

    def _pieces(self) -> Iterator[Any]:
        from sklearn.datasets import load_svmlight_file

        try:
            size = int(self._fs.size(self._path))
            for begin in range(0, size, BLOCK_BYTES):
                with self._fs.open(self._path, "rb") as file:
                    matrix, _ = load_svmlight_file(
                        file,
                        n_features=MAX_COLUMNS,
                        offset=begin,
                        length=BLOCK_BYTES,
                        zero_based=True,
                    )
                if matrix.shape[0]:
                    yield matrix
        except (ValueError, IndexError, OverflowError) as error:
            raise DataError(
                f"{self.where} is not in svmlight format: {error}; each line must have the form "
                "'label index:value ...'."
            ) from error
        except OSError as error:
            raise DataError(
                f"{self.where} cannot be read: {error}; check that it is complete and readable."
            ) from error
