"""LLVM IR for single rows against blocks of centres: lanes are centres here.

As :mod:`~.dense` does for panels of neighbouring rows, this scans four
rows from anywhere, which need not be packed: their numbers are broadcast against centres that were
transposed once. Every (row, centre) pair takes its features in order, one fused multiply-add each,
so its score has the same bits as there.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types

from largek_dask.kernels.emit.emitter import I64, Emitter, bits_of, typed_intrinsic

__all__ = ["fold", "six_rows"]

LANES, VECTORS, ROWS = 8, 2, 6


@typed_intrinsic
def six_rows(
    typingctx, direct, rows, places, columns, at, n_features, starts, first, values, labels, base
):
    """Scan six rows against sixteen centres: the smallest two scores in each of eight lanes.

    Parameters
    ----------
    direct : int
        1: sums of (x - c)²; 0: products. A compile-time constant.
    rows, places : real (…,), int (6,)
        Row q begins at ``rows[places[q]]``.
    columns, at, n_features : real (…,), int, int
        Feature f of centre j is ``columns[at + 16 f + j]``.
    starts, first : real (…,), int
        Start of the scores, ``starts[first + j]``.
    values, labels : real (96,), int (48,)
        Running winners: the smallest score of row q among the centres j of lane ``j % 8 = l`` at
        ``8 q + l``, the second smallest 48 further on; ties keep the earlier centre.
    base : int
        Label of centre 0.
    """
    if not isinstance(direct, types.IntegerLiteral):
        return None
    squares, integer = bool(direct.literal_value), types.int64
    sig = types.void(
        direct, rows, places, columns, integer, integer, starts,
        integer, values, labels, integer,
    )  # fmt: skip

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, bits_of(rows), LANES)
        where = emit.data(2)
        x = [emit.at(emit.data(1), builder.load(emit.at(where, q))) for q in range(ROWS)]
        column, start = emit.at(emit.data(3), args[4]), emit.at(emit.data(6), args[7])
        n_features = args[5]
        cells = [(q, v) for q in range(ROWS) for v in range(VECTORS)]
        opening = [emit.load(emit.at(start, v * LANES)) for v in range(VECTORS)]
        before = builder.block
        loop = builder.append_basic_block("six")
        done = builder.append_basic_block("six.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        f = builder.phi(I64)
        totals = [builder.phi(emit.vector) for _ in cells]
        place = builder.mul(f, ir.Constant(I64, LANES * VECTORS))
        c = [emit.load(emit.at(column, place, v * LANES)) for v in range(VECTORS)]
        new = []
        for (q, v), total in zip(cells, totals, strict=True):
            value = emit.spread(builder.load(emit.at(x[q], f)))
            if squares:
                gap = builder.fsub(c[v], value)
                new.append(emit.fma(gap, gap, total))
            else:
                new.append(emit.fma(value, c[v], total))
        following = builder.add(f, ir.Constant(I64, 1))
        f.add_incoming(ir.Constant(I64, 0), before)
        f.add_incoming(following, loop)
        for (_, v), total, later in zip(cells, totals, new, strict=True):
            total.add_incoming(opening[v], before)
            total.add_incoming(later, loop)
        builder.cbranch(builder.icmp_signed("<", following, n_features), loop, done)
        builder.position_at_end(done)
        counting = [ir.Constant(emit.label, lane) for lane in range(LANES)]
        base = args[10] if emit.label is I64 else builder.trunc(args[10], emit.label)
        own = builder.add(emit.spread(base), ir.Constant(emit.labels, counting))
        eight = ir.Constant(emit.labels, [ir.Constant(emit.label, LANES)] * LANES)
        names = [own, builder.add(own, eight)]
        for q in range(ROWS):
            places = [
                (emit.at(emit.data(8), q * LANES), emit.vector),
                (emit.at(emit.data(9), q * LANES), emit.labels),
                (emit.at(emit.data(8), (ROWS + q) * LANES), emit.vector),
            ]
            best, label, second = (emit.load(*place) for place in places)
            for v in range(VECTORS):
                score = new[q * VECTORS + v]
                wins = builder.fcmp_ordered("<", score, best)
                loser = builder.select(wins, best, score)
                follows = builder.fcmp_ordered("<", loser, second)
                second = builder.select(follows, loser, second)
                best = builder.select(wins, score, best)
                label = builder.select(wins, names[v], label)
            for (pointer, _), part in zip(places, (best, label, second), strict=True):
                emit.store(part, pointer)
        return context.get_dummy_value()

    return sig, codegen


@typed_intrinsic
def fold(typingctx, values, labels, at):
    """Reduce the winners of the eight lanes from `at` on to one, in the first of them."""
    sig = types.void(values, labels, types.int64)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, bits_of(values), LANES)
        best_at = emit.at(emit.data(0), args[2])
        label_at = emit.at(emit.data(1), args[2])
        second_at = emit.at(best_at, ROWS * LANES)
        best, second = emit.load(best_at), emit.load(second_at)
        label = emit.load(label_at, emit.labels)
        for half in (4, 2, 1):
            lower, upper = list(range(half)), list(range(half, 2 * half))
            (a, b), (i, j), (s, t) = (
                (emit.shuffle(part, part, lower), emit.shuffle(part, part, upper))
                for part in (best, label, second)
            )
            tie = builder.and_(builder.fcmp_ordered("==", b, a), builder.icmp_signed("<", j, i))
            wins = builder.or_(builder.fcmp_ordered("<", b, a), tie)
            best, loser = builder.select(wins, b, a), builder.select(wins, a, b)
            label = builder.select(wins, j, i)
            second = builder.select(builder.fcmp_ordered("<", t, s), t, s)
            second = builder.select(builder.fcmp_ordered("<", loser, second), loser, second)
        for pointer, part in ((best_at, best), (label_at, label), (second_at, second)):
            first = builder.extract_element(part, ir.Constant(I64, 0))
            builder.store(first, pointer)
        return context.get_dummy_value()

    return sig, codegen
