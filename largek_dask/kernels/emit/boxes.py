"""LLVM IR for distances of a point to sixteen points or sixteen boxes, one per lane.

Results are float32 bounds, whose rounding errors never change a label.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from largek_dask.kernels.emit.emitter import I32, Emitter, emitted, i64

__all__ = [
    "LANES",
    "ROWS",
    "boxes_within",
    "each_within",
    "gap_square",
    "list_set_bits",
    "points_within",
    "rotate_rows",
]

LANES = 16
ROWS = 4
"""Number of rows that are rotated together."""
CHAINS = 4
"""Number of independent partial sums of a distance; a power of two."""


def _spread(emit: Emitter, point: Any, f: int) -> Any:
    return emit.broadcast(emit.builder.load(emit.at(point, f)))


def _store_within(emit: Emitter, total: Any, limit: Any, out: Any) -> Any:
    """Store squared distances; return a bit for each that does not exceed the limit."""
    emit.store(total, out)
    return emit.bits_set(emit.builder.fcmp_ordered("<=", total, emit.broadcast(limit)))


@emitted(types.int64, "width", "at", limit=types.float32)
def points_within(emit, width, columns, at, point, limit, out):
    """Write squared distances of a point to sixteen points; return which are within a limit.

    Parameters
    ----------
    width : int
        Coordinates. A compile-time constant.
    columns, at : float32 (…,), int
        Coordinate f of point j is ``columns[at + 16 f + j]``.
    point, limit : float32 (width,), float32
    out : float32 (16,)
        Receives the squared distances.

    Returns
    -------
    int
        Bit j is set if the squared distance of point j does not exceed the limit.
    """
    emit, column = emit.of(32, LANES), emit.at(columns, at)
    total = emit.constant(0.0)
    for f in range(width):
        other = emit.load(emit.at(column, f * LANES))
        gap = emit.builder.fsub(other, _spread(emit, point, f))
        total = emit.fma(gap, gap, total)
    return _store_within(emit, total, limit, out)


@emitted(constants="width", integers="n_features")
def rotate_rows(emit, width, rows, places, shift, n_features, basis, out):
    """Write four rows, minus the shift, in another basis, followed by their squared lengths.

    Parameters
    ----------
    width : int
        Coordinates, a multiple of eight. A compile-time constant.
    rows, places, shift, n_features : real (…,), int64 (4,), float64 (d,), int
        Row i is ``rows[places[i] : places[i] + d]`` less the shift; d is at least 1.
    basis : float64 (d * width,)
        Coordinate g is the sum over f of ``basis[f * width + g]`` times feature f.
    out : float64 (4 * (width + 1),)
        Receives, for each row, the coordinates and then the squared length.
    """
    emit, builder, count = emit.of(64, 8), emit.builder, width // 8
    at = [emit.at(rows, builder.load(emit.at(places, i))) for i in range(ROWS)]
    a_row = count + 1

    def with_feature(f, sums):
        # The basis exceeds the first-level cache, so each load serves all four rows.
        line = emit.at(basis, builder.mul(f, i64(width)))
        turned = [emit.load(emit.at(line, 8 * v)) for v in range(count)]
        moved_by, new = builder.load(emit.at(shift, f)), []
        for i in range(ROWS):
            *totals, square = sums[a_row * i : a_row * (i + 1)]
            number = builder.load(emit.at(at[i], f))
            if number.type != emit.real:
                number = builder.fpext(number, emit.real)
            number = builder.fsub(number, moved_by)
            spread = emit.broadcast(number)
            new += [emit.fma(spread, to, total) for to, total in zip(turned, totals, strict=True)]
            new.append(builder.fadd(square, builder.fmul(number, number)))
        return new

    nothing = [emit.constant(0.0)] * count + [ir.Constant(emit.real, 0.0)]
    sums = emit.loop(i64(0), n_features, 1, nothing * ROWS, with_feature)
    for i in range(ROWS):
        *totals, square = sums[a_row * i : a_row * (i + 1)]
        own = (width + 1) * i
        for v, total in enumerate(totals):
            emit.store(total, emit.at(out, own + 8 * v))
        builder.store(square, emit.at(out, own + width))


@emitted(types.int64, integers="at limits_at")
def each_within(emit, values, at, limits, limits_at):
    """Return a mask of the values ``values[at : at + 16]`` that do not exceed their limits."""
    emit = emit.of(32, LANES)
    numbers, highest = emit.load(emit.at(values, at)), emit.load(emit.at(limits, limits_at))
    return emit.bits_set(emit.builder.fcmp_ordered("<=", numbers, highest))


@emitted(types.float32, integers="at others_at count")
def gap_square(emit, points, at, others, others_at, count):
    """Return the squared distance of two points, computed sixteen coordinates at a time.

    Parameters
    ----------
    points, at, others, others_at : float32 (…,), int, float32 (…,), int
        The points are ``points[at : at + count]`` and ``others[others_at : others_at + count]``.
    count : int
        A multiple of 16, at least 16.
    """
    emit, builder = emit.of(32, LANES), emit.builder
    one, other = emit.at(points, at), emit.at(others, others_at)

    def several(f, sums):
        new = []
        for i, total in enumerate(sums):
            place = builder.add(f, i64(i * LANES))
            gap = builder.fsub(emit.load(emit.at(one, place)), emit.load(emit.at(other, place)))
            new.append(emit.fma(gap, gap, total))
        return new

    step = CHAINS * LANES
    end = builder.and_(count, i64(-step))
    sums = emit.loop(i64(0), end, step, [emit.constant(0.0)] * CHAINS, several)
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [builder.fadd(a, b) for a, b in zip(sums[:half], sums[half:], strict=True)]
    return emit.sum_pairwise(emit.loop(end, count, LANES, sums, several)[0])


@emitted(types.int64, integers="mask at", base=types.int32)
def list_set_bits(emit, mask, base, out, at, table, sizes):
    """Write the positions of the set bits of a 16-bit mask, without a branch.

    Parameters
    ----------
    mask, base : int, int32
    out, at : int32 (…,), int
        Receives ``base + j`` for each set bit j, in order, from ``out[at]`` on; the rest of
        ``out[at : at + 16]`` is overwritten with arbitrary values.
    table, sizes : int32 (2048,), int32 (256,)
        For each byte, the positions of its set bits in eight entries, and the number of set bits.

    Returns
    -------
    int
        Index in `out` after the last position.
    """
    emit, builder, kind = emit.of(32, 8), emit.builder, ir.VectorType(I32, 8)
    for half in (0, 8):
        byte = builder.and_(builder.lshr(mask, i64(half)), i64(255))
        line = emit.at(table, builder.mul(byte, i64(8)))
        first = builder.add(base, ir.Constant(I32, half))
        emit.store(builder.add(emit.load(line, kind), emit.broadcast(first)), emit.at(out, at))
        at = builder.add(at, emit.index(sizes, byte))
    return at


@emitted(types.int64, "width", "at out_at", limit=types.float32)
def boxes_within(emit, width, low, high, at, point, limit, out, out_at):
    """Write squared distances of a point to sixteen boxes; return which are within a limit.

    Parameters
    ----------
    width : int
        Coordinates. A compile-time constant.
    low, high, at : float32 (…,), float32 (…,), int
        Box j ranges from ``low[at + 16 f + j]`` to ``high[at + 16 f + j]`` in coordinate f.
    point, limit : float32 (width,), float32
    out, out_at : float32 (…,), int
        Receives the squared distances, from ``out[out_at]`` on; they are 0 inside a box.

    Returns
    -------
    int
        Bit j is set if the squared distance of box j does not exceed the limit.
    """
    emit, builder = emit.of(32, LANES), emit.builder
    lower, upper, zero = emit.at(low, at), emit.at(high, at), emit.constant(0.0)
    total = zero
    for f in range(width):
        place = _spread(emit, point, f)
        below = builder.fsub(emit.load(emit.at(lower, f * LANES)), place)
        above = builder.fsub(place, emit.load(emit.at(upper, f * LANES)))
        gap = builder.select(builder.fcmp_ordered(">", below, above), below, above)
        gap = builder.select(builder.fcmp_ordered(">", gap, zero), gap, zero)
        total = emit.fma(gap, gap, total)
    return _store_within(emit, total, limit, emit.at(out, out_at))
