"""LLVM IR of the dense micro-kernels, emitted through :func:`numba.extending.intrinsic`.

The lanes of a vector are rows of a packed, transposed *panel*, and each feature of a centre is
broadcast to all lanes. A tile keeps ``centres x vectors`` accumulators in registers while it loops
over the features, so every loaded number is used many times (Goto and van de Geijn 2008, *Anatomy
of high-performance matrix multiplication*, but with a minimum instead of a matrix as the result).

Each accumulator belongs to one pair of a row and a centre and adds the features in order, with one
fused multiply-add per feature. Nothing is summed across lanes. So the score of a pair is
bit-identical in every lane, tile shape and vector width, and on every CPU (LLVM calls the C
library's ``fma`` if the hardware has no IEEE fused multiply-add).

Emitted code depends only on compile-time integers (`spec`, from :class:`~.tile.Micro`). Callers
keep these integers in closures, because numba's on-disk cache can hash integers, but not intrinsic
objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir

from largek_dask.kernels.emit.emitter import I64, Emitter, emitted, i64
from largek_dask.kernels.tile import (
    BEST,
    BLOCK,
    MINIMA,
    NUMBERED,
    NUMBERS,
    PAIR,
    SCORES,
    SOME,
    TWO,
    Micro,
)

__all__ = ["scan"]

LINE = 64
"""Cache line size in bytes; on CPUs with a different size, only speed is affected."""


@emitted(
    constants="spec",
    integers="panel_at row_stride feature n_features first n_tiles at sums_at ahead_at",
)
def scan(
    emit, spec, panel, panel_at, centers, row_stride, feature, n_features, starts, first, n_tiles,
    values, labels, at, sums, sums_at, ahead, ahead_at,
):  # fmt: skip
    """Compare a panel of rows with `n_tiles` tiles of centres, starting at centre `first`.

    Parameters
    ----------
    spec : int
        ``Micro.code``, a compile-time constant.
    panel, panel_at : real (…,), int
        Transposed rows: feature f of lane p is ``panel[panel_at + f*P + p]``.
    centers, row_stride, feature, n_features : real (…,), int, int, int
        Flat centres; features ``feature .. feature + n_features`` of each centre are used. In the
        direct form all features are used; `spec` contains their number.
    starts : real (…,)
        Initial value of each centre's accumulator; infinity for padding, so that it never wins.
    first, n_tiles : int
    values, labels, at : real (…,), int (…,), int
        Current winners of the panel's lanes, read and updated; the second winners are P entries
        further on.
    sums, sums_at : real (…,), int
        Accumulators of all tiles, written for `SCORES` and read for `carry`; for `MINIMA`, the
        smallest score of each tile and lane, written.
    ahead, ahead_at : real (…,), int
        Start of a block of memory, the size of a panel, to prefetch: one or two lines with every
        four features (not in the direct form). Nothing is prefetched if `ahead_at` is negative.
    """
    micro = Micro.decode(spec)
    emit, builder = emit.of("panel", micro.lanes), emit.builder
    lanes, width = micro.lanes, micro.vectors * micro.lanes
    # In the direct form, the loop over features is unrolled, with constant offsets.
    unrolled = 0 if micro.direct == SOME else micro.direct
    if unrolled:
        row_stride, feature = i64(unrolled), i64(0)
    size = width if micro.mode == MINIMA else micro.centres * width
    panel = emit.at(panel, panel_at)
    centers = emit.at(centers, builder.mul(first, row_stride), feature)
    starts, sums, ahead = emit.at(starts, first), emit.at(sums, sums_at), emit.at(ahead, ahead_at)
    fetched = builder.icmp_signed(">=", ahead_at, i64(0))
    places = list(_places(emit, micro, emit.at(values, at), emit.at(labels, at)))
    # Winners stay in registers only if features are unrolled; a loop needs the registers.
    kept = unrolled > 0 and micro.mode != SCORES
    before = [emit.load(*place) for own in places for place in own] if kept else []

    def meet(tile, winners):
        base = builder.mul(tile, i64(micro.centres))
        rows = [emit.at(centers, builder.mul(base, row_stride))]
        for _ in range(1, micro.centres):
            rows.append(emit.at(rows[-1], row_stride))
        own = emit.at(sums, builder.mul(tile, i64(size)))
        total = _emit_starts(emit, micro, own, emit.at(starts, base))
        if unrolled:
            for f in range(unrolled):
                total = _emit_feature(emit, micro, panel, rows, total, f * width, f)
        else:
            # Only the first `tiles` tiles prefetch a panel; other tiles prefetch cached memory.
            tiles = -(-4 * width * emit.bits // (8 * LINE * _lines(emit))) + 2
            wanted = builder.and_(fetched, builder.icmp_signed("<", tile, i64(tiles)))
            turns = builder.lshr(n_features, i64(2))
            step = i64(_lines(emit) * LINE * 8 // emit.bits)
            line = builder.mul(builder.mul(tile, turns), step)
            line = builder.select(wanted, emit.at(ahead, line), panel)
            total = _emit_features(emit, micro, panel, rows, total, n_features, line)
        if micro.mode == SCORES:
            for m in range(micro.centres):
                for v in range(micro.vectors):
                    emit.store(total[m][v], emit.at(own, m * width + v * lanes))
            return []
        index = builder.add(first, base)
        if emit.label is not I64:
            index = builder.trunc(index, emit.label)
        return _emit_best(emit, micro, total, places, winners if kept else None, index, own)

    final = emit.loop(i64(0), n_tiles, 1, before, meet)
    if kept:
        _store(emit, [place for own in places for place in own], final)


def _emit_starts(emit: Emitter, micro: Micro, own: Any, starts: Any) -> list[list[Any]]:
    total = []
    for m in range(micro.centres):
        if micro.carry:
            first = m * micro.vectors
            at = [emit.at(own, (first + v) * micro.lanes) for v in range(micro.vectors)]
            total.append([emit.load(place) for place in at])
        else:
            start = emit.broadcast(emit.builder.load(emit.at(starts, m)))
            total.append([start] * micro.vectors)
    return total


def _emit_best(
    emit: Emitter, micro: Micro, total: list[list[Any]], places: list[Any],
    winners: list[Any] | None, index: Any, own: Any,
) -> list[Any]:  # fmt: skip
    """Emit the comparison of a tile with the winners; return winners kept in registers."""
    after: list[Any] = []
    for v, mine in enumerate(places):
        scores = [row[v] for row in total]
        if micro.mode == MINIMA:
            scores = [_smallest(emit, scores)]
            emit.store(scores[0], emit.at(own, v * micro.lanes))
        if winners is not None:
            found = winners[v * len(mine) : (v + 1) * len(mine)]
            after += _emit_winners(emit, micro, scores, found, index)
        else:
            # Load winners vector by vector, so that few registers are in use at a time.
            found = [emit.load(*place) for place in mine]
            _store(emit, mine, _emit_winners(emit, micro, scores, found, index))
    return after


def _store(emit: Emitter, places: list[Any], parts: list[Any]) -> None:
    for (pointer, _), part in zip(places, parts, strict=True):
        emit.store(part, pointer)


def _lines(emit: Emitter) -> int:
    """Return the number of cache lines to prefetch per four features.

    The number is doubled if a vector fills a cache line, since panels are then twice as wide.
    """
    return max(1, emit.lanes * emit.bits // (4 * LINE))


def _emit_feature(
    emit: Emitter, micro: Micro, panel: Any, rows: list[Any], total: Any, at: Any, feature: Any
) -> list[list[Any]]:
    """Emit the multiply-adds of one feature for every row and centre of the tile."""
    builder = emit.builder
    x = [emit.load(emit.at(panel, at, v * micro.lanes)) for v in range(micro.vectors)]
    result = []
    for m in range(micro.centres):
        c = emit.broadcast(builder.load(emit.at(rows[m], feature)))
        row = []
        for v in range(micro.vectors):
            if micro.direct:
                difference = builder.fsub(c, x[v])
                row.append(emit.fma(difference, difference, total[m][v]))
            else:
                row.append(emit.fma(x[v], c, total[m][v]))
        result.append(row)
    return result


def _emit_features(
    emit: Emitter, micro: Micro, panel: Any, rows: list[Any], start: Any, n_features: Any, line: Any
) -> list[list[Any]]:
    """Emit loops over all features: four per iteration, then two, then one.

    With one feature per iteration, counting and addressing would cost as much as the loads.
    Iterations of four features also prefetch cache lines, starting at `line`.
    """
    builder, width = emit.builder, micro.vectors * micro.lanes
    total: list[list[Any]] = start
    for step in (4, 2, 1):

        def features(f: Any, sums: list[Any], step: int = step) -> list[Any]:
            at, new = builder.mul(f, i64(width)), _rows(sums, micro)
            if step == 4:
                size, count = LINE * 8 // emit.bits, _lines(emit)
                fetched = emit.at(line, builder.mul(f, i64(count * size // 4)))
                for number in range(count):
                    emit.prefetch(emit.at(fetched, number * size))
            for after in range(step):
                place = builder.add(at, i64(after * width))
                feature = builder.add(f, i64(after))
                new = _emit_feature(emit, micro, panel, rows, new, place, feature)
            return [part for row in new for part in row]

        begin = builder.and_(n_features, i64(0 if step == 4 else -2 * step))
        end = builder.and_(n_features, i64(-step))
        sums = [part for row in total for part in row]
        total = _rows(emit.loop(begin, end, step, sums, features, once=step < 4), micro)
    return total


def _rows(parts: list[Any], micro: Micro) -> list[list[Any]]:
    """Group a flat list of vectors by centre."""
    return [parts[m : m + micro.vectors] for m in range(0, len(parts), micro.vectors)]


def _places(emit: Emitter, micro: Micro, values: Any, labels: Any) -> Iterator[list[Any]]:
    """Yield (pointer, type) pairs of winners: value, label, second value and second label."""
    for v in range(micro.vectors):
        places = []
        for rank in range(2 if micro.mode in (TWO, PAIR, NUMBERED) else 1):
            lane = (rank * micro.vectors + v) * micro.lanes
            places.append((emit.at(values, lane), emit.vector))
            if rank == 0 or micro.mode == TWO:
                places.append((emit.at(labels, lane), emit.labels))
        yield places


def _smallest(emit: Emitter, scores: list[Any]) -> Any:
    while len(scores) > 1:
        a, b = scores[:2]
        scores = [*scores[2:], emit.builder.select(emit.smaller(b, a), b, a)]
    return scores[0]


def _emit_winners(
    emit: Emitter, micro: Micro, scores: list[Any], winners: list[Any], index: Any
) -> list[Any]:
    """Emit comparisons of a tile with each lane's winners; ties go to the earlier centre."""
    builder, smaller = emit.builder, emit.smaller

    def lower(a: Any, b: Any) -> Any:
        return builder.icmp_signed("<", a, b)

    def own(m: int) -> Any:
        return emit.broadcast(builder.add(index, ir.Constant(emit.label, m)))

    best, label, *runner_up = winners
    if micro.mode == BLOCK:
        # Compare only the smallest score of the tile; the centre is found once, at the end.
        # Compare non-negative floats as integers, which leaves the multiply-add units free.
        bits = [builder.bitcast(score, emit.labels) for score in scores]
        while len(bits) > 1:
            a, b = bits[0], bits[1]
            bits = [*bits[2:], builder.select(lower(b, a), b, a)]
        old = builder.bitcast(best, emit.labels)
        wins = lower(bits[0], old)
        best = builder.bitcast(builder.select(wins, bits[0], old), emit.vector)
        label = builder.select(wins, own(0), label)
    if micro.mode in (NUMBERED, PAIR):
        # A centre's number within the tile is a constant, which costs less than the centre's index.
        # A numbered score has this number in its lowest bits; the margin allows for lost digits.
        # An infinite score with a number becomes NaN, which is skipped.
        old, second, numbered = best, runner_up[0], micro.mode == NUMBERED
        number = emit.broadcast(ir.Constant(emit.label, 0))
        for m, score in enumerate(scores):
            mine = emit.broadcast(ir.Constant(emit.label, m))
            if numbered:
                bits = builder.bitcast(score, emit.labels)
                rest = builder.and_(bits, emit.broadcast(ir.Constant(emit.label, -NUMBERS)))
                score = builder.bitcast(builder.or_(rest, mine), emit.vector)
            wins = smaller(score, best)
            loser = builder.select(wins, best, score)
            second = builder.select(smaller(loser, second), loser, second)
            best = builder.select(wins, score, best)
            if not numbered:
                number = builder.select(wins, mine, number)
        first = own(0) if numbered else builder.add(own(0), number)
        label = builder.select(smaller(best, old), first, label)
        runner_up = [second]
    for m, score in enumerate(scores if micro.mode in (BEST, TWO, MINIMA) else ()):
        wins = smaller(score, best)
        if micro.mode == TWO:
            second, runner = runner_up
            loser = builder.select(wins, best, score)
            loser_label = builder.select(wins, label, own(m))
            # At equal scores, the previous best centre precedes the runner-up.
            follows = smaller(score, second)
            runner_up = [
                builder.select(follows, loser, second),
                builder.select(follows, loser_label, runner),
            ]
        best = builder.select(wins, score, best)
        label = builder.select(wins, own(m), label)
    return [best, label, *runner_up]
