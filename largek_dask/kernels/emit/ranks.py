"""LLVM IR that finds, lane by lane, the smallest scores and the scores within limits.

Lanes are rows, as in :mod:`~largek_dask.kernels.emit.dense`, and no operation combines lanes.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types

from largek_dask.kernels.emit.emitter import emitted, i64

__all__ = ["insert_ranked", "lane_minima", "lanes_within", "lowest_bit"]


@emitted(constants="width", integers="at count out_at")
def lane_minima(emit, width, values, at, count, out, out_at):
    """Write the minimum over i < `count` of ``values[at + i*width + q]`` for each lane q.

    The minimum is infinite if there are no values; NaN is skipped. `width` is a compile-time
    constant.
    """
    emit, builder = emit.panel("values", width), emit.builder
    places, first = range(0, width, emit.lanes), emit.at(values, at)

    def lower(i, found):
        row, new = emit.at(first, builder.mul(i, i64(width))), []
        for place, old in zip(places, found, strict=True):
            value = emit.load(emit.at(row, place))
            new.append(builder.select(emit.smaller(value, old), value, old))
        return new

    results = emit.loop(i64(0), count, 1, [emit.constant(float("inf"))] * len(places), lower)
    for place, result in zip(places, results, strict=True):
        emit.store(result, emit.at(out, out_at, place))


@emitted(constants="width", integers="at ranks own")
def insert_ranked(emit, width, values, at, ranks, best, own):
    """Insert one value per lane into the lane's `ranks` smallest values; drop the largest.

    The values are ascending: ``best[own + r*width + q]`` has rank r in lane q. NaN is ignored.
    """
    emit, builder = emit.panel("values", width), emit.builder
    places, table = range(0, width, emit.lanes), emit.at(best, own)

    def replace(r, carried):
        row, new = emit.at(table, builder.mul(r, i64(width))), []
        for place, moving in zip(places, carried, strict=True):
            old = emit.load(emit.at(row, place))
            less = emit.smaller(moving, old)
            emit.store(builder.select(less, moving, old), emit.at(row, place))
            new.append(builder.select(less, old, moving))
        return new

    given = [emit.load(emit.at(values, at, place)) for place in places]
    emit.loop(i64(0), ranks, 1, given, replace)


@emitted(types.uint64, "width", "at")
def lanes_within(emit, width, values, at, limits):
    """Return a mask whose bit q is set if ``values[at + q]`` does not exceed the limit of lane q.

    There are at most 64 lanes. The bit is also set if the value or the limit is NaN.
    """
    emit, builder, result = emit.panel("values", width), emit.builder, i64(0)
    for place in range(0, width, emit.lanes):
        value, limit = emit.load(emit.at(values, at, place)), emit.load(emit.at(limits, place))
        bits = emit.bits_set(builder.fcmp_unordered("<=", value, limit))
        result = builder.or_(result, builder.shl(bits, i64(place)))
    return result


@emitted(types.int64, mask=types.uint64)
def lowest_bit(emit, mask):
    """Return the position of the lowest set bit of a mask that is not 0."""
    return emit.builder.cttz(mask, ir.Constant(ir.IntType(1), 1))
