"""LLVM IR for transposing rows into panels, and for distances of rows.

As in :mod:`~largek_dask.kernels.emit.dense`, no result depends on the machine's vector width.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed

from largek_dask.kernels.emit.emitter import I32, I64, Emitter, emitted, i64
from largek_dask.kernels.tile import NUMBERS

__all__ = [
    "as_readonly",
    "decode_labels",
    "eight_scores",
    "find_score",
    "four_near_squares",
    "four_square_distances",
    "four_weighted_square_distances",
    "gather",
    "near_square",
    "prefetch",
    "reset_winners",
    "row_product",
    "square_distance",
    "square_lengths",
    "tile_within",
    "transpose",
    "weighted_square_distance",
]


@emitted(
    constants="lengths n_rows",
    integers="rows_at row_stride feature begin end panel_at width norms_at",
)
def transpose(
    emit, lengths, n_rows, rows, rows_at, row_stride, shift, feature, begin, end, panel, panel_at,
    width, norms, norms_at,
):  # fmt: skip
    """Transpose a block of `n_rows` rows and 8 features (4 in float64) into a panel.

    Feature f of row r is read from ``rows[rows_at + r*row_stride + f]`` and written, minus
    ``shift[feature + f]``, to ``panel[panel_at + f*width + r]``. If `lengths` is 1, the squares of
    the features ``begin .. end`` of the block are added in order to ``norms[norms_at + r]``.
    `lengths` and `n_rows` are compile-time constants; `n_rows` is a multiple of half the number of
    features.
    """
    emit = emit.of("rows", n_rows)
    pointers = [emit.at(rows, rows_at)]
    for _ in range(1, n_rows):
        pointers.append(emit.at(pointers[-1], row_stride))
    own = emit.at(norms, norms_at) if lengths else None
    out = emit.at(panel, panel_at)
    _emit_block(emit, pointers, emit.at(shift, feature), out, width, own, (begin, end))


@emitted(constants="lengths", integers="place stride feature counted panel_at width norms_at")
def gather(
    emit, lengths, rows, places, place, stride, shift, feature, counted, panel, panel_at, width,
    norms, norms_at,
):  # fmt: skip
    """Transpose a block of listed rows, minus the shift: 8 x 8 for float32, 4 x 4 for float64.

    Parameters
    ----------
    lengths : int
        1 to also update the rows' squared lengths, else 0. A compile-time constant.
    rows, places, place, stride : real (…,), int32 (…,), int, int
        Row r of the block begins at ``rows[places[place + r] * stride]``.
    shift, feature : real (…,), int
        ``shift[feature + f]`` is subtracted from feature f of the block.
    counted : int
        Number of features that were in the previous block: their squares are not added again.
    panel, panel_at, width : real (…,), int, int
        Feature f of row r is written to ``panel[panel_at + f*width + r]``.
    norms, norms_at : real (…,), int
        Squared lengths, updated by one fused multiply-add per feature, in the order of features.
    """
    side = 256 // emit.bits_of("rows")
    emit, where = emit.of("rows", side), emit.at(places, place)
    begins = [emit.builder.mul(emit.index(where, r), stride) for r in range(side)]
    pointers = [emit.at(rows, begin, feature) for begin in begins]
    own = emit.at(norms, norms_at) if lengths else None
    out = emit.at(panel, panel_at)
    _emit_block(emit, pointers, emit.at(shift, feature), out, width, own, (counted, i64(side)))


@emitted(integers="at")
def prefetch(emit, rows, at):
    """Prefetch the cache line that holds ``rows[at]``."""
    emit.prefetch(emit.at(rows, at), soon=3)


def _emit_block(
    emit: Emitter,
    pointers: list[Any],
    offsets: Any,
    out: Any,
    width: Any,
    norms: Any,
    counted: tuple[Any, Any],
) -> None:
    """Emit the transposition of 32 bytes of each row, minus `offsets`, to `out`.

    If `norms` is given, the squares of the `counted` features are added to the norms in order, by
    fused multiply-adds.
    """
    builder, half = emit.builder, 128 // emit.bits
    short = ir.VectorType(emit.real, half)
    norm = None if norms is None else emit.load(norms)
    # Concatenate half rows on loading, so that the transposition stays inside 128-bit lanes.
    for column in (0, half):
        block = [
            _joined(emit, [emit.load(emit.at(row, column), short) for row in pointers[first::half]])
            for first in range(half)
        ]
        for f, lane in enumerate(_transposed(emit, block, half)):
            number = i64(column + f)
            moved = builder.fsub(lane, emit.broadcast(builder.load(emit.at(offsets, number))))
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
    """Concatenate vectors of equal size; the number of vectors is a power of two."""
    while len(parts) > 1:
        both = list(range(2 * parts[0].type.count))
        parts = [emit.shuffle(a, b, both) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _transposed(emit: Emitter, block: list[Any], half: int) -> list[Any]:
    """Transpose the (half x half) block inside each 128-bit lane of the vectors."""

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


@emitted(constants="width ranks label", integers="at")
def reset_winners(emit, width, ranks, label, values, labels, at):
    """Set the values of `ranks` winners of `width` rows to infinity, and the labels to `label`."""
    emit = emit.panel("values", ranks * width)
    for i in range(0, ranks * width, emit.lanes):
        emit.store(emit.constant(float("inf")), emit.at(values, at, i))
        emit.store(ir.Constant(emit.labels, [label] * emit.lanes), emit.at(labels, at, i))


@emitted(constants="lanes chains", integers="panel_at width n_features")
def square_lengths(emit, lanes, chains, panel, panel_at, width, n_features, out):
    """Write squared lengths of the first `lanes` rows of a panel into `out`.

    A single chain adds features in order. Several `chains` are faster, because none waits for
    another, but they add features in another order.
    """
    emit, builder = emit.panel("panel", lanes), emit.builder
    x, places = emit.at(panel, panel_at), range(0, lanes, emit.lanes)
    totals, begin = [emit.constant(0.0)] * (chains * len(places)), i64(0)

    def add(f, sums):
        new = []
        for at, total in enumerate(sums):
            chain, place = divmod(at, len(places))
            row = emit.at(x, builder.mul(builder.add(f, i64(chain)), width))
            value = emit.load(emit.at(row, places[place]))
            new.append(emit.fma(value, value, total))
        return new

    for step in sorted({chains, 1}, reverse=True):  # all chains, then the remaining features
        rest = builder.urem(builder.sub(n_features, begin), i64(step))
        end, n = builder.sub(n_features, rest), step * len(places)
        totals[:n] = emit.loop(begin, end, step, totals[:n], add)
        begin = end
    for i, place in enumerate(places):
        length = totals[i]
        for other in totals[i + len(places) :: len(places)]:
            length = builder.fadd(length, other)
        emit.store(length, emit.at(out, place))


@emitted(
    types.int64, "width", "at norms_at m",
    a="values", b="values", c="values", e="values", f="values",
)  # fmt: skip
def decode_labels(emit, width, values, labels, at, norms, norms_at, m, a, b, c, e, f):
    """Decode the labels of a panel with numbered scores; return the number of certain rows.

    Parameters
    ----------
    width : int
        Rows of a panel, a compile-time constant.
    values, labels, at : real (…,), int (…,), int
        The smallest score of each row, followed by the second smallest of each row. Labels hold the
        first centre of the winning tile, or -1 if there is none, and receive the centre, or 0.
    norms, norms_at : real (…,), int
        Squared lengths of the rows.
    m : int
        Number of rows in the panel, from the first lane on.
    a, b, c, e, f : real
        Fields of `Rounding.coarse`: a row is certain if the difference of its two scores exceeds
        one of the two bounds.
    """
    emit, builder = emit.panel("values", width), emit.builder
    scores, names, lengths = emit.at(values, at), emit.at(labels, at), emit.at(norms, norms_at)
    a, b, c, e, f = (emit.broadcast(number) for number in (a, b, c, e, f))
    zero, piece = emit.constant(0.0), emit.lanes
    first = ir.Constant(emit.labels, [0] * piece)
    rows = builder.trunc(m, emit.label) if emit.label is I32 else m
    certain = i64(0)
    for i in range(0, width, piece):
        best, second = (emit.load(emit.at(scores, rank + i)) for rank in (0, width))
        norm, name = emit.load(emit.at(lengths, i)), emit.at(names, i)
        number = builder.and_(
            builder.bitcast(best, emit.labels), ir.Constant(emit.labels, [NUMBERS - 1] * piece)
        )
        label = builder.add(emit.load(name, emit.labels), number)
        emit.store(builder.select(builder.icmp_signed("<", label, first), first, label), name)
        square = builder.fadd(best, norm)
        square = builder.select(emit.smaller(square, zero), zero, square)
        limit = builder.fadd(a, builder.fmul(b, norm))
        own = builder.fadd(builder.fadd(c, builder.fmul(e, norm)), builder.fmul(f, square))
        limit = builder.select(emit.smaller(own, limit), own, limit)
        sure = builder.fcmp_ordered(">", builder.fsub(second, best), limit)
        places = ir.Constant(emit.labels, list(range(i, i + piece)))
        sure = builder.and_(sure, builder.icmp_signed("<", places, emit.broadcast(rows)))
        mask = builder.bitcast(sure, ir.IntType(piece))
        certain = builder.add(certain, builder.zext(builder.ctpop(mask), I64))
    return certain


@emitted(types.int64, "centres", "panel_at width n_features first", best="panel")
def find_score(emit, centres, panel, panel_at, width, columns, n_features, starts, first, best):
    """Return the index of the centre with direct-form score `best`, from centre `first` on.

    Lanes are centres here, and scores are bit-identical to those of the tile. Feature f of the row
    is ``panel[panel_at + f*width]``; feature f of centre j is ``columns[(j // 8 * n_features + f) *
    8 + j % 8]``. If no score matches, the result is `first`.
    """
    emit, builder = emit.of("panel", centres), emit.builder
    x = emit.at(panel, panel_at)
    scores = _emit_tile_scores(emit, True, x, width, columns, n_features, starts, first)
    mask_type = ir.IntType(centres)
    mask = builder.bitcast(builder.fcmp_ordered("==", scores, emit.broadcast(best)), mask_type)
    place = builder.zext(builder.cttz(mask, ir.Constant(ir.IntType(1), 0)), I64)
    none = builder.icmp_unsigned("==", mask, ir.Constant(mask_type, 0))
    return builder.add(first, builder.select(none, i64(0), place))


@emitted(types.int64, "centres", "panel_at width n_features first", limit="panel")
def tile_within(emit, centres, panel, panel_at, width, columns, n_features, starts, first, limit):
    """Return a mask of the centres, from centre `first` on, whose scores do not exceed `limit`.

    Scores of one row are computed in the product form, bit-identical to those of the tile.
    Arguments are as in :func:`find_score`. The mask has one bit per centre.
    """
    emit = emit.of("panel", centres)
    x = emit.at(panel, panel_at)
    scores = _emit_tile_scores(emit, False, x, width, columns, n_features, starts, first)
    return emit.bits_set(emit.builder.fcmp_ordered("<=", scores, emit.broadcast(limit)))


def _emit_tile_scores(
    emit: Emitter, direct: bool, x: Any, width: Any, columns: Any, n_features: Any, starts: Any,
    first: Any,
) -> Any:  # fmt: skip
    """Emit the scores of a row and the centres of a tile, one centre per lane."""
    builder, eight = emit.builder, i64(8)
    block = builder.mul(builder.mul(builder.udiv(first, eight), n_features), eight)
    column = emit.at(columns, block, builder.urem(first, eight))

    def meet(f: Any, totals: list[Any]) -> list[Any]:
        c = emit.load(emit.at(column, builder.mul(f, eight)))
        value = emit.broadcast(builder.load(emit.at(x, builder.mul(f, width))))
        factors = (builder.fsub(c, value),) * 2 if direct else (value, c)
        return [emit.fma(*factors, totals[0])]

    return emit.loop(i64(0), n_features, 1, [emit.load(emit.at(starts, first))], meet)[0]


@emitted(lambda kinds: kinds["array"].copy(readonly=True))
def as_readonly(emit, array):
    """View the array as read-only, because functions are compiled for read-only arrays."""
    kind = emit.kinds["array"].copy(readonly=True)
    return impl_ret_borrowed(emit.context, emit.builder, kind, emit.values["array"])


@emitted(types.float64, integers="rows_at centers_at n_features")
def square_distance(emit, rows, rows_at, centers, centers_at, n_features):
    """Return the squared distance of a row and a centre in float64, in a fixed order.

    Feature f is added to partial sum ``f % 8``, for any vector width. Features are added in order,
    and the eight partial sums are added pairwise at the end.
    """
    x, c = emit.at(rows, rows_at), emit.at(centers, centers_at)
    return _emit_squares(emit.of(64, 8), x, [c], [], n_features)[0]


@emitted(types.float64, integers="rows_at centers_at n_features")
def row_product(emit, rows, rows_at, centers, centers_at, n_features):
    """Return the scalar product of two rows in float64, in the order of :func:`square_distance`."""
    x, c = emit.at(rows, rows_at), emit.at(centers, centers_at)
    return _emit_squares(emit.of(64, 8), x, [c], [], n_features, product=True)[0]


@emitted(types.float64, integers="rows_at centers_at weights_at n_features")
def weighted_square_distance(
    emit, rows, rows_at, centers, centers_at, weights, weights_at, n_features
):
    """Return :func:`square_distance` with each feature's square multiplied by a float64 weight."""
    x, c = emit.at(rows, rows_at), emit.at(centers, centers_at)
    return _emit_squares(emit.of(64, 8), x, [c], [emit.at(weights, weights_at)], n_features)[0]


@emitted(integers="rows_at n_features")
def four_square_distances(emit, rows, rows_at, centers, names, n_features, out):
    """Write :func:`square_distance` of a row and the centres ``names[:4]`` to ``out[:4]``.

    Computing four distances together takes about as long as computing two separately.
    """
    four = _named(emit, centers, names, n_features)
    _store(emit, _emit_squares(emit.of(64, 8), emit.at(rows, rows_at), four, [], n_features), out)


@emitted(integers="rows_at n_features")
def four_weighted_square_distances(emit, rows, rows_at, centers, weights, names, n_features, out):
    """Write :func:`weighted_square_distance` of a row and centres ``names[:4]`` to ``out[:4]``."""
    cs, ws = (_named(emit, table, names, n_features) for table in (centers, weights))
    _store(emit, _emit_squares(emit.of(64, 8), emit.at(rows, rows_at), cs, ws, n_features), out)


@emitted("rows", integers="rows_at centers_at n_features")
def near_square(emit, rows, rows_at, centers, centers_at, n_features):
    """Return the squared distance of a row and a centre, computed in the type of the rows.

    L partial sums fill 64 bytes, so the result for n features has a relative error of at most γ_m
    with ``m = n / L + 8``.
    """
    x, c = emit.at(rows, rows_at), emit.at(centers, centers_at)
    emit = emit.of("rows", 512 // emit.bits_of("rows"))
    return _emit_squares(emit, x, [c], [], n_features, fused=True)[0]


@emitted(integers="rows_at n_features")
def four_near_squares(emit, rows, rows_at, centers, names, n_features, out):
    """Write :func:`near_square` of a row and the centres ``names[:4]`` to ``out[:4]``."""
    four = _named(emit, centers, names, n_features)
    emit = emit.of("rows", 512 // emit.bits_of("rows"))
    _store(emit, _emit_squares(emit, emit.at(rows, rows_at), four, [], n_features, True), out)


@emitted(integers="rows_at n_features")
def eight_scores(emit, rows, rows_at, shift, factors, starts, names, n_features, out):
    """Write product-form scores of a row and the centres ``names[:8]`` to ``out[:8]``.

    Scores are bit-identical to those of a tile, since each is one chain of fused multiply-adds in
    the order of the features. Eight chains hide the latency.
    """
    emit, builder, x = emit.of("rows", 1), emit.builder, emit.at(rows, rows_at)
    centers = _named(emit, factors, names, n_features, 8)
    totals = [emit.load(emit.at(starts, emit.index(names, q))) for q in range(8)]

    def meet(f, sums):
        value = builder.fsub(emit.load(emit.at(x, f)), emit.load(emit.at(shift, f)))
        return [
            emit.fma(value, emit.load(emit.at(center, f)), total)
            for center, total in zip(centers, sums, strict=True)
        ]

    for q, total in enumerate(emit.loop(i64(0), n_features, 1, totals, meet)):
        emit.store(total, emit.at(out, q))


def _store(emit: Emitter, numbers: list[Any], out: Any) -> None:
    for q, number in enumerate(numbers):
        emit.builder.store(number, emit.at(out, q))


def _named(emit: Emitter, table: Any, names: Any, n_features: Any, n: int = 4) -> list[Any]:
    """Return pointers to the table rows with the first `n` indices in `names`."""
    numbers = [emit.index(names, q) for q in range(n)]
    return [emit.at(table, emit.builder.mul(number, n_features)) for number in numbers]


def _emit_squares(
    emit: Emitter, x: Any, centers: list[Any], weights: list[Any], n_features: Any,
    fused: bool = False, product: bool = False,
) -> list[Any]:  # fmt: skip
    """Emit sums of (x - c)² for each centre, weighted if weights are given; or the product x·c."""
    builder, lanes, bits = emit.builder, emit.lanes, emit.bits_of("rows")
    narrow = ir.VectorType(ir.FloatType() if bits == 32 else ir.DoubleType(), lanes)

    def add(f: Any, totals: list[Any], read: Any) -> list[Any]:
        def number(pointer: Any) -> Any:
            value = read(emit.at(pointer, f), narrow)
            return value if bits == emit.bits else builder.fpext(value, emit.vector)

        row, found = number(x), []
        for q, (center, total) in enumerate(zip(centers, totals, strict=True)):
            if product:
                found.append(builder.fadd(total, builder.fmul(row, number(center))))
                continue
            difference = builder.fsub(row, number(center))
            if fused:
                found.append(emit.fma(difference, difference, total))
                continue
            square = builder.fmul(difference, difference)
            if weights:
                square = builder.fmul(square, read(emit.at(weights[q], f), emit.vector))
            found.append(builder.fadd(total, square))
        return found

    end = builder.and_(n_features, i64(-lanes))
    totals = [emit.constant(0.0)] * len(centers)
    totals = emit.loop(i64(0), end, lanes, totals, partial(add, read=emit.load))
    # Adding 0 to the other lanes does not change a sum.
    few = partial(_load_first, emit, builder.sub(n_features, end))
    totals = emit.loop(end, n_features, lanes, totals, partial(add, read=few), once=True)
    return [emit.sum_pairwise(total) for total in totals]


def _load_first(emit: Emitter, count: Any, pointer: Any, kind: Any) -> Any:
    """Load the first `count` numbers of a vector, and set the rest to 0 without reading it."""
    builder, bits = emit.builder, 32 if isinstance(kind.element, ir.FloatType) else 64
    size = emit.lanes
    lanes, flag = ir.VectorType(I32, size), ir.VectorType(ir.IntType(1), size)
    mask = builder.icmp_signed(
        "<", ir.Constant(lanes, list(range(size))), emit.broadcast(builder.trunc(count, I32))
    )
    place = builder.bitcast(pointer, kind.as_pointer())
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(kind, [kind.as_pointer(), I32, flag, kind]),
        f"llvm.masked.load.v{size}f{bits}.p0",
    )
    nothing = ir.Constant(kind, [0.0] * size)
    return builder.call(function, [place, ir.Constant(I32, 4), mask, nothing])
