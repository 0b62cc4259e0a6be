"""LLVM IR for single rows against blocks of centres: lanes are centres here.

Rows need not be neighbours or packed, as they are in :mod:`~.dense`: their numbers are broadcast
against centres that were transposed once. Every (row, centre) pair takes its features in order, one
fused multiply-add each, so its score has the same bits as there.
"""

from __future__ import annotations

from llvmlite import ir

from largek_dask.kernels.emit.emitter import I64, emitted, i64

__all__ = ["reduce_lanes", "scan_six_rows"]

LANES, VECTORS, ROWS = 8, 2, 6


@emitted(constants="direct", integers="at n_features first base")
def scan_six_rows(
    emit, direct, rows, places, columns, at, n_features, starts, first, values, labels, base
):
    """Scan six rows against sixteen centres; keep the smallest two scores of each of eight lanes.

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
    emit, builder = emit.of("rows", LANES), emit.builder
    x = [emit.at(rows, builder.load(emit.at(places, q))) for q in range(ROWS)]
    column, start = emit.at(columns, at), emit.at(starts, first)
    opening = [emit.load(emit.at(start, v * LANES)) for v in range(VECTORS)]

    def meet(f, totals):
        place = builder.mul(f, i64(LANES * VECTORS))
        c = [emit.load(emit.at(column, place, v * LANES)) for v in range(VECTORS)]
        new = []
        for cell, total in enumerate(totals):
            q, v = divmod(cell, VECTORS)
            value = emit.broadcast(builder.load(emit.at(x[q], f)))
            if direct:
                gap = builder.fsub(c[v], value)
                new.append(emit.fma(gap, gap, total))
            else:
                new.append(emit.fma(value, c[v], total))
        return new

    scores = emit.loop(i64(0), n_features, 1, opening * ROWS, meet)
    counting = [ir.Constant(emit.label, lane) for lane in range(LANES)]
    base = base if emit.label is I64 else builder.trunc(base, emit.label)
    own = builder.add(emit.broadcast(base), ir.Constant(emit.labels, counting))
    eight = ir.Constant(emit.labels, [ir.Constant(emit.label, LANES)] * LANES)
    names = [own, builder.add(own, eight)]
    for q in range(ROWS):
        parts = [
            (emit.at(values, q * LANES), emit.vector),
            (emit.at(labels, q * LANES), emit.labels),
            (emit.at(values, (ROWS + q) * LANES), emit.vector),
        ]
        best, label, second = (emit.load(*part) for part in parts)
        for v in range(VECTORS):
            score = scores[q * VECTORS + v]
            wins = emit.smaller(score, best)
            loser = builder.select(wins, best, score)
            second = builder.select(emit.smaller(loser, second), loser, second)
            best = builder.select(wins, score, best)
            label = builder.select(wins, names[v], label)
        for (pointer, _), part in zip(parts, (best, label, second), strict=True):
            emit.store(part, pointer)


@emitted(integers="at")
def reduce_lanes(emit, values, labels, at):
    """Reduce the winners of the eight lanes from `at` on to one, written to the first of them."""
    emit, builder = emit.of("values", LANES), emit.builder
    best_at, label_at = emit.at(values, at), emit.at(labels, at)
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
        wins = builder.or_(emit.smaller(b, a), tie)
        best, loser = builder.select(wins, b, a), builder.select(wins, a, b)
        label = builder.select(wins, j, i)
        second = builder.select(emit.smaller(t, s), t, s)
        second = builder.select(emit.smaller(loser, second), loser, second)
    for pointer, part in ((best_at, best), (label_at, label), (second_at, second)):
        builder.store(builder.extract_element(part, i64(0)), pointer)
