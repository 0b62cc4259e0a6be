"""Generate seeded data of any size block by block, in memory or by ``ingest`` to a store.

Every block of 4,096 rows is drawn from a separate generator, seeded by the seed and the number of
the block. The rows therefore do not depend on how they are read or stored.

Kinds
-----
mixture
    Overlapping Gaussians of unequal weight and scale; their means lie on a low-dimensional plane.
A, B, C
    The sets of the benchmarks: 200,000 × 64 rows of 2,000 components in 16 dimensions, 1,000,000 ×
    18 rows of 3,000 components, and 60,000 × 784 handwritten digits, enlarged, shifted and with
    noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.rows import Rows, regular_table

__all__ = ["SyntheticRows", "generate"]

BLOCK_ROWS = 4_096
"""Number of rows drawn by one generator. Changing it changes all data."""

_DEFAULTS: dict[str, dict[str, int]] = {
    "A": {"n_rows": 200_000, "n_features": 64, "n_components": 2_000, "seed": 1, "intrinsic": 16},
    "B": {"n_rows": 1_000_000, "n_features": 18, "n_components": 3_000, "seed": 2, "intrinsic": 8},
    "C": {"n_rows": 60_000, "n_features": 784, "n_components": 10, "seed": 3},
}
_SPREAD = {"A": 1.0, "B": 2.5}


def generate(kind: str, *size: int | None, **options: int | None) -> NDArray[np.float32]:
    """Return the rows of :class:`SyntheticRows`, which has the same parameters, in memory.

    Examples
    --------
    >>> generate("mixture", 1_000, 3, n_components=5).shape
    (1000, 3)
    """
    rows = SyntheticRows(kind, *size, **options)
    out = np.empty(rows.shape, rows.dtype)
    for i in range(rows.n_chunks):
        start, stop = rows.chunk_rows(i)
        out[start:stop] = rows.read(i)
    return out


class SyntheticRows(Rows):
    """Rows that are made when they are read, float32.

    Parameters
    ----------
    kind : str
        See the module's list.
    n_rows, n_features : int, optional
        A, B and C have defaults.
    n_components : int, optional
        Clusters; 100 unless the kind has another default.
    seed : int, optional
    """

    def __init__(
        self,
        kind: str,
        n_rows: int | None = None,
        n_features: int | None = None,
        n_components: int | None = None,
        seed: int | None = None,
    ) -> None:
        given = {
            "n_rows": n_rows, "n_features": n_features, "n_components": n_components, "seed": seed,
        }  # fmt: skip
        known = {name: value for name, value in given.items() if value is not None}
        size = {"n_components": 100, "seed": 0} | _DEFAULTS.get(kind, {}) | known
        self._seed = size["seed"]
        self._maker = (_Digits if kind == "C" else _Mixture)(self._generator(0), kind, size)
        super().__init__(
            n_features=size["n_features"],
            dtype=np.dtype(np.float32),
            chunk_table=regular_table(size["n_rows"], BLOCK_ROWS),
        )

    def _generator(self, *key: int) -> np.random.Generator:
        return np.random.Generator(
            np.random.Philox(np.random.SeedSequence(self._seed, spawn_key=key))
        )

    def _load(self, i: int, start: int, stop: int) -> NDArray[Any]:
        # cut a short last block from a whole one, so that rows do not depend on their number
        x = self._maker.rows(self._generator(1, i), start, start + BLOCK_ROWS)[: stop - start]
        return np.asarray(x, self.dtype)


class _Mixture:
    def __init__(self, draw: np.random.Generator, kind: str, size: Mapping[str, int]) -> None:
        n_components, n_features = size["n_components"], size["n_features"]
        rank = min(size.get("intrinsic", max(2, n_features // 4)), n_features)
        plane = draw.standard_normal((rank, n_features)) / np.sqrt(rank)
        places = draw.standard_normal((n_components, rank))
        self._means = np.zeros((n_components, n_features))
        # add term by term, because results of BLAS differ between machines
        for axis in range(rank):
            self._means += places[:, axis, None] * plane[axis]
        self._means *= _SPREAD.get(kind, 2.0)
        self._scales = draw.lognormal(0.0, 0.25, (n_components, n_features))
        self._shares = np.cumsum(draw.dirichlet(np.full(n_components, 1.5)))

    def rows(self, draw: np.random.Generator, start: int, stop: int) -> NDArray[np.float64]:
        place = draw.random(stop - start)
        which = np.searchsorted(self._shares, place).clip(max=len(self._shares) - 1)
        noise = draw.standard_normal((stop - start, self._means.shape[1]))
        return np.asarray(self._means[which] + self._scales[which] * noise)


class _Digits:
    """scikit-learn's 8 × 8 digits, enlarged to 20 × 20, placed on 28 × 28 pixels, with noise."""

    def __init__(self, draw: np.random.Generator, kind: str, size: Mapping[str, int]) -> None:
        from sklearn.datasets import load_digits

        images = load_digits().images * (255.0 / 16.0)
        place = np.linspace(0.0, 7.0, 20)
        left = np.minimum(place.astype(int), 6)
        part = place - left
        rows = images[:, left] * (1.0 - part)[:, None] + images[:, left + 1] * part[:, None]
        self._images = rows[:, :, left] * (1.0 - part) + rows[:, :, left + 1] * part

    def rows(self, draw: np.random.Generator, start: int, stop: int) -> NDArray[np.float64]:
        n = stop - start
        which = draw.integers(0, len(self._images), n)
        corner = np.rint(4.0 + 1.2 * draw.standard_normal((n, 2))).clip(0, 8).astype(int)
        brightness = draw.uniform(0.8, 1.2, n)
        canvas = np.zeros((n, 28, 28))
        for row, (y, x) in enumerate(corner):
            canvas[row, y : y + 20, x : x + 20] = brightness[row] * self._images[which[row]]
        canvas += (canvas > 0) * draw.normal(0.0, 20.0, canvas.shape)
        return canvas.clip(0.0, 255.0).reshape(n, 784)
