"""LLVM IR of the micro-kernel for sparse rows: one row against a block of transposed centres.

Lanes are centres here. The coordinates of a block's centres in one feature lie side by
side, so that every stored number of a row meets all of them in a few vectors. Each (row, centre)
pair is still one chain of fused multiply-adds over the row's numbers as they are stored, so its
score depends neither on the block nor on the lane; the lanes of a vector are 16 on
every machine.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types

from largek_dask.kernels.emit.emitter import I32, I64, Emitter, bits_of, typed_intrinsic

__all__ = ["LANES", "scan_sparse"]

LANES = 16
"""Centres of a vector."""
AHEAD = 16
"""Distance of prefetching, in stored numbers. With this, and
16 lanes instead of 8, Reuters in 500 clusters takes 46 instead of 65 ms per pass."""
_LINE = 64
"""Bytes of a cache line."""


@typed_intrinsic
def scan_sparse(
    typingctx, spec, data, indices, begin, end, columns, at, starts, first, values, labels, second,
    second_labels, own,
):  # fmt: skip
    """Scan one row against ``vectors * LANES`` centres from centre `first` on.

    Parameters
    ----------
    spec : int
        ``2 * vectors``, one more for the two nearest; a compile-time constant.
    data, indices, begin, end : real (…,), int32 (…,), int, int
        The row is ``data[begin:end]`` in the columns ``indices[begin:end]``.
    columns, at : real (…,), int
        Feature f of centre ``first + j`` at ``columns[at + f * vectors * LANES + j]``.
    starts, first : real (…,), int
        Start of each centre's score; infinity for padding, which then never wins.
    values, labels, second, second_labels, own : real, int32, real, int32 (…,), int
        `LANES` running winners from `own` on, of the centres of the same lane; those that came
        first win ties. `second` ones are written only for the two nearest.
    """
    if not isinstance(spec, types.IntegerLiteral):
        return None
    (count, two), integer = divmod(spec.literal_value, 2), types.int64
    sig = types.void(
        spec, data, indices, integer, integer, columns, integer, starts, integer,
        values, labels, second, second_labels, integer,
    )  # fmt: skip

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, bits_of(data), LANES)
        kind = ir.VectorType(I32, LANES)
        _, _, _, begin, end, _, at, _, first, _, _, _, _, own = args
        start = [emit.load(emit.at(emit.data(7), first, v * LANES)) for v in range(count)]
        columns = emit.at(emit.data(5), at)
        stored = context.make_array(sig.args[2])(context, builder, args[2]).nitems
        before = builder.block
        loop, done = builder.append_basic_block("number"), builder.append_basic_block("row.done")
        builder.cbranch(builder.icmp_signed("<", begin, end), loop, done)
        builder.position_at_end(loop)
        i = builder.phi(I64)
        totals = [builder.phi(emit.vector) for _ in start]
        x = emit.spread(builder.load(emit.at(emit.data(1), i)))
        feature = builder.sext(builder.load(emit.at(emit.data(2), i)), I64)
        place = emit.at(columns, builder.mul(feature, ir.Constant(I64, count * LANES)))
        # The next columns are known here; caches cannot predict them.
        later = builder.add(i, ir.Constant(I64, AHEAD))
        later = builder.select(builder.icmp_signed("<", later, stored), later, i)
        soon = builder.sext(builder.load(emit.at(emit.data(2), later)), I64)
        next_place = emit.at(columns, builder.mul(soon, ir.Constant(I64, count * LANES)))
        for number in range(0, count * LANES, _LINE * 8 // emit.bits):
            emit.prefetch(emit.at(next_place, number), soon=3)
        new = [
            emit.fma(x, emit.load(emit.at(place, v * LANES)), total)
            for v, total in enumerate(totals)
        ]
        following = builder.add(i, ir.Constant(I64, 1))
        i.add_incoming(begin, before)
        i.add_incoming(following, loop)
        for phi, old, later in zip(totals, start, new, strict=True):
            phi.add_incoming(old, before)
            phi.add_incoming(later, loop)
        builder.cbranch(builder.icmp_signed("<", following, end), loop, done)
        builder.position_at_end(done)
        scores = []
        for old, later in zip(start, new, strict=True):
            scores.append(builder.phi(emit.vector))
            scores[-1].add_incoming(old, before)
            scores[-1].add_incoming(later, loop)
        lane = ir.Constant(kind, list(range(LANES)))
        places = [(emit.at(emit.data(9), own), emit.vector), (emit.at(emit.data(10), own), kind)]
        if two:
            places += [(emit.at(emit.data(11), own), emit.vector)]
            places += [(emit.at(emit.data(12), own), kind)]
        best, label, *runner_up = (emit.load(*place) for place in places)
        for v, score in enumerate(scores):
            index = builder.trunc(builder.add(first, ir.Constant(I64, v * LANES)), I32)
            mine = builder.add(emit.spread(index), lane)
            wins = builder.fcmp_ordered("<", score, best)
            if two:
                loser = builder.select(wins, best, score)
                loser_label = builder.select(wins, label, mine)
                # an old best that loses its place comes before a runner-up of equal score
                follows = builder.fcmp_ordered("<", score, runner_up[0])
                runner_up = [
                    builder.select(follows, loser, runner_up[0]),
                    builder.select(follows, loser_label, runner_up[1]),
                ]
            best = builder.select(wins, score, best)
            label = builder.select(wins, mine, label)
        for (pointer, _), part in zip(places, (best, label, *runner_up), strict=True):
            emit.store(part, pointer)
        return context.get_dummy_value()

    return sig, codegen
