"""LLVM IR of exact sums: rows are rounded to steps of a grid and added to the sums of a cluster.

Each number is rounded separately, and sums of integers do not depend on the order of addition.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from largek_dask.kernels.emit.emitter import I64, Emitter, emitted, i64

__all__ = ["add_row", "move_row", "row_square"]

LANES = 8
MAGIC, MAGIC_BITS = 6755399441055744.0, 0x4338000000000000
"""Constants for rounding floats to integers, as in :mod:`largek_dask.kernels.exact.numbers`."""


@emitted(integers="i into later ahead", scale=types.float64)
def add_row(emit, x, i, shift, scale, sums, into, later, ahead):
    """Add row `i` of a table to ``sums[into]``, and prefetch the next row and cluster.

    Parameters
    ----------
    x, i : (n, d) of any number type and layout, int
    shift, scale : float64 (d,), float64
        ``(x - shift) * scale``, rounded to whole numbers, is added. `scale` is a power of two, so
        the product itself is exact.
    sums, into : int64 (k, d), int
    later, ahead : int
        Row and cluster to prefetch.
    """
    _emit_row(emit, i, shift, scale, sums, [(into, 1)], later, ahead)


@emitted(integers="i out_of into", scale=types.float64)
def move_row(emit, x, i, shift, scale, sums, out_of, into):
    """Subtract row `i` from ``sums[out_of]``, and add it to ``sums[into]``."""
    _emit_row(emit, i, shift, scale, sums, [(out_of, -1), (into, 1)])


@emitted(types.float64, integers="i")
def row_square(emit, x, i, shift):
    """Return the sum of ``(x[i] - shift)**2``, added to eight partial sums in turn.

    `x` (n, d) may have any number type and layout; `shift` (d,) is float64.
    """
    builder, array = emit.builder, emit.array("x")
    row_stride, stride = (builder.extract_value(array.strides, axis) for axis in (0, 1))
    width = builder.extract_value(array.shape, 1)
    row = builder.add(builder.ptrtoint(array.data, I64), builder.mul(i, row_stride))
    whole = builder.and_(width, i64(-LANES))

    def squares(part: Emitter, f: Any) -> Any:
        numbers = _numbers(part, row, stride, f)
        moved = builder.fsub(numbers, part.load(part.at(shift, f)))
        return builder.fmul(moved, moved)

    many, one = emit.of(64, LANES), emit.of(64, 1)
    total = many.constant(0.0)
    [total] = emit.loop(
        i64(0), whole, LANES, [total], lambda f, sums: [builder.fadd(sums[0], squares(many, f))]
    )

    def add(f: Any, sums: list[Any]) -> list[Any]:
        lane, square = builder.sub(f, whole), squares(one, f)
        square = builder.extract_element(square, i64(0))
        new = builder.fadd(builder.extract_element(sums[0], lane), square)
        return [builder.insert_element(sums[0], new, lane)]

    [total] = emit.loop(whole, width, 1, [total], add)
    while many.lanes > 1:
        halves = (list(range(first, many.lanes, 2)) for first in (0, 1))
        total = builder.fadd(*(many.shuffle(total, total, half) for half in halves))
        many = emit.of(64, many.lanes // 2)
    return builder.extract_element(total, i64(0))


def _emit_row(
    emit: Emitter, i: Any, shift: Any, scale: Any, sums: Any, targets: list[tuple[Any, int]],
    later: Any = None, ahead: Any = None,
) -> None:  # fmt: skip
    """Emit loops over all features: eight at a time, then one by one."""
    builder, x = emit.builder, emit.array("x")
    row_stride, stride = (builder.extract_value(x.strides, axis) for axis in (0, 1))
    width = builder.extract_value(x.shape, 1)
    table = builder.ptrtoint(x.data, I64)
    row = builder.add(table, builder.mul(i, row_stride))
    own = [(emit.at(sums, builder.mul(c, width)), sign) for c, sign in targets]
    if ahead is not None:
        later = builder.add(table, builder.mul(later, row_stride))
        ahead = emit.at(sums, builder.mul(ahead, width))
    begin = i64(0)
    for lanes, end in ((LANES, builder.and_(width, i64(-LANES))), (1, width)):
        part = emit.of(64, lanes)

        def add(f: Any, _: Any, part: Emitter = part) -> list[Any]:
            if ahead is not None and part.lanes > 1:
                part.prefetch(part.at(ahead, f), soon=3)
                place = builder.add(later, builder.mul(f, stride))
                part.prefetch(builder.inttoptr(place, ir.IntType(8).as_pointer()), soon=3)
            steps = _emit_steps(part, _numbers(part, row, stride, f), part.at(shift, f), scale)
            for pointer, sign in own:
                old = part.load(part.at(pointer, f), part.labels)
                new = builder.add(old, steps) if sign > 0 else builder.sub(old, steps)
                part.store(new, part.at(pointer, f))
            return []

        emit.loop(begin, end, lanes, [], add)
        begin = end


def _numbers(emit: Emitter, row: Any, stride: Any, f: Any) -> Any:
    """Load features of a row as float64, starting at feature `f`."""
    builder, kind = emit.builder, emit.kinds["x"]
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
    """Return numbers, minus the shift, rounded to whole steps of the grid."""
    builder = emit.builder
    moved = builder.fsub(numbers, emit.load(shift))
    magic = ir.Constant(emit.vector, [MAGIC] * emit.lanes)
    bits = builder.bitcast(emit.fma(moved, emit.broadcast(scale), magic), emit.labels)
    return builder.sub(bits, ir.Constant(emit.labels, [MAGIC_BITS] * emit.lanes))
