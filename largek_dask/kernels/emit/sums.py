"""LLVM IR of exact sums: a row in steps of a grid, added to the sums of a cluster.

Eight features at a time on any machine; integers have the same bits in any
order, and each step is rounded once, by itself.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from largek_dask.kernels.emit.emitter import I64, Emitter, typed_intrinsic

__all__ = ["add_row", "move_row"]

LANES = 8
MAGIC = 6755399441055744.0  # 1.5 * 2^52: sums with it are rounded to a whole number,
MAGIC_BITS = 0x4338000000000000  # which is the distance of its bits, as an integer, from these


@typed_intrinsic
def add_row(typingctx, x, i, shift, scale, sums, into, later, ahead):
    """Add row `i` of a table to ``sums[into]``, and prefetch what comes next.

    Parameters
    ----------
    x, i : (n, d) of any number type and layout, int
    shift, scale : float64 (d,), float64
        ``(x - shift) * scale``, rounded to whole numbers, is added. `scale` is a power of
        two, so that rounding of the product changes nothing.
    sums, into : int64 (k, d), int
    later, ahead : int
        Row and cluster that are needed soon.
    """
    integer = types.int64
    sig = types.void(x, integer, shift, types.float64, sums, integer, integer, integer)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, 64, LANES)
        _emit_row(emit, [(args[5], 1)], args[6], args[7])
        return context.get_dummy_value()

    return sig, codegen


@typed_intrinsic
def move_row(typingctx, x, i, shift, scale, sums, out_of, into):
    """Move the same row from ``sums[out_of]`` to ``sums[into]``, another cluster."""
    integer = types.int64
    sig = types.void(x, integer, shift, types.float64, sums, integer, integer)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, 64, LANES)
        _emit_row(emit, [(args[5], -1), (args[6], 1)])
        return context.get_dummy_value()

    return sig, codegen


def _emit_row(
    emit: Emitter, targets: list[tuple[Any, int]], later: Any = None, ahead: Any = None
) -> None:
    """Emit all features: eight at a time, then one by one."""
    builder = emit.builder
    x = emit.context.make_array(emit.sig.args[0])(emit.context, builder, emit.args[0])
    row_stride, stride = (builder.extract_value(x.strides, axis) for axis in (0, 1))
    width = builder.extract_value(x.shape, 1)
    table = builder.ptrtoint(x.data, I64)
    row = builder.add(table, builder.mul(emit.args[1], row_stride))
    begin, shift, scale = ir.Constant(I64, 0), emit.data(2), emit.args[3]
    sums = [(emit.at(emit.data(4), builder.mul(c, width)), sign) for c, sign in targets]
    whole = builder.and_(width, ir.Constant(I64, -LANES))
    if ahead is not None:
        later = builder.add(table, builder.mul(later, row_stride))
        ahead = emit.at(emit.data(4), builder.mul(ahead, width))
    for lanes, end in ((LANES, whole), (1, width)):
        before = builder.block
        loop, done = (builder.append_basic_block(name) for name in ("sums", "sums.done"))
        builder.cbranch(builder.icmp_signed("<", begin, end), loop, done)
        builder.position_at_end(loop)
        f = builder.phi(I64)
        f.add_incoming(begin, before)
        if ahead is not None and lanes > 1:
            emit.prefetch(emit.at(ahead, f), soon=3)
            place = builder.add(later, builder.mul(f, stride))
            emit.prefetch(builder.inttoptr(place, ir.IntType(8).as_pointer()), soon=3)
        part = Emitter(emit.context, builder, emit.sig, emit.args, 64, lanes)
        steps = _emit_steps(part, _numbers(part, row, stride, f), emit.at(shift, f), scale)
        for pointer, sign in sums:
            place = emit.at(pointer, f)
            old = part.load(place, part.labels)
            part.store(builder.add(old, steps) if sign > 0 else builder.sub(old, steps), place)
        following = builder.add(f, ir.Constant(I64, lanes))
        f.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, end), loop, done)
        builder.position_at_end(done)
        begin = whole


def _numbers(emit: Emitter, row: Any, stride: Any, f: Any) -> Any:
    """Load features from `f` on of a row at an address, in float64."""
    builder, kind = emit.builder, emit.sig.args[0]
    number = emit.context.get_data_type(kind.dtype)
    stored = ir.VectorType(number, emit.lanes)
    address = builder.add(row, builder.mul(f, stride))
    if kind.layout == "C":
        pointer = builder.inttoptr(address, stored.as_pointer())
        value = builder.load(pointer)
        value.align = kind.dtype.bitwidth // 8
    else:
        value = ir.Constant(stored, ir.Undefined)
        for lane in range(emit.lanes):
            pointer = builder.inttoptr(address, number.as_pointer())
            value = builder.insert_element(value, builder.load(pointer), ir.Constant(I64, lane))
            address = builder.add(address, stride)
    if isinstance(kind.dtype, types.Integer):
        convert = builder.sitofp if kind.dtype.signed else builder.uitofp
        return convert(value, emit.vector)
    return value if kind.dtype.bitwidth == 64 else builder.fpext(value, emit.vector)


def _emit_steps(emit: Emitter, numbers: Any, shift: Any, scale: Any) -> Any:
    """Return numbers in whole steps."""
    builder = emit.builder
    moved = builder.fsub(numbers, emit.load(shift))
    magic = ir.Constant(emit.vector, [MAGIC] * emit.lanes)
    bits = builder.bitcast(emit.fma(moved, emit.spread(scale), magic), emit.labels)
    return builder.sub(bits, ir.Constant(emit.labels, [MAGIC_BITS] * emit.lanes))
