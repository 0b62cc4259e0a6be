"""LLVM IR for one point against sixteen others, or against sixteen boxes: lanes are those.

What comes out are bounds, in single precision whatever the rows are, and no decision hangs on their
last bits: which of the sixteen are within a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from largek_dask.kernels.emit.emitter import I32, I64, Emitter, typed_intrinsic

__all__ = [
    "LANES",
    "ROWS",
    "boxes_within",
    "each_within",
    "gap_square",
    "listed_bits",
    "points_within",
    "turn",
]

LANES = 16
ROWS = 4
"""Rows that are turned together."""
ABREAST = 4
"""Sums of a distance that are added to in turn: each addition waits only for the one before in its
own sum. A power of two."""


def _looped(
    emit: Emitter, begin: Any, end: Any, step: int, sums: list[Any], add: Callable[..., list[Any]]
) -> list[Any]:
    """Sums after ``add(f, sums)`` for every f from ``begin`` below ``end``, which may be none."""
    builder = emit.builder
    before = builder.block
    names = ("head", "body", "after")
    head, body, after = (builder.append_basic_block(name) for name in names)
    builder.branch(head)
    builder.position_at_end(head)
    f, running = builder.phi(I64), [builder.phi(total.type) for total in sums]
    builder.cbranch(builder.icmp_signed("<", f, end), body, after)
    builder.position_at_end(body)
    new, following = add(f, running), builder.add(f, ir.Constant(I64, step))
    body = builder.block
    builder.branch(head)
    f.add_incoming(begin, before)
    f.add_incoming(following, body)
    for phi, total, later in zip(running, sums, new, strict=True):
        phi.add_incoming(total, before)
        phi.add_incoming(later, body)
    builder.position_at_end(after)
    return running


def _added(builder: Any, sums: list[Any], n: int) -> list[Any]:
    """The n sums of each kind, added up in pairs."""
    while n > 1:
        n, half = n // 2, len(sums) // 2
        sums = [builder.fadd(a, b) for a, b in zip(sums[:half], sums[half:], strict=True)]
    return sums


def _spread(emit: Emitter, point: Any, f: int) -> Any:
    return emit.spread(emit.builder.load(emit.at(point, f)))


def _concluded(emit: Emitter, total: Any, limit: Any, out: Any) -> Any:
    """Write the squares; a bit for each that is not above the limit."""
    emit.store(total, out)
    within = emit.builder.fcmp_ordered("<=", total, emit.spread(limit))
    return emit.builder.zext(emit.builder.bitcast(within, ir.IntType(LANES)), I64)


@typed_intrinsic
def points_within(typingctx, width, columns, at, point, limit, out):
    """Squared distances of a point to sixteen others, and which are not above a limit.

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
        Bit j is set where that of point j is not above the limit.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    count = width.literal_value
    sig = types.int64(width, columns, types.int64, point, types.float32, out)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, 32, LANES)
        column, own = emit.at(emit.data(1), args[2]), emit.data(3)
        total = ir.Constant(emit.vector, [0.0] * LANES)
        for f in range(count):
            gap = builder.fsub(emit.load(emit.at(column, f * LANES)), _spread(emit, own, f))
            total = emit.fma(gap, gap, total)
        return _concluded(emit, total, args[4], emit.data(5))

    return sig, codegen


@typed_intrinsic
def turn(typingctx, width, rows, places, shift, n_features, basis, out):
    """Four moved rows in other coordinates, and their squared lengths.

    Parameters
    ----------
    width : int
        Coordinates, a multiple of eight. A compile-time constant.
    rows, places, shift, n_features : real (…,), int64 (4,), float64 (d,), int
        Row i is ``rows[places[i] : places[i] + d]``, less the shift; d is at least 1.
    basis : float64 (d * width,)
        Coordinate g gets ``basis[f * width + g]`` times feature f.
    out : float64 (4 * (width + 1),)
        Receives row by row the coordinates and, last, the squared length of the moved row.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    count = width.literal_value // 8
    sig = types.void(width, rows, places, shift, types.int64, basis, out)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, 64, 8)
        shift_at, table, out_at = emit.data(3), emit.data(5), emit.data(6)
        at = [emit.at(emit.data(1), builder.load(emit.at(emit.data(2), i))) for i in range(ROWS)]
        a_row = count + 1

        def with_feature(f, sums):
            # The basis is too large for the nearest cache: what is loaded serves all four rows.
            line = emit.at(table, builder.mul(f, ir.Constant(I64, 8 * count)))
            turned = [emit.load(emit.at(line, 8 * v)) for v in range(count)]
            moved_by, new = builder.load(emit.at(shift_at, f)), []
            for i in range(ROWS):
                *totals, square = sums[a_row * i : a_row * (i + 1)]
                number = builder.load(emit.at(at[i], f))
                if number.type != emit.real:
                    number = builder.fpext(number, emit.real)
                number = builder.fsub(number, moved_by)
                spread = emit.spread(number)
                new += [
                    emit.fma(spread, to, total) for to, total in zip(turned, totals, strict=True)
                ]
                new.append(builder.fadd(square, builder.fmul(number, number)))
            return new

        nothing = [ir.Constant(emit.vector, [0.0] * 8)] * count + [ir.Constant(emit.real, 0.0)]
        sums = _looped(emit, ir.Constant(I64, 0), args[4], 1, nothing * ROWS, with_feature)
        for i in range(ROWS):
            *totals, square = sums[a_row * i : a_row * (i + 1)]
            own = (8 * count + 1) * i
            for v, total in enumerate(totals):
                emit.store(total, emit.at(out_at, own + 8 * v))
            builder.store(square, emit.at(out_at, own + 8 * count))
        return context.get_dummy_value()

    return sig, codegen


@typed_intrinsic
def each_within(typingctx, values, at, limits, limits_at):
    """A bit for each of sixteen numbers from ``values[at]`` on that is not above its own limit."""
    sig = types.int64(values, types.int64, limits, types.int64)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, 32, LANES)
        numbers = emit.load(emit.at(emit.data(0), args[1]))
        within = builder.fcmp_ordered("<=", numbers, emit.load(emit.at(emit.data(2), args[3])))
        return builder.zext(builder.bitcast(within, ir.IntType(LANES)), I64)

    return sig, codegen


@typed_intrinsic
def gap_square(typingctx, points, at, others, others_at, count):
    """The squared distance of two points, coordinates side by side, sixteen at a time.

    Parameters
    ----------
    points, at, others, others_at : float32 (…,), int, float32 (…,), int
        The points are ``points[at : at + count]`` and ``others[others_at : others_at + count]``.
    count : int
        A multiple of 16, at least 16.
    """
    sig = types.float32(points, types.int64, others, types.int64, types.int64)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, 32, LANES)
        one, other = emit.at(emit.data(0), args[1]), emit.at(emit.data(2), args[3])

        def with_sixteen(f, sums):
            gap = builder.fsub(emit.load(emit.at(one, f)), emit.load(emit.at(other, f)))
            return [emit.fma(gap, gap, sums[0])]

        def several(f, sums):
            return [
                with_sixteen(builder.add(f, ir.Constant(I64, i * LANES)), [total])[0]
                for i, total in enumerate(sums)
            ]

        step = ABREAST * LANES
        nothing = [ir.Constant(emit.vector, [0.0] * LANES)]
        whole = builder.and_(args[4], ir.Constant(I64, -step))
        sums = _looped(emit, ir.Constant(I64, 0), whole, step, nothing * ABREAST, several)
        sums = _added(builder, sums, ABREAST)
        [total] = _looped(emit, whole, args[4], LANES, sums, with_sixteen)
        lanes = LANES
        while lanes > 1:
            lanes //= 2
            parts = (range(lanes), range(lanes, 2 * lanes))
            total = builder.fadd(*(emit.shuffle(total, total, list(part)) for part in parts))
        return builder.extract_element(total, ir.Constant(I32, 0))

    return sig, codegen


@typed_intrinsic
def listed_bits(typingctx, mask, base, out, at, table, sizes):
    """List which of sixteen bits are set, without a branch.

    Parameters
    ----------
    mask, base : int, int32
    out, at : int32 (…,), int
        ``base + j`` is written for each bit j that is set, in order, from ``out[at]`` on; of the
        sixteen places from there on the others are written to as well.
    table, sizes : int32 (2048,), int32 (256,)
        Of each byte the numbers of the bits that are set, at eight places, and how many are.

    Returns
    -------
    int
        Where the next ones go.
    """
    sig = types.int64(types.int64, types.int32, out, types.int64, table, sizes)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, 32, 8)
        place, kind = args[3], ir.VectorType(I32, 8)
        for half in (0, 8):
            byte = builder.lshr(args[0], ir.Constant(I64, half))
            byte = builder.and_(byte, ir.Constant(I64, 255))
            line = emit.at(emit.data(4), builder.mul(byte, ir.Constant(I64, 8)))
            first = builder.add(args[1], ir.Constant(I32, half))
            numbers = builder.add(emit.load(line, kind), emit.spread(first))
            emit.store(numbers, emit.at(emit.data(2), place))
            size = builder.load(emit.at(emit.data(5), byte))
            place = builder.add(place, builder.sext(size, I64))
        return place

    return sig, codegen


@typed_intrinsic
def boxes_within(typingctx, width, low, high, at, point, limit, out, out_at):
    """Squared distances of a point to sixteen boxes, and which are not above a limit.

    Parameters
    ----------
    width : int
        Coordinates. A compile-time constant.
    low, high, at : float32 (…,), float32 (…,), int
        Coordinate f of the corners of box j is ``low[at + 16 f + j]`` and ``high[at + 16 f + j]``.
    point, limit : float32 (width,), float32
    out, out_at : float32 (…,), int
        Receives the squared distances, from ``out[out_at]`` on; 0 within a box.

    Returns
    -------
    int
        Bit j is set where that of box j is not above the limit.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    count = width.literal_value
    sig = types.int64(width, low, high, types.int64, point, types.float32, out, types.int64)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, 32, LANES)
        lower, upper = emit.at(emit.data(1), args[3]), emit.at(emit.data(2), args[3])
        own, zero = emit.data(4), ir.Constant(emit.vector, [0.0] * LANES)
        total = zero
        for f in range(count):
            place = _spread(emit, own, f)
            below = builder.fsub(emit.load(emit.at(lower, f * LANES)), place)
            above = builder.fsub(place, emit.load(emit.at(upper, f * LANES)))
            gap = builder.select(builder.fcmp_ordered(">", below, above), below, above)
            gap = builder.select(builder.fcmp_ordered(">", gap, zero), gap, zero)
            total = emit.fma(gap, gap, total)
        return _concluded(emit, total, args[5], emit.at(emit.data(6), args[7]))

    return sig, codegen
