"""LLVM IR for rows: transposing them into panels, and exact distances.

As in :mod:`~largek_dask.kernels.emitted`, nothing here depends on the machine's vector width.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed

from largek_dask.kernels.emitter import I32, I64, Emitter, bits_of, typed_intrinsic

__all__ = ["frozen", "settle", "square_distance", "square_lengths", "transpose"]


@typed_intrinsic
def transpose(
    typingctx: Any,
    rows: Any,
    rows_at: Any,
    row_stride: Any,
    shift: Any,
    feature: Any,
    panel: Any,
    panel_at: Any,
    width: Any,
) -> Any:
    """A square block of rows (8 x 8 single, 4 x 4 double precision), shifted, into a panel.

    Row r, feature f of the block is read at ``rows[rows_at + r*row_stride + f]``, has
    ``shift[feature + f]`` taken off and is written to ``panel[panel_at + f*width + r]``.
    """
    integer = types.int64
    sig = types.void(rows, integer, integer, shift, integer, panel, integer, integer)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        side = 8 if bits_of(rows) == 32 else 4
        emit = Emitter(context, builder, sig, args, bits_of(rows), side)
        half = side // 2
        short = ir.VectorType(emit.real, half)
        pointers = [emit.at(emit.data(0), args[1])]
        for _ in range(1, side):
            pointers.append(emit.at(pointers[-1], args[2]))
        offsets = emit.at(emit.data(3), args[4])
        out = emit.at(emit.data(5), args[6])
        # Two halves are joined on loading (which costs no shuffle on x86), so that what is left
        # to transpose stays inside 128-bit lanes.
        joined = list(range(side))
        for column in (0, half):
            block = [
                emit.shuffle(
                    emit.load(emit.at(pointers[r], column), short),
                    emit.load(emit.at(pointers[r + half], column), short),
                    joined,
                )
                for r in range(half)
            ]
            for f, lane in enumerate(_transposed(emit, block, half)):
                moved = builder.fsub(lane, emit.spread(builder.load(emit.at(offsets, column + f))))
                emit.store(moved, emit.at(out, builder.mul(args[7], ir.Constant(I64, column + f))))
        return context.get_dummy_value()

    return sig, codegen


def _transposed(emit: Emitter, block: list[Any], half: int) -> list[Any]:
    """Transpose inside each 128-bit half of the vectors: (half x half) twice, side by side."""

    def low(a: Any, b: Any, pieces: list[int]) -> Any:
        side = 2 * half
        mask = []
        for lane in (0, half):
            mask += [lane + p if p < half else side + lane + p - half for p in pieces]
        return emit.shuffle(a, b, mask)

    if half == 2:
        return [low(block[0], block[1], [0, 2]), low(block[0], block[1], [1, 3])]
    a, b, c, d = block
    first, second = low(a, b, [0, 4, 1, 5]), low(a, b, [2, 6, 3, 7])
    third, fourth = low(c, d, [0, 4, 1, 5]), low(c, d, [2, 6, 3, 7])
    return [
        low(first, third, [0, 1, 4, 5]),
        low(first, third, [2, 3, 6, 7]),
        low(second, fourth, [0, 1, 4, 5]),
        low(second, fourth, [2, 3, 6, 7]),
    ]


@typed_intrinsic
def square_lengths(
    typingctx: Any, lanes: Any, panel: Any, panel_at: Any, width: Any, n_features: Any, out: Any
) -> Any:
    """Squared lengths of the first `lanes` rows of a panel, features in order, into `out`."""
    if not isinstance(lanes, types.IntegerLiteral):
        return None
    count, integer = lanes.literal_value, types.int64
    sig = types.void(lanes, panel, integer, integer, integer, out)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        # pieces of a size that any vector unit has: one odd vector would be taken apart badly
        piece = 8 if count % 8 == 0 else 4
        emit = Emitter(context, builder, sig, args, bits_of(panel), piece)
        _, _, panel_at, width, n_features, _ = args
        x, out = emit.at(emit.data(1), panel_at), emit.data(5)
        before = builder.block
        loop, done = builder.append_basic_block("length"), builder.append_basic_block("length.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        f = builder.phi(I64)
        totals = [builder.phi(emit.vector) for _ in range(0, count, piece)]
        row = emit.at(x, builder.mul(f, width))
        following = builder.add(f, ir.Constant(I64, 1))
        f.add_incoming(ir.Constant(I64, 0), before)
        f.add_incoming(following, loop)
        new = []
        for i, total in enumerate(totals):
            value = emit.load(emit.at(row, i * piece))
            new.append(emit.fma(value, value, total))
            total.add_incoming(ir.Constant(emit.vector, [0.0] * piece), before)
            total.add_incoming(new[i], loop)
        builder.cbranch(builder.icmp_signed("<", following, n_features), loop, done)
        builder.position_at_end(done)
        for i, total in enumerate(new):
            emit.store(total, emit.at(out, i * piece))
        return context.get_dummy_value()

    return sig, codegen


@typed_intrinsic
def settle(
    typingctx: Any,
    centres: Any,
    panel: Any,
    panel_at: Any,
    width: Any,
    columns: Any,
    n_features: Any,
    starts: Any,
    first: Any,
    best: Any,
) -> Any:
    """Which of `centres` centres from `first` on has the score `best` with one row (direct form).

    Lanes are centres here; every one of them repeats the sums of its tile, to the same bits.
    Feature f of the row is ``panel[panel_at + f*width]``, of centre j
    ``columns[(j // 8 * n_features + f) * 8 + j % 8]``. Without a match the answer is `first`.
    """
    if not isinstance(centres, types.IntegerLiteral):
        return None
    lanes, integer = centres.literal_value, types.int64
    real = panel.dtype
    sig = integer(centres, panel, integer, integer, columns, integer, starts, integer, real)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emit = Emitter(context, builder, sig, args, bits_of(panel), lanes)
        _, _, panel_at, width, _, n_features, _, first, best = args
        eight = ir.Constant(I64, 8)
        block = builder.mul(builder.mul(builder.udiv(first, eight), n_features), eight)
        column = emit.at(emit.data(4), block, builder.urem(first, eight))
        x = emit.at(emit.data(1), panel_at)
        start = emit.load(emit.at(emit.data(6), first))
        before = builder.block
        loop, done = builder.append_basic_block("centre"), builder.append_basic_block("centre.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        f, total = builder.phi(I64), builder.phi(emit.vector)
        c = emit.load(emit.at(column, builder.mul(f, eight)))
        gap = builder.fsub(c, emit.spread(builder.load(emit.at(x, builder.mul(f, width)))))
        new = emit.fma(gap, gap, total)
        following = builder.add(f, ir.Constant(I64, 1))
        for phi, old, later in ((f, ir.Constant(I64, 0), following), (total, start, new)):
            phi.add_incoming(old, before)
            phi.add_incoming(later, loop)
        builder.cbranch(builder.icmp_signed("<", following, n_features), loop, done)
        builder.position_at_end(done)
        mask_type = ir.IntType(lanes)
        mask = builder.bitcast(builder.fcmp_ordered("==", new, emit.spread(best)), mask_type)
        place = builder.cttz(mask, ir.Constant(ir.IntType(1), 0))
        place = builder.select(
            builder.icmp_unsigned("==", mask, ir.Constant(mask_type, 0)),
            ir.Constant(I64, 0),
            builder.zext(place, I64),
        )
        return builder.add(first, place)

    return sig, codegen


@typed_intrinsic
def frozen(typingctx: Any, array: Any) -> Any:
    """The same array, of read-only type: what takes centres need not be compiled twice."""
    return array.copy(readonly=True)(array), lambda context, builder, sig, args: impl_ret_borrowed(
        context, builder, sig.return_type, args[0]
    )


@typed_intrinsic
def square_distance(
    typingctx: Any, rows: Any, rows_at: Any, centers: Any, centers_at: Any, n_features: Any
) -> Any:
    """Squared distance of a row and a centre in float64, in a fixed order.

    Feature f belongs to lane ``f % 8`` of eight running sums, whatever the machine's vectors are;
    each lane takes its features in order; the eight are added pairwise at the end.
    """
    integer = types.int64
    sig = types.float64(rows, integer, centers, integer, integer)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emit = Emitter(context, builder, sig, args, 64, 8)
        narrow = ir.VectorType(ir.FloatType() if bits_of(rows) == 32 else ir.DoubleType(), 8)
        x, c = emit.at(emit.data(0), args[1]), emit.at(emit.data(2), args[3])
        n_features = args[4]

        def wide(value: Any, kind: Any) -> Any:
            return value if bits_of(rows) == 64 else builder.fpext(value, kind)

        zero = ir.Constant(emit.vector, [0.0] * 8)
        store = cgutils.alloca_once(builder, emit.vector)
        builder.store(zero, store)
        whole = builder.mul(builder.lshr(n_features, ir.Constant(I64, 3)), ir.Constant(I64, 8))
        entry = builder.block
        loop = builder.append_basic_block("eight")
        done = builder.append_basic_block("eight.done")
        builder.cbranch(builder.icmp_signed(">", whole, ir.Constant(I64, 0)), loop, done)
        builder.position_at_end(loop)
        f = builder.phi(I64)
        total = builder.phi(emit.vector)
        f.add_incoming(ir.Constant(I64, 0), entry)
        total.add_incoming(zero, entry)
        difference = builder.fsub(
            wide(emit.load(emit.at(x, f), narrow), emit.vector),
            wide(emit.load(emit.at(c, f), narrow), emit.vector),
        )
        new = builder.fadd(total, builder.fmul(difference, difference))
        following = builder.add(f, ir.Constant(I64, 8))
        f.add_incoming(following, loop)
        total.add_incoming(new, loop)
        builder.cbranch(builder.icmp_signed("<", following, whole), loop, done)
        builder.position_at_end(done)
        result = builder.phi(emit.vector)
        result.add_incoming(zero, entry)
        result.add_incoming(new, loop)
        builder.store(result, store)
        lanes = builder.bitcast(store, ir.DoubleType().as_pointer())
        with cgutils.for_range(builder, builder.sub(n_features, whole)) as tail:
            at = builder.add(whole, tail.index)
            difference = builder.fsub(
                wide(builder.load(emit.at(x, at)), ir.DoubleType()),
                wide(builder.load(emit.at(c, at)), ir.DoubleType()),
            )
            place = emit.at(lanes, tail.index)
            square = builder.fmul(difference, difference)
            builder.store(builder.fadd(builder.load(place), square), place)
        result = builder.load(store)
        for half in (4, 2, 1):
            result = builder.fadd(
                emit.shuffle(result, result, list(range(half))),
                emit.shuffle(result, result, list(range(half, 2 * half))),
            )
        return builder.extract_element(result, ir.Constant(I32, 0))

    return sig, codegen
