"""LLVM IR for rows: transposing them into panels, and exact distances.

As in :mod:`~largek_dask.kernels.emit.dense`, nothing here depends on the machine's vector width.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed

from largek_dask.kernels.emit.emitter import I32, I64, Emitter, bits_of, typed_intrinsic
from largek_dask.kernels.tile import NUMBERS

__all__ = [
    "clear",
    "conclude",
    "eight_scores",
    "emit_block",
    "four_near_squares",
    "four_square_distances",
    "four_weighted_square_distances",
    "frozen",
    "near_square",
    "settle",
    "square_distance",
    "square_lengths",
    "tile_within",
    "transpose",
    "weighted_square_distance",
]


@typed_intrinsic
def transpose(
    typingctx, lengths, n_rows, rows, rows_at, row_stride, shift, feature, begin, end, panel,
    panel_at, width, norms, norms_at,
):  # fmt: skip
    """Transpose a block of `n_rows` rows (8 features, or 4 in double precision) into a panel.

    Row r, feature f of the block is read at ``rows[rows_at + r*row_stride + f]``; less
    ``shift[feature + f]`` it is written to ``panel[panel_at + f*width + r]``. With
    `lengths` of 1 its squares of the features from `begin` to `end` of the block are added to
    ``norms[norms_at + r]``, in order. `lengths` and `n_rows`, a multiple of half the features, are
    compile-time constants.
    """
    if not all(isinstance(kind, types.IntegerLiteral) for kind in (lengths, n_rows)):
        return None
    adds, count, integer = bool(lengths.literal_value), n_rows.literal_value, types.int64
    sig = types.void(
        lengths, n_rows, rows, integer, integer, shift, integer, integer, integer, panel, integer,
        integer, norms, integer,
    )  # fmt: skip

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, bits_of(rows), count)
        pointers = [emit.at(emit.data(2), args[3])]
        for _ in range(1, count):
            pointers.append(emit.at(pointers[-1], args[4]))
        emit_block(
            emit,
            pointers,
            emit.at(emit.data(5), args[6]),
            emit.at(emit.data(9), args[10]),
            args[11],
            emit.at(emit.data(12), args[13]) if adds else None,
            (args[7], args[8]),
        )
        return context.get_dummy_value()

    return sig, codegen


def emit_block(
    emit: Emitter,
    pointers: list[Any],
    offsets: Any,
    out: Any,
    width: Any,
    norms: Any,
    counted: tuple[Any, Any],
) -> None:
    """Emit a block of 32 bytes of each row at `pointers`, less `offsets`, transposed to `out`.

    To `norms`, if there are any, the squares of its `counted` features are added: one fused
    multiply-add each, in order.
    """
    builder, half = emit.builder, 128 // emit.bits
    short = ir.VectorType(emit.real, half)
    norm = None if norms is None else emit.load(norms)
    # Parts of vectors are joined on loading (which costs few shuffles on x86), so that the
    # remaining transposition stays inside 128-bit lanes.
    for column in (0, half):
        block = [
            _joined(emit, [emit.load(emit.at(row, column), short) for row in pointers[first::half]])
            for first in range(half)
        ]
        for f, lane in enumerate(_transposed(emit, block, half)):
            number = ir.Constant(I64, column + f)
            moved = builder.fsub(lane, emit.spread(builder.load(emit.at(offsets, number))))
            emit.store(moved, emit.at(out, builder.mul(width, number)))
            if norm is not None:
                begin, end = counted
                counts = builder.and_(
                    builder.icmp_signed("<=", begin, number), builder.icmp_signed("<", number, end)
                )
                norm = builder.select(counts, emit.fma(moved, moved, norm), norm)
    if norm is not None:
        emit.store(norm, norms)


def _joined(emit: Emitter, parts: list[Any]) -> Any:
    """Join vectors of one size, a power of two of them, one after the other."""
    while len(parts) > 1:
        both = list(range(2 * parts[0].type.count))
        parts = [emit.shuffle(a, b, both) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _transposed(emit: Emitter, block: list[Any], half: int) -> list[Any]:
    """Transpose inside each 128-bit lane of the vectors: (half x half), several side by side."""

    def low(a: Any, b: Any, pieces: list[int]) -> Any:
        mask = []
        for lane in range(0, emit.lanes, half):
            mask += [lane + p if p < half else emit.lanes + lane + p - half for p in pieces]
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


def _piece(count: int, bits: int) -> int:
    """Return the rows of a vector: of a size that any vector unit has, or half of one.

    LLVM would split an odd vector badly.
    """
    return next(piece for piece in (512 // bits, 8, 4) if count % piece == 0)


@typed_intrinsic
def clear(typingctx, width, ranks, label, values, labels, at):
    """Reset winners: infinity and `label` for `ranks` winners of `width` rows."""
    if not all(isinstance(kind, types.IntegerLiteral) for kind in (width, ranks, label)):
        return None
    count, first = ranks.literal_value * width.literal_value, label.literal_value
    sig = types.void(width, ranks, label, values, labels, types.int64)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, bits_of(values), _piece(count, bits_of(values)))
        scores, names = emit.at(emit.data(3), args[5]), emit.at(emit.data(4), args[5])
        for i in range(0, count, emit.lanes):
            emit.store(ir.Constant(emit.vector, [float("inf")] * emit.lanes), emit.at(scores, i))
            emit.store(ir.Constant(emit.labels, [first] * emit.lanes), emit.at(names, i))
        return context.get_dummy_value()

    return sig, codegen


@typed_intrinsic
def square_lengths(typingctx, lanes, chains, panel, panel_at, width, n_features, out):
    """Write squared lengths of the first `lanes` rows of a panel into `out`.

    In one chain they are summed in the order of the features. If that does not matter several
    `chains` are faster: none waits for the additions of another.
    """
    if not all(isinstance(kind, types.IntegerLiteral) for kind in (lanes, chains)):
        return None
    count, n_chains, integer = lanes.literal_value, chains.literal_value, types.int64
    sig = types.void(lanes, chains, panel, integer, integer, integer, out)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, bits_of(panel), _piece(count, bits_of(panel)))
        _, _, _, panel_at, width, n_features, _ = args
        x, out = emit.at(emit.data(2), panel_at), emit.data(6)
        places = range(0, count, emit.lanes)
        zero = ir.Constant(emit.vector, [0.0] * emit.lanes)
        totals = [[zero for _ in places] for _ in range(n_chains)]
        begin = ir.Constant(I64, 0)
        for step in sorted({n_chains, 1}, reverse=True):  # one feature per chain; then the rest
            rest = builder.urem(builder.sub(n_features, begin), ir.Constant(I64, step))
            end = builder.sub(n_features, rest)
            before = builder.block
            loop = builder.append_basic_block("length")
            done = builder.append_basic_block("length.done")
            builder.cbranch(builder.icmp_signed("<", begin, end), loop, done)
            builder.position_at_end(loop)
            f = builder.phi(I64)
            sums = [[builder.phi(emit.vector) for _ in places] for _ in range(step)]
            new = []
            for chain, chain_sums in enumerate(sums):
                row = emit.at(x, builder.mul(builder.add(f, ir.Constant(I64, chain)), width))
                values = [emit.load(emit.at(row, i)) for i in places]
                new.append([emit.fma(v, v, s) for v, s in zip(values, chain_sums, strict=True)])
            following = builder.add(f, ir.Constant(I64, step))
            f.add_incoming(begin, before)
            f.add_incoming(following, loop)
            builder.cbranch(builder.icmp_signed("<", following, end), loop, done)
            builder.position_at_end(done)
            for chain, chain_sums in enumerate(sums):
                for i, total in enumerate(chain_sums):
                    total.add_incoming(totals[chain][i], before)
                    total.add_incoming(new[chain][i], loop)
                    result = builder.phi(emit.vector)
                    result.add_incoming(totals[chain][i], before)
                    result.add_incoming(new[chain][i], loop)
                    totals[chain][i] = result
            begin = end
        for i, place in enumerate(places):
            length = totals[0][i]
            for other in totals[1:]:
                length = builder.fadd(length, other[i])
            emit.store(length, emit.at(out, place))
        return context.get_dummy_value()

    return sig, codegen


@typed_intrinsic
def conclude(typingctx, width, values, labels, at, norms, norms_at, m, a, b, c, e, f):
    """Name the centres of a panel whose scores are numbered; return the number of certain rows.

    Parameters
    ----------
    width : int
        Rows of a panel, a compile-time constant.
    values, labels, at : real (…,), int (…,), int
        The smallest score of each row, and after these the second smallest; the first centre of
        the tile that won, -1 if none has, which becomes the centre, or 0.
    norms, norms_at : real (…,), int
        Squared lengths of the rows.
    m : int
        Number of rows that count, from the first on.
    a, b, c, e, f : real
        `Rounding.coarse`: a row is certain if its two scores are farther apart than one of the two
        bounds.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    count, integer, real = width.literal_value, types.int64, values.dtype
    sig = integer(width, values, labels, integer, norms, integer, integer, *[real] * 5)

    def codegen(context, builder, sig, args):
        piece = _piece(count, bits_of(values))
        emit = Emitter(context, builder, sig, args, bits_of(values), piece)
        _, _, _, at, _, norms_at, m, *coarse = args
        scores, names = emit.at(emit.data(1), at), emit.at(emit.data(2), at)
        lengths = emit.at(emit.data(4), norms_at)
        a, b, c, e, f = (emit.spread(number) for number in coarse)
        zero = ir.Constant(emit.vector, [0.0] * piece)
        first = ir.Constant(emit.labels, [0] * piece)
        rows = builder.trunc(m, emit.label) if emit.label is I32 else m
        certain = ir.Constant(I64, 0)
        for i in range(0, count, piece):
            best, second = (emit.load(emit.at(scores, rank + i)) for rank in (0, count))
            norm = emit.load(emit.at(lengths, i))
            name = emit.at(names, i)
            number = builder.and_(
                builder.bitcast(best, emit.labels), ir.Constant(emit.labels, [NUMBERS - 1] * piece)
            )
            label = builder.add(emit.load(name, emit.labels), number)
            emit.store(builder.select(builder.icmp_signed("<", label, first), first, label), name)
            square = builder.fadd(best, norm)
            square = builder.select(builder.fcmp_ordered("<", square, zero), zero, square)
            limit = builder.fadd(a, builder.fmul(b, norm))
            own = builder.fadd(builder.fadd(c, builder.fmul(e, norm)), builder.fmul(f, square))
            limit = builder.select(builder.fcmp_ordered("<", own, limit), own, limit)
            sure = builder.fcmp_ordered(">", builder.fsub(second, best), limit)
            places = ir.Constant(emit.labels, list(range(i, i + piece)))
            sure = builder.and_(sure, builder.icmp_signed("<", places, emit.spread(rows)))
            mask = builder.bitcast(sure, ir.IntType(piece))
            certain = builder.add(certain, builder.zext(builder.ctpop(mask), I64))
        return certain

    return sig, codegen


@typed_intrinsic
def settle(typingctx, centres, panel, panel_at, width, columns, n_features, starts, first, best):
    """Return which of `centres` centres from `first` on has score `best` with a row (direct form).

    Lanes are centres here; every one of them repeats the sums of its tile, to the same bits.
    Feature f of the row is ``panel[panel_at + f*width]``, of centre j
    ``columns[(j // 8 * n_features + f) * 8 + j % 8]``. Without a match the result is `first`.
    """
    if not isinstance(centres, types.IntegerLiteral):
        return None
    lanes, integer = centres.literal_value, types.int64
    real = panel.dtype
    sig = integer(centres, panel, integer, integer, columns, integer, starts, integer, real)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, bits_of(panel), lanes)
        first, best = args[7:]
        scores = _emit_tile_scores(emit, direct=True)
        mask_type = ir.IntType(lanes)
        mask = builder.bitcast(builder.fcmp_ordered("==", scores, emit.spread(best)), mask_type)
        place = builder.cttz(mask, ir.Constant(ir.IntType(1), 0))
        place = builder.select(
            builder.icmp_unsigned("==", mask, ir.Constant(mask_type, 0)),
            ir.Constant(I64, 0),
            builder.zext(place, I64),
        )
        return builder.add(first, place)

    return sig, codegen


@typed_intrinsic
def tile_within(
    typingctx, centres, panel, panel_at, width, columns, n_features, starts, first, limit
):
    """Return which of `centres` centres from `first` on have no score above `limit` with one row.

    In the product form, to the bits of their tile; the row and the centres are laid out as for
    :func:`settle`. The result has a bit per centre.
    """
    if not isinstance(centres, types.IntegerLiteral):
        return None
    lanes, integer = centres.literal_value, types.int64
    real = panel.dtype
    sig = integer(centres, panel, integer, integer, columns, integer, starts, integer, real)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, bits_of(panel), lanes)
        scores = _emit_tile_scores(emit, direct=False)
        within = builder.fcmp_ordered("<=", scores, emit.spread(args[8]))
        return builder.zext(builder.bitcast(within, ir.IntType(lanes)), I64)

    return sig, codegen


def _emit_tile_scores(emit: Emitter, direct: bool) -> Any:
    """Emit scores of one row with the centres of a tile, one per lane, feature by feature."""
    builder = emit.builder
    _, _, panel_at, width, _, n_features, _, first, _ = emit.args
    eight = ir.Constant(I64, 8)
    block = builder.mul(builder.mul(builder.udiv(first, eight), n_features), eight)
    column = emit.at(emit.data(4), block, builder.urem(first, eight))
    x = emit.at(emit.data(1), panel_at)
    start = emit.load(emit.at(emit.data(6), first))

    def meet(f: Any, totals: list[Any]) -> list[Any]:
        c = emit.load(emit.at(column, builder.mul(f, eight)))
        value = emit.spread(builder.load(emit.at(x, builder.mul(f, width))))
        factors = (builder.fsub(c, value),) * 2 if direct else (value, c)
        return [emit.fma(*factors, totals[0])]

    (scores,) = _emit_loop(builder, n_features, [start], meet)
    return scores


@typed_intrinsic
def frozen(typingctx, array):
    """Return the array with a read-only type, so that functions are not compiled twice."""
    return array.copy(readonly=True)(array), lambda context, builder, sig, args: impl_ret_borrowed(
        context, builder, sig.return_type, args[0]
    )


@typed_intrinsic
def square_distance(typingctx, rows, rows_at, centers, centers_at, n_features):
    """Return the squared distance of a row and a centre in float64, in a fixed order.

    Feature f belongs to lane ``f % 8`` of eight running sums, for any vector width;
    each lane takes its features in order; the eight are added pairwise at the end.
    """
    integer = types.int64
    sig = types.float64(rows, integer, centers, integer, integer)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, 64, 8)
        x, c = emit.at(emit.data(0), args[1]), emit.at(emit.data(2), args[3])
        return _emit_squares(emit, bits_of(rows), x, [c], [], args[4])[0]

    return sig, codegen


@typed_intrinsic
def weighted_square_distance(
    typingctx, rows, rows_at, centers, centers_at, weights, weights_at, n_features
):
    """Return the same with each feature's square times its own float64 weight."""
    integer = types.int64
    sig = types.float64(rows, integer, centers, integer, weights, integer, integer)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, 64, 8)
        x, c = emit.at(emit.data(0), args[1]), emit.at(emit.data(2), args[3])
        weight = emit.at(emit.data(4), args[5])
        return _emit_squares(emit, bits_of(rows), x, [c], [weight], args[6])[0]

    return sig, codegen


@typed_intrinsic
def four_square_distances(typingctx, rows, rows_at, centers, names, n_features, out):
    """Write :func:`square_distance` of a row and the centres ``names[:4]`` to ``out[:4]``.

    Side by side they take about as long as two, one after the other.
    """
    integer = types.int64
    sig = types.void(rows, integer, centers, names, integer, out)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, 64, 8)
        x = emit.at(emit.data(0), args[1])
        cs = _named(emit, emit.data(2), emit.data(3), args[4])
        for q, square in enumerate(_emit_squares(emit, bits_of(rows), x, cs, [], args[4])):
            builder.store(square, emit.at(emit.data(5), q))
        return context.get_dummy_value()

    return sig, codegen


@typed_intrinsic
def near_square(typingctx, rows, rows_at, centers, centers_at, n_features):
    """Return the squared distance of a row and a centre, rounded in the type of the rows.

    There are 64 bytes' worth of running sums, so with n features in vectors of L lanes its error is
    at most the factor ``1 ± γ_m``, ``m = n / L + 8``.
    """
    integer = types.int64
    sig = rows.dtype(rows, integer, centers, integer, integer)

    def codegen(context, builder, sig, args):
        bits = bits_of(rows)
        emit = Emitter(context, builder, sig, args, bits, 512 // bits)
        x, c = emit.at(emit.data(0), args[1]), emit.at(emit.data(2), args[3])
        return _emit_squares(emit, bits, x, [c], [], args[4], fused=True)[0]

    return sig, codegen


@typed_intrinsic
def four_near_squares(typingctx, rows, rows_at, centers, names, n_features, out):
    """Write :func:`near_square` of a row and the four named centres to ``out``."""
    integer = types.int64
    sig = types.void(rows, integer, centers, names, integer, out)

    def codegen(context, builder, sig, args):
        bits = bits_of(rows)
        emit = Emitter(context, builder, sig, args, bits, 512 // bits)
        x = emit.at(emit.data(0), args[1])
        four = _named(emit, emit.data(2), emit.data(3), args[4])
        for q, total in enumerate(_emit_squares(emit, bits, x, four, [], args[4], fused=True)):
            builder.store(total, emit.at(emit.data(5), q))
        return context.get_dummy_value()

    return sig, codegen


@typed_intrinsic
def four_weighted_square_distances(
    typingctx, rows, rows_at, centers, weights, names, n_features, out
):
    """Write :func:`weighted_square_distance` of a row and centres ``names[:4]`` to ``out[:4]``."""
    integer = types.int64
    sig = types.void(rows, integer, centers, weights, names, integer, out)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, 64, 8)
        x = emit.at(emit.data(0), args[1])
        cs, ws = (_named(emit, emit.data(i), emit.data(4), args[5]) for i in (2, 3))
        for q, square in enumerate(_emit_squares(emit, bits_of(rows), x, cs, ws, args[5])):
            builder.store(square, emit.at(emit.data(6), q))
        return context.get_dummy_value()

    return sig, codegen


@typed_intrinsic
def eight_scores(typingctx, rows, rows_at, shift, factors, starts, names, n_features, out):
    """Compute scores of a row and the centres ``names[:8]`` in the product form, as a tile does.

    They equal those of a tile to the bit. Each is a chain of fused multiply-adds,
    feature by feature; eight of them hide its latency.
    """
    integer = types.int64
    sig = types.void(rows, integer, shift, factors, starts, names, integer, out)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, bits_of(rows), 1)
        x, shift, names = emit.at(emit.data(0), args[1]), emit.data(2), emit.data(5)
        centers = _named(emit, emit.data(3), names, args[6], 8)
        totals = [
            emit.load(emit.at(emit.data(4), builder.sext(builder.load(emit.at(names, q)), I64)))
            for q in range(8)
        ]

        def meet(f, sums):
            value = builder.fsub(emit.load(emit.at(x, f)), emit.load(emit.at(shift, f)))
            return [
                emit.fma(value, emit.load(emit.at(center, f)), total)
                for center, total in zip(centers, sums, strict=True)
            ]

        for q, total in enumerate(_emit_loop(builder, args[6], totals, meet)):
            emit.store(total, emit.at(emit.data(7), q))
        return context.get_dummy_value()

    return sig, codegen


def _emit_loop(builder: Any, end: Any, totals: list[Any], step: Any) -> list[Any]:
    """Emit a loop over f from 0 to `end`, in which ``step(f, values)`` returns the next values."""
    before = builder.block
    loop, done = builder.append_basic_block("loop"), builder.append_basic_block("loop.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    f, values = builder.phi(I64), [builder.phi(total.type) for total in totals]
    new: list[Any] = step(f, values)
    following = builder.add(f, ir.Constant(I64, 1))
    olds, laters = [ir.Constant(I64, 0), *totals], [following, *new]
    for phi, old, later in zip([f, *values], olds, laters, strict=True):
        phi.add_incoming(old, before)
        phi.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", following, end), loop, done)
    builder.position_at_end(done)
    return new


def _named(emit: Emitter, table: Any, names: Any, n_features: Any, n: int = 4) -> list[Any]:
    """Return pointers to the rows of a table given by the first `n` names."""
    numbers = [emit.builder.sext(emit.builder.load(emit.at(names, q)), I64) for q in range(n)]
    return [emit.at(table, emit.builder.mul(number, n_features)) for number in numbers]


def _emit_squares(
    emit: Emitter,
    bits: int,
    x: Any,
    centers: list[Any],
    weights: list[Any],
    n_features: Any,
    fused: bool = False,
) -> list[Any]:
    """Emit sums of (x - c)² of each centre, times its weights if there are any, of `bits` bits."""
    builder, lanes = emit.builder, emit.lanes
    narrow = ir.VectorType(ir.FloatType() if bits == 32 else ir.DoubleType(), lanes)

    def squares(f: Any, read: Any) -> list[Any]:
        def number(pointer: Any) -> Any:
            value = read(emit.at(pointer, f), narrow)
            return value if bits == emit.bits else builder.fpext(value, emit.vector)

        row, found = number(x), []
        for q, center in enumerate(centers):
            difference = builder.fsub(row, number(center))
            if fused:
                found.append(difference)
                continue
            square = builder.fmul(difference, difference)
            if weights:
                square = builder.fmul(square, read(emit.at(weights[q], f), emit.vector))
            found.append(square)
        return found

    def add(total: Any, term: Any) -> Any:
        return emit.fma(term, term, total) if fused else builder.fadd(total, term)

    zero = ir.Constant(emit.vector, [0.0] * lanes)
    whole = builder.and_(n_features, ir.Constant(I64, -lanes))
    left = builder.sub(n_features, whole)
    entry = builder.block
    loop, last, rest, done = (
        builder.append_basic_block(name) for name in ("eight", "eight.last", "rest", "eight.done")
    )
    builder.cbranch(builder.icmp_signed(">", whole, ir.Constant(I64, 0)), loop, last)
    builder.position_at_end(loop)
    f = builder.phi(I64)
    f.add_incoming(ir.Constant(I64, 0), entry)
    totals = [builder.phi(emit.vector) for _ in centers]
    added = [
        add(total, square) for total, square in zip(totals, squares(f, emit.load), strict=True)
    ]
    following = builder.add(f, ir.Constant(I64, lanes))
    f.add_incoming(following, loop)
    for total, more in zip(totals, added, strict=True):
        total.add_incoming(zero, entry)
        total.add_incoming(more, loop)
    builder.cbranch(builder.icmp_signed("<", following, whole), loop, last)

    builder.position_at_end(last)
    sums = [builder.phi(emit.vector) for _ in centers]
    for total, more in zip(sums, added, strict=True):
        total.add_incoming(zero, entry)
        total.add_incoming(more, loop)
    builder.cbranch(builder.icmp_signed(">", left, ir.Constant(I64, 0)), rest, done)
    builder.position_at_end(rest)
    # The other lanes get a zero more, which changes no bit of a sum of squares.
    few = partial(_load_first, emit, left)
    ends = [add(total, square) for total, square in zip(sums, squares(whole, few), strict=True)]
    builder.branch(done)
    builder.position_at_end(done)
    results = [builder.phi(emit.vector) for _ in centers]
    for result, total, more in zip(results, sums, ends, strict=True):
        result.add_incoming(total, last)
        result.add_incoming(more, rest)
    return [_added_pairwise(emit, result) for result in results]


def _load_first(emit: Emitter, count: Any, pointer: Any, kind: Any) -> Any:
    """Load the first numbers of a vector, and zeros; memory behind them is not touched."""
    builder, bits = emit.builder, 32 if isinstance(kind.element, ir.FloatType) else 64
    size = emit.lanes
    lanes, flag = ir.VectorType(I32, size), ir.VectorType(ir.IntType(1), size)
    mask = builder.icmp_signed(
        "<", ir.Constant(lanes, list(range(size))), emit.spread(builder.trunc(count, I32))
    )
    place = builder.bitcast(pointer, kind.as_pointer())
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(kind, [kind.as_pointer(), I32, flag, kind]),
        f"llvm.masked.load.v{size}f{bits}.p0",
    )
    nothing = ir.Constant(kind, [0.0] * size)
    return builder.call(function, [place, ir.Constant(I32, 4), mask, nothing])


def _added_pairwise(emit: Emitter, lanes: Any) -> Any:
    """Return the sum of all lanes: halves on halves."""
    half = emit.lanes
    while half > 1:
        half //= 2
        lanes = emit.builder.fadd(
            emit.shuffle(lanes, lanes, list(range(half))),
            emit.shuffle(lanes, lanes, list(range(half, 2 * half))),
        )
    return emit.builder.extract_element(lanes, ir.Constant(I32, 0))
