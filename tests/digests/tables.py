"""Rows that are the same bits wherever they are made, in memory or in a store of 12 chunks.

They come from the raw numbers of a bit generator, which NumPy keeps as they are, by sums and
products alone: neither NumPy's distributions nor a mathematical library can change them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import dask
import numpy as np
import scipy.sparse
from numpy.typing import NDArray

import largek_dask as lk

N_CHUNKS = 12
MOST_ROWS = 65_536
"""Rows of a chunk in memory, at most."""


@dataclass(frozen=True)
class Table:
    """Rows of one kind."""

    kind: str = "groups"
    dtype: str = "float32"
    """As NumPy calls it, or "csr"."""
    n: int = 3_000
    d: int = 20
    weights: str = ""
    """"", "some" (of six values, also 0) or "light" (half of them a billionth of the others)."""
    stored: bool = True
    """In a store of 12 chunks; False: in memory, in as few as there can be."""

    def __str__(self) -> str:
        told = f"{self.n}x{self.d} {self.dtype}"
        kind = "" if self.kind == "groups" else f" {self.kind}"
        weights = f" {self.weights} weights" if self.weights else ""
        return told + kind + weights + ("" if self.stored else " in memory")


class Uniform:
    """Numbers of [0, 1) by a seed."""

    def __init__(self, *key: int) -> None:
        self.bits = np.random.Philox(key=key)

    def __call__(self, *shape: int) -> NDArray[np.float64]:
        """So many of them."""
        raw = np.asarray(self.bits.random_raw(int(np.prod(shape))))
        return ((raw >> np.uint64(11)) * 2.0**-53).reshape(shape)

    def bell(self, *shape: int) -> NDArray[np.float64]:
        """Of mean 0 and variance 1, like a normal distribution but for its tails."""
        four = self(4, *shape)
        return (four[0] + four[1] + four[2] + four[3] - 2.0) * 3.0**0.5


def rows_of(table: Table) -> Any:
    """The rows as one array or CSR matrix."""
    uniform = Uniform(table.n, table.d)
    n, d = table.n, table.d
    x = KINDS[table.kind](uniform, n, d)
    if table.dtype == "csr":
        return scipy.sparse.csr_matrix(np.where(uniform(n, d) < 0.34, x, 0).astype(np.float32))
    if table.dtype == "uint8":
        return np.clip(np.rint(x * 3 + 128), 0, 255).astype(np.uint8)
    return x > 2 if table.dtype == "bool" else x.astype(table.dtype)


def _groups(uniform: Uniform, n: int, d: int) -> NDArray[np.float64]:
    """150 groups of unequal sizes and widths, about sorted; some rows far out, some there twice."""
    own = (150 * uniform(n) ** 2).astype(int)
    width = np.array([0.5, 1.0, 3.0])[(3 * uniform(n)).astype(int)]
    x = 8 * uniform.bell(150, d)[own] + uniform.bell(n, d) * width[:, None]
    x[uniform(n) < 0.002] *= 6
    x[n // 2 : n // 2 + n // 50] = x[: n // 50]
    return x[np.argsort(own + 60 * uniform(n), kind="stable")]


def _far(uniform: Uniform, n: int, d: int) -> NDArray[np.float64]:
    """One cloud, and thirty rows at ten places far away that carry the cost."""
    x = uniform.bell(n, d)
    far = np.argsort(uniform(n), kind="stable")[:30]
    x[far] += 500 * uniform.bell(10, d)[np.arange(30) % 10]
    return x


def _tails(uniform: Uniform, n: int, d: int) -> NDArray[np.float64]:
    """One cloud whose rows are farther and farther out, of no finite variance."""
    return uniform.bell(n, d) / np.sqrt(1.0 - uniform(n))[:, None]


def _few(uniform: Uniform, n: int, d: int) -> NDArray[np.float64]:
    """Forty distinct rows, each there many times."""
    return 8 * uniform.bell(40, d)[(40 * uniform(n)).astype(int)]


def _flat(uniform: Uniform, n: int, d: int) -> NDArray[np.float64]:
    """No clusters at all."""
    return 10 * uniform(n, d)


def _bad(uniform: Uniform, n: int, d: int) -> NDArray[np.float64]:
    """Groups, and every 97th row has a value that is no number or not finite."""
    x = _groups(uniform, n, d)
    x[::97, 0] = np.nan
    x[::194, d - 1] = np.inf
    return x


def _words(uniform: Uniform, n: int, d: int) -> NDArray[np.float64]:
    """Most of the eight words of a topic, and another word; the variance is in all directions."""
    words = (d * uniform(1_000, 8)).astype(int)
    of, every = (1_000 * uniform(n)).astype(int), np.arange(n)
    x = np.zeros((n, d))
    for word in words[of].T:
        x[every, word] += uniform(n) < 0.75
    x[every, (d * uniform(n)).astype(int)] += 1
    return x


KINDS = {
    "groups": _groups, "far": _far, "tails": _tails, "few": _few, "flat": _flat, "bad": _bad,
    "words": _words,
}  # fmt: skip


def weights_of(table: Table) -> NDArray[np.float64] | None:
    """A weight for each row, or None."""
    uniform = Uniform(table.n, 77)
    if table.weights == "light":
        return (0.5 + uniform(table.n)) * np.where(np.arange(table.n) % 2, 1.0, 1e-9)
    if table.weights == "some":
        return np.array([0.0, 0.25, 1.0, 1.0, 2.5, 7.0])[(6 * uniform(table.n)).astype(int)]
    return None


class Shelf:
    """Stores in a folder, made as they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = cache(self._data)

    def _data(self, table: Table) -> Any:
        x = rows_of(table)
        if not table.stored:
            return x
        url = str(self.folder / f"{len(list(self.folder.iterdir()))}.zarr")
        lk.ingest(x, url, chunk_rows=-(-table.n // N_CHUNKS), progress=False)
        return url

    def rows(self, table: Table) -> Any:
        """The rows as a fit takes them, chunk by chunk as they are stored."""
        with dask.config.set({"largek.data.read-chunk-bytes": 1}):
            rows = lk.open_rows(self.data(table), sample_weight=weights_of(table))
        expected = N_CHUNKS if table.stored else -(-table.n // MOST_ROWS)
        assert rows.n_chunks == expected, f"{table}: {rows.n_chunks} chunks"
        return rows
