"""Plain numpy twin of the emitted kernel of groups, for runs without a compiler.

As in :mod:`~largek_dask.kernels.emit.standins`: the features are added in another order.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

__all__ = ["fold", "six_rows"]

Array = NDArray[Any]


def six_rows(
    direct: int,
    rows: Array,
    places: Array,
    columns: Array,
    at: int,
    n_features: int,
    starts: Array,
    first: int,
    values: Array,
    labels: Array,
    base: int,
) -> None:
    """Twin of :func:`largek_dask.kernels.emit.groups.six_rows`."""
    centers = columns[at : at + 16 * n_features].reshape(n_features, 16)
    for q, begin in enumerate(places):
        x = rows[begin : begin + n_features, None]
        terms = (x - centers) ** 2 if direct else x * centers
        score = starts[first : first + 16] + terms.sum(axis=0, dtype=rows.dtype)
        for j, value in enumerate(score):
            lane = 8 * q + j % 8
            if value < values[lane]:
                values[lane], values[lane + 48] = value, values[lane]
                labels[lane] = base + j
            elif value < values[lane + 48]:
                values[lane + 48] = value


def fold(values: Array, labels: Array, at: int) -> None:
    """Twin of :func:`largek_dask.kernels.emit.groups.fold`."""
    lanes = slice(at, at + 8)
    order = sorted(zip(values[lanes], labels[lanes], strict=True))
    second = min(order[1][0], *values[at + 48 : at + 56])
    values[at], labels[at], values[at + 48] = *order[0], second
