"""Plain numpy equivalents of the emitted micro-kernels, for runs without a compiler.

Functions have the names of the micro-kernels. They add in another order and without fused
operations, so results equal those of compiled code only up to rounding errors.
"""

from __future__ import annotations

import numpy as np

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.tile import BLOCK, MINIMA, NUMBERED, NUMBERS, PAIR, SCORES, TWO, Micro

LANES = 16
"""Number of centres per vector, as in :mod:`~largek_dask.kernels.emit.sparse`."""
MAGIC, MAGIC_BITS = 6755399441055744.0, 0x4338000000000000
"""Constants for rounding floats to integers, as in :mod:`~largek_dask.kernels.emit.row_sums`."""

as_readonly = readonly


def scan(
    spec, panel, panel_at, centers, row_stride, feature, n_features, starts, first, n_tiles, values,
    labels, at, sums, sums_at, ahead, ahead_at,
):  # fmt: skip
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
    lengths, n_rows, rows, rows_at, row_stride, shift, feature, begin, end, panel, panel_at, width,
    norms, norms_at,
):  # fmt: skip
    for f in range(32 // rows.itemsize):
        column = rows[rows_at + f : rows_at + f + (n_rows - 1) * row_stride + 1 : row_stride]
        moved = column - shift[feature + f]
        panel[panel_at + f * width : panel_at + f * width + n_rows] = moved
        if lengths and begin <= f < end:
            norms[norms_at : norms_at + n_rows] += moved**2


def square_lengths(lanes, chains, panel, panel_at, width, n_features, out):
    rows = panel[panel_at : panel_at + n_features * width].reshape(n_features, width)
    out[:lanes] = (rows[:, :lanes] ** 2).sum(axis=0)


def reset_winners(width, ranks, label, values, labels, at):
    values[at : at + ranks * width] = np.inf
    labels[at : at + ranks * width] = label


def decode_labels(width, values, labels, at, norms, norms_at, m, a, b, c, e, f):
    best, second = values[at : at + 2 * width].reshape(2, width)
    label = labels[at : at + width]
    label += best.view(labels.dtype) & (NUMBERS - 1)
    np.maximum(label, 0, out=label)
    square = norms[norms_at : norms_at + width]
    with np.errstate(invalid="ignore"):
        own = c + e * square + f * np.maximum(best + square, 0)
        return int((second - best > np.fmin(a + b * square, own))[:m].sum())


def find_score(centres, panel, panel_at, width, columns, n_features, starts, first, best):
    x = panel[panel_at : panel_at + n_features * width : width]
    block = columns[first // 8 * 8 * n_features :][: 8 * n_features].reshape(n_features, 8)
    gaps = block[:, first % 8 : first % 8 + centres] - x[:, None]
    score = starts[first : first + centres] + (gaps**2).sum(axis=0)
    return first + int(score.argmin())


def tile_within(centres, panel, panel_at, width, columns, n_features, starts, first, limit):
    x = panel[panel_at : panel_at + n_features * width : width]
    block = columns[first // 8 * 8 * n_features :][: 8 * n_features].reshape(n_features, 8)
    products = block[:, first % 8 : first % 8 + centres] * x[:, None]
    scores = starts[first : first + centres] + products.sum(axis=0)
    return sum(1 << j for j in range(centres) if scores[j] <= limit)


def square_distance(rows, rows_at, centers, centers_at, n_features):
    x = rows[rows_at : rows_at + n_features].astype(np.float64)
    c = centers[centers_at : centers_at + n_features].astype(np.float64)
    return float(((x - c) ** 2).sum())


def row_product(rows, rows_at, centers, centers_at, n_features):
    x = rows[rows_at : rows_at + n_features].astype(np.float64)
    return float((x * centers[centers_at : centers_at + n_features]).sum())


def weighted_square_distance(rows, rows_at, centers, centers_at, weights, weights_at, n_features):
    x = rows[rows_at : rows_at + n_features].astype(np.float64)
    c = centers[centers_at : centers_at + n_features].astype(np.float64)
    return float(((x - c) ** 2 * weights[weights_at : weights_at + n_features]).sum())


def four_square_distances(rows, rows_at, centers, names, n_features, out):
    for q in range(4):
        at = int(names[q]) * n_features
        out[q] = square_distance(rows, rows_at, centers, at, n_features)


def near_square(rows, rows_at, centers, centers_at, n_features):
    gaps = rows[rows_at : rows_at + n_features] - centers[centers_at : centers_at + n_features]
    return (gaps**2).sum(dtype=rows.dtype)


def eight_scores(rows, rows_at, shift, factors, starts, names, n_features, out):
    x = rows[rows_at : rows_at + n_features] - shift[:n_features]
    for q in range(8):
        factor = factors[int(names[q]) * n_features :][:n_features]
        out[q] = starts[names[q]] + (x * factor).sum()


def four_near_squares(rows, rows_at, centers, names, n_features, out):
    for q in range(4):
        at = int(names[q]) * n_features
        out[q] = near_square(rows, rows_at, centers, at, n_features)


def four_weighted_square_distances(rows, rows_at, centers, weights, names, n_features, out):
    for q in range(4):
        at = int(names[q]) * n_features
        out[q] = weighted_square_distance(rows, rows_at, centers, at, weights, at, n_features)


def scan_sparse(
    spec, data, indices, begin, end, columns, at, starts, first, values, labels, second,
    second_labels, own,
):  # fmt: skip
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


def gather(
    lengths, rows, places, place, stride, shift, feature, counted, panel, panel_at, width, norms,
    norms_at,
):  # fmt: skip
    side = 32 // rows.itemsize
    for r in range(side):
        first = int(places[place + r]) * stride + feature
        moved = rows[first : first + side] - shift[feature : feature + side]
        panel[panel_at + r : panel_at + r + (side - 1) * width + 1 : width] = moved
        if lengths:
            norms[norms_at + r] += (moved[counted:] ** 2).sum()


def prefetch(rows, at):
    """Do nothing: prefetching affects only speed."""


def lane_minima(width, values, at, count, out, out_at):
    table = values[at : at + count * width].reshape(count, width)
    out[out_at : out_at + width] = np.fmin.reduce(table, axis=0, initial=np.inf)


def insert_ranked(width, values, at, ranks, best, own):
    table = best[own : own + ranks * width].reshape(ranks, width)
    both = np.concatenate([table, values[None, at : at + width]])
    table[:] = np.sort(both, axis=0)[:ranks]  # NaN comes last


def lanes_within(width, values, at, limits):
    inside = ~(values[at : at + width] > limits[:width])
    return sum(1 << int(q) for q in np.flatnonzero(inside))


def lowest_bit(mask):
    return (int(mask) & -int(mask)).bit_length() - 1


def rotate_rows(width, rows, places, shift, n_features, basis, out):
    own = out.reshape(len(places), width + 1)
    for turned, at in zip(own, places.tolist(), strict=True):
        moved = rows[at : at + n_features].astype(np.float64) - shift
        turned[:width] = (moved[:, None] * basis.reshape(n_features, width)).sum(axis=0)
        turned[width] = (moved * moved).sum()


def points_within(width, columns, at, point, limit, out):
    others = columns[at : at + LANES * width].reshape(width, LANES)
    out[:LANES] = ((others - point[:width, None]) ** 2).sum(axis=0, dtype=np.float32)
    return _bits(out[:LANES] <= limit)


def boxes_within(width, low, high, at, point, limit, out, out_at):
    lower, upper = (part[at : at + LANES * width].reshape(width, LANES) for part in (low, high))
    own = point[:width, None]
    gaps = np.maximum(np.maximum(lower - own, own - upper), np.float32(0))
    out[out_at : out_at + LANES] = (gaps**2).sum(axis=0, dtype=np.float32)
    return _bits(out[out_at : out_at + LANES] <= limit)


def each_within(values, at, limits, limits_at):
    return _bits(values[at : at + LANES] <= limits[limits_at : limits_at + LANES])


def gap_square(points, at, others, others_at, count):
    gaps = points[at : at + count] - others[others_at : others_at + count]
    return (gaps * gaps).sum(dtype=np.float32)


def list_set_bits(mask, base, out, at, table, sizes):
    for half in (0, 8):
        byte = int(mask) >> half & 255
        out[at : at + 8] = base + half + table[8 * byte : 8 * byte + 8]
        at += int(sizes[byte])
    return at


def _bits(within):
    """Return an integer whose bit j is set if element j is true."""
    return sum(1 << int(j) for j in np.flatnonzero(within))


def _steps(x, i, shift, scale):
    """Return a row, minus the shift, rounded to whole steps of the grid."""
    magic = (x[i].astype(np.float64) - shift) * scale + MAGIC
    steps = magic.view(np.int64) - MAGIC_BITS
    return steps


def add_row(x, i, shift, scale, sums, into, later, ahead):
    sums[into] += _steps(x, i, shift, scale)


def row_square(x, i, shift):
    squares = (x[i].astype(np.float64) - shift) ** 2
    whole = len(squares) // 8 * 8
    lanes = squares[:whole].reshape(-1, 8).sum(axis=0)
    lanes[: len(squares) - whole] += squares[whole:]
    while len(lanes) > 1:
        lanes = lanes[::2] + lanes[1::2]
    return lanes[0]


def move_row(x, i, shift, scale, sums, out_of, into):
    steps = _steps(x, i, shift, scale)
    sums[out_of] -= steps
    sums[into] += steps
