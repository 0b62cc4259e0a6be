"""Plain numpy twins of the emitted micro-kernels, for runs without a compiler.

With ``NUMBA_DISABLE_JIT=1`` the drivers run as ordinary Python and call these instead of
:mod:`~largek_dask.kernels.emit.dense` and :mod:`~largek_dask.kernels.emit.rows`. They add in
another order and without fused operations, so their results agree with the compiled ones within
rounding, not to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.jit import readonly
from largek_dask.kernels.tile import BLOCK, MINIMA, NUMBERED, NUMBERS, PAIR, SCORES, TWO, Micro

__all__ = [
    "LANES",
    "clear",
    "conclude",
    "eight_scores",
    "four_near_squares",
    "four_square_distances",
    "four_weighted_square_distances",
    "frozen",
    "near_square",
    "scan",
    "scan_sparse",
    "settle",
    "square_distance",
    "square_lengths",
    "tile_within",
    "transpose",
    "weighted_square_distance",
]

LANES = 16
"""As in :mod:`~largek_dask.kernels.emit.sparse`."""


Array = NDArray[Any]


def scan(
    spec: int,
    panel: Array,
    panel_at: int,
    centers: Array,
    row_stride: int,
    feature: int,
    n_features: int,
    starts: Array,
    first: int,
    n_tiles: int,
    values: Array,
    labels: Array,
    at: int,
    sums: Array,
    sums_at: int,
    ahead: Array,
    ahead_at: int,
) -> None:
    """Twin of :func:`largek_dask.kernels.emit.dense.scan`."""
    micro = Micro.decode(spec)
    width = micro.vectors * micro.lanes
    rows = panel[panel_at : panel_at + n_features * width].reshape(n_features, width)
    best, label = values[at : at + width], labels[at : at + width]
    second, runner = values[at + width : at + 2 * width], labels[at + width : at + 2 * width]
    for number in range(n_tiles * micro.centres):
        j = first + number
        c = centers[j * row_stride + feature :][:n_features, None]
        own = sums[sums_at + number * width :][:width]
        start = own if micro.carry else starts[j]
        terms = (rows - c) ** 2 if micro.direct else rows * c
        score = start + terms.sum(axis=0, dtype=panel.dtype)
        if micro.mode == SCORES:
            own[:] = score
            continue
        if micro.mode == MINIMA:
            own = sums[sums_at + number // micro.centres * width :][:width]
            own[:] = score if number % micro.centres == 0 else np.minimum(own, score)
        if micro.mode == NUMBERED:
            bits = score.view(labels.dtype)
            bits &= -NUMBERS
            bits |= number % micro.centres
        wins = score < best
        if micro.mode == TWO:
            loser = np.where(wins, best, score)
            loser_label = np.where(wins, label, j)
            follows = score < second
            second[follows] = loser[follows]
            runner[follows] = loser_label[follows]
        if micro.mode in (PAIR, NUMBERED):
            loser = np.where(wins, best, score)
            second[loser < second] = loser[loser < second]
        best[wins] = score[wins]
        label[wins] = j - number % micro.centres if micro.mode in (BLOCK, MINIMA, NUMBERED) else j


def transpose(
    lengths: int,
    n_rows: int,
    rows: Array,
    rows_at: int,
    row_stride: int,
    shift: Array,
    feature: int,
    begin: int,
    end: int,
    panel: Array,
    panel_at: int,
    width: int,
    norms: Array,
    norms_at: int,
) -> None:
    """Twin of :func:`largek_dask.kernels.emit.rows.transpose`."""
    for f in range(32 // rows.itemsize):
        column = rows[rows_at + f : rows_at + f + (n_rows - 1) * row_stride + 1 : row_stride]
        moved = column - shift[feature + f]
        panel[panel_at + f * width : panel_at + f * width + n_rows] = moved
        if lengths and begin <= f < end:
            norms[norms_at : norms_at + n_rows] += moved**2


def square_lengths(
    lanes: int,
    chains: int,
    panel: Array,
    panel_at: int,
    width: int,
    n_features: int,
    out: Array,
) -> None:
    """Twin of :func:`largek_dask.kernels.emit.rows.square_lengths`."""
    rows = panel[panel_at : panel_at + n_features * width].reshape(n_features, width)
    out[:lanes] = (rows[:, :lanes] ** 2).sum(axis=0)


def clear(width: int, ranks: int, label: int, values: Array, labels: Array, at: int) -> None:
    """Twin of :func:`largek_dask.kernels.emit.rows.clear`."""
    values[at : at + ranks * width] = np.inf
    labels[at : at + ranks * width] = label


def conclude(
    width: int,
    values: Array,
    labels: Array,
    at: int,
    norms: Array,
    norms_at: int,
    m: int,
    a: float,
    b: float,
    c: float,
    e: float,
    f: float,
) -> int:
    """Twin of :func:`largek_dask.kernels.emit.rows.conclude`."""
    best, second = values[at : at + 2 * width].reshape(2, width)
    label = labels[at : at + width]
    label += best.view(labels.dtype) & (NUMBERS - 1)
    np.maximum(label, 0, out=label)
    square = norms[norms_at : norms_at + width]
    with np.errstate(invalid="ignore"):
        own = c + e * square + f * np.maximum(best + square, 0)
        return int((second - best > np.fmin(a + b * square, own))[:m].sum())


def settle(
    centres: int,
    panel: Array,
    panel_at: int,
    width: int,
    columns: Array,
    n_features: int,
    starts: Array,
    first: int,
    best: Any,
) -> int:
    """Twin of :func:`largek_dask.kernels.emit.rows.settle`."""
    x = panel[panel_at : panel_at + n_features * width : width]
    block = columns[first // 8 * 8 * n_features :][: 8 * n_features].reshape(n_features, 8)
    gaps = block[:, first % 8 : first % 8 + centres] - x[:, None]
    score = starts[first : first + centres] + (gaps**2).sum(axis=0)
    return first + int(score.argmin())


def tile_within(
    centres: int,
    panel: Array,
    panel_at: int,
    width: int,
    columns: Array,
    n_features: int,
    starts: Array,
    first: int,
    limit: Any,
) -> int:
    """Twin of :func:`largek_dask.kernels.emit.rows.tile_within`."""
    x = panel[panel_at : panel_at + n_features * width : width]
    block = columns[first // 8 * 8 * n_features :][: 8 * n_features].reshape(n_features, 8)
    products = block[:, first % 8 : first % 8 + centres] * x[:, None]
    scores = starts[first : first + centres] + products.sum(axis=0)
    return sum(1 << j for j in range(centres) if scores[j] <= limit)


def frozen(array: Array) -> Array:
    """Twin of :func:`largek_dask.kernels.emit.rows.frozen`."""
    return readonly(array)


def square_distance(
    rows: Array, rows_at: int, centers: Array, centers_at: int, n_features: int
) -> float:
    """Twin of :func:`largek_dask.kernels.emit.rows.square_distance`."""
    x = rows[rows_at : rows_at + n_features].astype(np.float64)
    c = centers[centers_at : centers_at + n_features].astype(np.float64)
    return float(((x - c) ** 2).sum())


def weighted_square_distance(
    rows: Array,
    rows_at: int,
    centers: Array,
    centers_at: int,
    weights: Array,
    weights_at: int,
    n_features: int,
) -> float:
    """Twin of :func:`largek_dask.kernels.emit.rows.weighted_square_distance`."""
    x = rows[rows_at : rows_at + n_features].astype(np.float64)
    c = centers[centers_at : centers_at + n_features].astype(np.float64)
    return float(((x - c) ** 2 * weights[weights_at : weights_at + n_features]).sum())


def four_square_distances(
    rows: Array, rows_at: int, centers: Array, names: Array, n_features: int, out: Array
) -> None:
    """Twin of :func:`largek_dask.kernels.emit.rows.four_square_distances`."""
    for q in range(4):
        at = int(names[q]) * n_features
        out[q] = square_distance(rows, rows_at, centers, at, n_features)


def near_square(rows: Array, rows_at: int, centers: Array, centers_at: int, n_features: int) -> Any:
    """Twin of :func:`largek_dask.kernels.emit.rows.near_square`."""
    gaps = rows[rows_at : rows_at + n_features] - centers[centers_at : centers_at + n_features]
    return (gaps**2).sum(dtype=rows.dtype)


def eight_scores(
    rows: Array, rows_at: int, shift: Array, factors: Array, starts: Array, names: Array,
    n_features: int, out: Array,
) -> None:  # fmt: skip
    """Twin of :func:`largek_dask.kernels.emit.rows.eight_scores`."""
    x = rows[rows_at : rows_at + n_features] - shift[:n_features]
    for q in range(8):
        factor = factors[int(names[q]) * n_features :][:n_features]
        out[q] = starts[names[q]] + (x * factor).sum()


def four_near_squares(
    rows: Array, rows_at: int, centers: Array, names: Array, n_features: int, out: Array
) -> None:
    """Twin of :func:`largek_dask.kernels.emit.rows.four_near_squares`."""
    for q in range(4):
        at = int(names[q]) * n_features
        out[q] = near_square(rows, rows_at, centers, at, n_features)


def four_weighted_square_distances(
    rows: Array,
    rows_at: int,
    centers: Array,
    weights: Array,
    names: Array,
    n_features: int,
    out: Array,
) -> None:
    """Twin of :func:`largek_dask.kernels.emit.rows.four_weighted_square_distances`."""
    for q in range(4):
        at = int(names[q]) * n_features
        out[q] = weighted_square_distance(rows, rows_at, centers, at, weights, at, n_features)


def scan_sparse(
    spec: int,
    data: Array,
    indices: Array,
    begin: int,
    end: int,
    columns: Array,
    at: int,
    starts: Array,
    first: int,
    values: Array,
    labels: Array,
    second: Array,
    second_labels: Array,
    own: int,
) -> None:
    """Twin of :func:`largek_dask.kernels.emit.sparse.scan_sparse`."""
    vectors, two = divmod(spec, 2)
    width = vectors * LANES
    score = starts[first : first + width].copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for i in range(begin, end):
            place = at + int(indices[i]) * width
            score += data[i] * columns[place : place + width]
    lanes = slice(own, own + LANES)
    for v in range(vectors):
        new = score[v * LANES :][:LANES]
        mine = np.arange(first + v * LANES, first + (v + 1) * LANES)
        wins = new < values[lanes]
        if two:
            loser = np.where(wins, values[lanes], new)
            loser_label = np.where(wins, labels[lanes], mine)
            follows = new < second[lanes]
            second[lanes] = np.where(follows, loser, second[lanes])
            second_labels[lanes] = np.where(follows, loser_label, second_labels[lanes])
        values[lanes] = np.where(wins, new, values[lanes])
        labels[lanes] = np.where(wins, mine, labels[lanes])
