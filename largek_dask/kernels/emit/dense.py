"""LLVM IR of the dense micro-kernels, emitted through :func:`numba.extending.intrinsic`.

Lanes of a vector are rows (points) of a packed, transposed *panel*; one coordinate of a centre is
broadcast against them. A tile keeps ``centres x vectors`` accumulators in registers while it runs
over the features, so every loaded number is used many times: that, and not clever algebra, is
where the speed comes from (Goto and van de Geijn 2008, *Anatomy of high-performance matrix
multiplication*, with a minimum instead of a matrix at the end).

Each accumulator belongs to one (row, centre) pair and takes the features in order, one fused
multiply-add each. Nothing is ever summed across lanes. So a pair's score has the same bits in every
lane, tile shape and vector width, and on every CPU that has an IEEE fused multiply-add (LLVM calls
the C library's ``fma`` if the hardware has none).

Emitted code depends on compile-time integers only (`spec`, from :class:`~.tile.Micro`), which
callers hold in closures: numba's on-disk cache can hash integers, but not intrinsic objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types

from largek_dask.kernels.emit.emitter import I64, Emitter, bits_of, typed_intrinsic
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
"""Bytes of a cache line; another size costs speed only."""


@typed_intrinsic
def scan(
    typingctx, spec, panel, panel_at, centers, row_stride, feature, n_features, starts, first,
    n_tiles, values, labels, at, sums, sums_at, ahead, ahead_at,
):  # fmt: skip
    """Scan one panel of rows against `n_tiles` tiles of centres from centre `first` on.

    Parameters
    ----------
    spec : int
        ``Micro.code``, a compile-time constant.
    panel, panel_at : real (…,), int
        Rows, transposed: feature f of lane p at ``panel[panel_at + f*P + p]``.
    centers, row_stride, feature, n_features : real (…,), int, int, int
        Flat centres; features ``feature .. feature + n_features`` of each are used (all of them,
        as many as `spec` says, in the direct form).
    starts : real (…,)
        Start of each centre's accumulator; infinity for padding, which then never wins.
    first, n_tiles : int
    values, labels, at : real (…,), int (…,), int
        Running winners of the panel's lanes, read and updated (second ones P further on).
    sums, sums_at : real (…,), int
        Accumulators, tile after tile, for `SCORES` (written) and `carry` (read); the smallest of
        each tile, lane by lane, for `MINIMA` (written).
    ahead, ahead_at : real (…,), int
        A panel's worth of memory from here on is prefetched, a line or two
        with every four features (not in the direct form); nothing if `ahead_at` is negative.
    """
    if not isinstance(spec, types.IntegerLiteral):
        return None
    micro = Micro.decode(spec.literal_value)
    integer = types.int64
    sig = types.void(
        spec, panel, integer, centers, integer, integer, integer, starts, integer, integer,
        values, labels, integer, sums, integer, ahead, integer,
    )  # fmt: skip

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, bits_of(panel), micro.lanes)
        _emit_scan(emit, micro)
        return context.get_dummy_value()

    return sig, codegen


def _emit_scan(emit: Emitter, micro: Micro) -> None:
    """Emit the loop over tiles; in the direct form its features are unrolled, if `DIRECT`."""
    _emit_tiles(emit, micro, 0 if micro.direct == SOME else micro.direct)


def _emit_tiles(emit: Emitter, micro: Micro, unrolled: int) -> None:
    """Emit all tiles, over `unrolled` features, or, if that is 0, over the given number."""
    builder, lanes, width = emit.builder, micro.lanes, micro.vectors * micro.lanes
    (
        _,
        _,
        panel_at,
        _,
        row_stride,
        feature,
        n_features,
        _,
        first,
        n_tiles,
        _,
        _,
        at,
        _,
        sums_at,
        _,
        ahead_at,
    ) = emit.args
    size = width if micro.mode == MINIMA else micro.centres * width
    panel = emit.at(emit.data(1), panel_at)
    if unrolled:  # constant offsets from one pointer
        row_stride, feature = ir.Constant(I64, unrolled), ir.Constant(I64, 0)
    centers = emit.at(emit.data(3), builder.mul(first, row_stride), feature)
    starts = emit.at(emit.data(7), first)
    values = emit.at(emit.data(10), at)
    labels = emit.at(emit.data(11), at)
    sums = emit.at(emit.data(13), sums_at)
    ahead = emit.at(emit.data(15), ahead_at)
    fetched = builder.icmp_signed(">=", ahead_at, ir.Constant(I64, 0))
    vectors = range(micro.vectors)
    # Winners stay in registers where the features are unrolled. Around an inner loop they would
    # push accumulators out of it, so there they are read and written once per tile.
    kept = unrolled > 0 and micro.mode != SCORES
    before = _load_winners(emit, micro, values, labels) if kept else []
    entry = builder.block
    loop = builder.append_basic_block("tile")
    done = builder.append_basic_block("tile.done")
    builder.cbranch(builder.icmp_signed(">", n_tiles, ir.Constant(I64, 0)), loop, done)
    builder.position_at_end(loop)
    tile = builder.phi(I64)
    tile.add_incoming(ir.Constant(I64, 0), entry)
    winners = [[builder.phi(part.type) for part in lane] for lane in before]
    base = builder.mul(tile, ir.Constant(I64, micro.centres))
    rows = [emit.at(centers, builder.mul(base, row_stride))]
    for _ in range(1, micro.centres):
        rows.append(emit.at(rows[-1], row_stride))
    own = emit.at(sums, builder.mul(tile, ir.Constant(I64, size)))

    def sums_of(m: int, v: int) -> Any:
        return emit.at(own, m * width + v * lanes)

    start: list[list[Any]] = []
    for m in range(micro.centres):
        if micro.carry:
            start.append([emit.load(sums_of(m, v)) for v in vectors])
        else:
            start.append([emit.spread(builder.load(emit.at(starts, base, m)))] * micro.vectors)
    if unrolled:
        total = start
        for f in range(unrolled):
            total = _emit_feature(emit, micro, panel, rows, total, f * width, f)
    else:
        # this many tiles fetch a panel, and the rest go back to where they are for certain
        tiles = -(-4 * width * emit.bits // (8 * LINE * _lines(emit))) + 2
        wanted = builder.and_(fetched, builder.icmp_signed("<", tile, ir.Constant(I64, tiles)))
        turns = builder.lshr(n_features, ir.Constant(I64, 2))
        step = ir.Constant(I64, _lines(emit) * LINE * 8 // emit.bits)
        line = builder.mul(builder.mul(tile, turns), step)
        line = builder.select(wanted, emit.at(ahead, line), panel)
        total = _emit_features(emit, micro, panel, rows, start, n_features, line)
    if micro.mode == SCORES:
        for m in range(micro.centres):
            for v in vectors:
                emit.store(total[m][v], sums_of(m, v))
        after: list[list[Any]] = []
    else:
        index = builder.add(first, base)
        if emit.label is not I64:
            index = builder.trunc(index, emit.label)
        after = []
        for v, places in enumerate(_places(emit, micro, values, labels)):
            scores = [row[v] for row in total]
            if micro.mode == MINIMA:
                scores = [_smallest(emit, scores)]
                emit.store(scores[0], sums_of(0, v))
            if kept:
                after.append(_emit_winners(emit, micro, scores, winners[v], index))
            else:
                # vector by vector, so that few of them are alive at a time
                found = [emit.load(*place) for place in places]
                found = _emit_winners(emit, micro, scores, found, index)
                for (pointer, _), part in zip(places, found, strict=True):
                    emit.store(part, pointer)
    following = builder.add(tile, ir.Constant(I64, 1))
    tile.add_incoming(following, builder.block)
    for phis, old, new in zip(winners, before, after, strict=True):
        for phi, start_value, new_value in zip(phis, old, new, strict=True):
            phi.add_incoming(start_value, entry)
            phi.add_incoming(new_value, builder.block)
    last = builder.block
    builder.cbranch(builder.icmp_signed("<", following, n_tiles), loop, done)
    builder.position_at_end(done)
    final = []
    for old, new in zip(before, after, strict=True):
        final.append([builder.phi(part.type) for part in old])
        for phi, start_value, new_value in zip(final[-1], old, new, strict=True):
            phi.add_incoming(start_value, entry)
            phi.add_incoming(new_value, last)
    _store_winners(emit, micro, final, values, labels)


def _lines(emit: Emitter) -> int:
    """Return the number of cache lines to fetch with four features.

    Twice as many if a vector fills one: its panels are twice as wide, and few centres make
    half as many tiles.
    """
    return max(1, emit.lanes * emit.bits // (4 * LINE))


def _emit_feature(
    emit: Emitter, micro: Micro, panel: Any, rows: list[Any], total: Any, at: Any, feature: Any
) -> list[list[Any]]:
    """Emit one feature of every pair of the tile: one fused multiply-add each."""
    builder = emit.builder
    x = [emit.load(emit.at(panel, at, v * micro.lanes)) for v in range(micro.vectors)]
    result = []
    for m in range(micro.centres):
        c = emit.spread(builder.load(emit.at(rows[m], feature)))
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
    emit: Emitter,
    micro: Micro,
    panel: Any,
    rows: list[Any],
    start: Any,
    n_features: Any,
    line: Any,
) -> list[list[Any]]:
    """Emit all features, accumulators in registers: four per turn of the loop, then two, then one.

    With one feature per turn, counting and addressing would cost as much as its loads. Every
    turn of four fetches cache lines from `line` on.
    """
    builder = emit.builder
    total: list[list[Any]] = start
    for step in (4, 2, 1):
        begin = builder.and_(n_features, ir.Constant(I64, 0 if step == 4 else -2 * step))
        end = builder.and_(n_features, ir.Constant(I64, -step))
        before = builder.block
        turn = builder.append_basic_block("features")
        done = builder.append_basic_block("features.done")
        builder.cbranch(builder.icmp_signed("<", begin, end), turn, done)
        builder.position_at_end(turn)
        f, sums = builder.phi(I64), _phis(emit, total)
        at = builder.mul(f, ir.Constant(I64, micro.vectors * micro.lanes))
        new: list[list[Any]] = sums
        if step == 4:
            size, count = LINE * 8 // emit.bits, _lines(emit)
            fetched = emit.at(line, builder.mul(f, ir.Constant(I64, count * size // 4)))
            for number in range(count):
                emit.prefetch(emit.at(fetched, number * size))
        for after in range(step):
            place = builder.add(at, ir.Constant(I64, after * micro.vectors * micro.lanes))
            feature = builder.add(f, ir.Constant(I64, after))
            new = _emit_feature(emit, micro, panel, rows, new, place, feature)
        following = builder.add(f, ir.Constant(I64, step))
        f.add_incoming(begin, before)
        _join(sums, total, before)
        if step == 4:
            f.add_incoming(following, turn)
            _join(sums, new, turn)
            builder.cbranch(builder.icmp_signed("<", following, end), turn, done)
        else:
            builder.branch(done)
        builder.position_at_end(done)
        result = _phis(emit, total)
        _join(result, total, before)
        _join(result, new, turn)
        total = result
    return total


def _phis(emit: Emitter, like: list[list[Any]]) -> list[list[Any]]:
    return [[emit.builder.phi(emit.vector) for _ in row] for row in like]


def _join(phis: list[list[Any]], values: list[list[Any]], block: Any) -> None:
    """Add the values that the phis take when control comes from `block`."""
    for row, incoming in zip(phis, values, strict=True):
        for phi, value in zip(row, incoming, strict=True):
            phi.add_incoming(value, block)


def _places(emit: Emitter, micro: Micro, values: Any, labels: Any) -> Iterator[list[Any]]:
    """Yield places of one vector's winners: (pointer, type) of value and label, and second ones."""
    for v in range(micro.vectors):
        places = []
        for rank in range(2 if micro.mode in (TWO, PAIR, NUMBERED) else 1):
            lane = (rank * micro.vectors + v) * micro.lanes
            places.append((emit.at(values, lane), emit.vector))
            if rank == 0 or micro.mode == TWO:
                places.append((emit.at(labels, lane), emit.labels))
        yield places


def _load_winners(emit: Emitter, micro: Micro, values: Any, labels: Any) -> list[list[Any]]:
    return [
        [emit.load(*place) for place in places] for places in _places(emit, micro, values, labels)
    ]


def _store_winners(
    emit: Emitter, micro: Micro, winners: list[list[Any]], values: Any, labels: Any
) -> None:
    for places, parts in zip(_places(emit, micro, values, labels), winners, strict=False):
        for (pointer, _), part in zip(places, parts, strict=True):
            emit.store(part, pointer)


def _smallest(emit: Emitter, scores: list[Any]) -> Any:
    """Return the smallest of a tile's scores in each lane."""
    while len(scores) > 1:
        a, b = scores[:2]
        scores = [*scores[2:], emit.builder.select(emit.builder.fcmp_ordered("<", b, a), b, a)]
    return scores[0]


def _emit_winners(
    emit: Emitter, micro: Micro, scores: list[Any], winners: list[Any], index: Any
) -> list[Any]:
    """Compare the tile's scores with each lane's best so far; ties keep the earlier centre."""
    builder = emit.builder

    def smaller(a: Any, b: Any) -> Any:
        return builder.fcmp_ordered("<", a, b)

    def lower(a: Any, b: Any) -> Any:
        return builder.icmp_signed("<", a, b)

    def own(m: int) -> Any:
        return emit.spread(builder.add(index, ir.Constant(emit.label, m)))

    best, label, *runner_up = winners
    if micro.mode == BLOCK:
        # Only the smallest score of the tile meets the best so far; its centre is found
        # once, at the end. Sums of squares are not negative, so their bits compare
        # like integers, whose minimum runs beside the multiply-adds instead of among them.
        bits = [builder.bitcast(score, emit.labels) for score in scores]
        while len(bits) > 1:
            a, b = bits[0], bits[1]
            bits = [*bits[2:], builder.select(lower(b, a), b, a)]
        old = builder.bitcast(best, emit.labels)
        wins = lower(bits[0], old)
        best = builder.bitcast(builder.select(wins, bits[0], old), emit.vector)
        label = builder.select(wins, own(0), label)
    if micro.mode == NUMBERED:
        # The number identifies the centre within the tile, so that only the tile has to be kept
        # with each smallest score; the margin makes up for the digits that it costs.
        # A NaN, which infinity becomes with a number, is passed over.
        old, second = best, runner_up[0]
        for m, score in enumerate(scores):
            bits = builder.bitcast(score, emit.labels)
            rest = builder.and_(bits, emit.spread(ir.Constant(emit.label, -NUMBERS)))
            bits = builder.or_(rest, emit.spread(ir.Constant(emit.label, m)))
            score = builder.bitcast(bits, emit.vector)
            wins = smaller(score, best)
            loser = builder.select(wins, best, score)
            second = builder.select(smaller(loser, second), loser, second)
            best = builder.select(wins, score, best)
        label = builder.select(smaller(best, old), own(0), label)
        runner_up = [second]
    if micro.mode == PAIR:
        # Which centre of the tile, first: constants cost less than names of centres.
        old, second = best, runner_up[0]
        number = emit.spread(ir.Constant(emit.label, 0))
        for m, score in enumerate(scores):
            wins = smaller(score, best)
            loser = builder.select(wins, best, score)
            second = builder.select(smaller(loser, second), loser, second)
            best = builder.select(wins, score, best)
            number = builder.select(wins, emit.spread(ir.Constant(emit.label, m)), number)
        label = builder.select(smaller(best, old), builder.add(own(0), number), label)
        runner_up = [second]
    for m, score in enumerate(scores if micro.mode in (BEST, TWO, MINIMA) else ()):
        wins = smaller(score, best)
        if micro.mode == TWO:
            second, runner = runner_up
            loser = builder.select(wins, best, score)
            loser_label = builder.select(wins, label, own(m))
            # an old best that loses its place comes before a runner-up of equal score
            follows = smaller(score, second)
            runner_up = [
                builder.select(follows, loser, second),
                builder.select(follows, loser_label, runner),
            ]
        best = builder.select(wins, score, best)
        label = builder.select(wins, own(m), label)
    return [best, label, *runner_up]
