"""LLVM IR for the smallest of many scores, lane by lane: limits, and scores within them.

As in :mod:`~largek_dask.kernels.emit.dense`, lanes are rows, and nothing is computed across them:
results for a row do not depend on the width.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from largek_dask.kernels.emit.emitter import I64, Emitter, bits_of, typed_intrinsic
from largek_dask.kernels.emit.rows import _piece

__all__ = ["insert", "lowest", "lowest_bit", "within"]


def _smaller(emit: Emitter, new: Any, old: Any) -> Any:
    return emit.builder.fcmp_ordered("<", new, old)


@typed_intrinsic
def lowest(typingctx, width, values, at, count, out, out_at):
    """Find the smallest of `count` numbers of each lane: those of ``values[at + i*width + q]``.

    Infinity if there is none; NaN is passed over. `width` is a compile-time constant.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    lanes, integer = width.literal_value, types.int64
    sig = types.void(width, values, integer, integer, out, integer)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, bits_of(values), _piece(lanes, bits_of(values)))
        places = range(0, lanes, emit.lanes)
        first = emit.at(emit.data(1), args[2])
        none = ir.Constant(emit.vector, [float("inf")] * emit.lanes)
        before = builder.block
        loop, done = builder.append_basic_block("lowest"), builder.append_basic_block("lowest.done")
        builder.cbranch(builder.icmp_signed(">", args[3], ir.Constant(I64, 0)), loop, done)
        builder.position_at_end(loop)
        i = builder.phi(I64)
        i.add_incoming(ir.Constant(I64, 0), before)
        found, new = [builder.phi(emit.vector) for _ in places], []
        row = emit.at(first, builder.mul(i, ir.Constant(I64, lanes)))
        for place, old in zip(places, found, strict=True):
            old.add_incoming(none, before)
            value = emit.load(emit.at(row, place))
            new.append(builder.select(_smaller(emit, value, old), value, old))
            old.add_incoming(new[-1], loop)
        following = builder.add(i, ir.Constant(I64, 1))
        i.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, args[3]), loop, done)
        builder.position_at_end(done)
        results = [builder.phi(emit.vector) for _ in places]
        for result, value in zip(results, new, strict=True):
            result.add_incoming(none, before)
            result.add_incoming(value, loop)
        for place, result in zip(places, results, strict=True):
            emit.store(result, emit.at(emit.data(4), args[5], place))
        return context.get_dummy_value()

    return sig, codegen


@typed_intrinsic
def insert(typingctx, width, values, at, ranks, best, own):
    """Put a number of each lane among its `ranks` smallest, ascending; the largest drops out.

    The number of rank r and lane q is ``best[own + r*width + q]``. NaN changes nothing.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    lanes, integer = width.literal_value, types.int64
    sig = types.void(width, values, integer, integer, best, integer)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, bits_of(values), _piece(lanes, bits_of(values)))
        places = range(0, lanes, emit.lanes)
        first, table = emit.at(emit.data(1), args[2]), emit.at(emit.data(4), args[5])
        given = [emit.load(emit.at(first, place)) for place in places]
        before = builder.block
        loop, done = builder.append_basic_block("insert"), builder.append_basic_block("insert.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        r = builder.phi(I64)
        r.add_incoming(ir.Constant(I64, 0), before)
        carried = [builder.phi(emit.vector) for _ in places]
        row = emit.at(table, builder.mul(r, ir.Constant(I64, lanes)))
        for place, value, moving in zip(places, given, carried, strict=True):
            moving.add_incoming(value, before)
            old = emit.load(emit.at(row, place))
            less = _smaller(emit, moving, old)
            emit.store(builder.select(less, moving, old), emit.at(row, place))
            moving.add_incoming(builder.select(less, old, moving), loop)
        following = builder.add(r, ir.Constant(I64, 1))
        r.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, args[3]), loop, done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return sig, codegen


@typed_intrinsic
def within(typingctx, width, values, at, limits):
    """Return a bit per lane, at most 64: set where ``values[at + q]`` does not exceed its limit.

    It is also set for NaN, and where the limit is NaN.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    lanes, integer = width.literal_value, types.int64
    sig = types.uint64(width, values, integer, limits)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, bits_of(values), _piece(lanes, bits_of(values)))
        result = ir.Constant(I64, 0)
        for place in range(0, lanes, emit.lanes):
            value = emit.load(emit.at(emit.data(1), args[2], place))
            limit = emit.load(emit.at(emit.data(3), place))
            inside = builder.fcmp_unordered("<=", value, limit)
            bits = builder.zext(builder.bitcast(inside, ir.IntType(emit.lanes)), I64)
            result = builder.or_(result, builder.shl(bits, ir.Constant(I64, place)))
        return result

    return sig, codegen


@typed_intrinsic
def lowest_bit(typingctx, mask):
    """Return the number of the lowest set bit of a mask that is not 0."""
    sig = types.int64(types.uint64)

    def codegen(context, builder, sig, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return sig, codegen
