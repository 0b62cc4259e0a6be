"""LLVM IR of the dense micro-kernels, emitted through :func:`numba.extending.intrinsic`.

Lanes of a vector are rows (points) of a packed, transposed *panel*; one coordinate of a centre is
broadcast against them. A tile keeps ``centres x vectors`` accumulators in registers while it runs
over the features, so every loaded number is used many times: that, and not clever algebra, is
where the speed comes from (Goto and van de Geijn 2008, *Anatomy of high-performance matrix
multiplication*, with a minimum instead of a matrix at the end).

Each accumulator belongs to one (row, centre) pair and takes the features in order, one fused
multiply-add each. Nothing is ever summed across lanes. So a pair's score has the same bits in every
lane, tile shape and vector width, and on every CPU that has an IEEE fused multiply-add (LLVM calls
the C library's ``fma`` where the hardware has none).

What is emitted depends on compile-time integers only (`spec`, from :class:`~.tile.Micro`), which
callers hold in closures: numba's on-disk cache can hash integers, but not intrinsic objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from largek_dask.kernels.tile import BEST, BLOCK, SCORES, TWO, Micro

__all__ = ["fma", "scan", "square_distance", "transpose"]

_I1, _I32, _I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)


class _Emitter:
    """Vector loads, stores and arithmetic on one element type and width."""

    def __init__(self, context: Any, builder: Any, sig: Any, args: Any, bits: int, lanes: int):
        self.context, self.builder, self.sig, self.args = context, builder, sig, args
        self.real = ir.FloatType() if bits == 32 else ir.DoubleType()
        self.lanes = lanes
        self.vector = ir.VectorType(self.real, lanes)
        # labels as wide as the scores, so that one compare mask serves both without narrowing
        self.label = _I32 if bits == 32 else _I64
        self.labels = ir.VectorType(self.label, lanes)
        self.bits = bits

    def data(self, index: int) -> Any:
        array = self.context.make_array(self.sig.args[index])
        return array(self.context, self.builder, self.args[index]).data

    def at(self, pointer: Any, *offsets: Any) -> Any:
        for offset in offsets:
            index = ir.Constant(_I64, offset) if isinstance(offset, int) else offset
            pointer = self.builder.gep(pointer, [index])
        return pointer

    def load(self, pointer: Any, kind: Any = None) -> Any:
        value = self.builder.load(
            self.builder.bitcast(pointer, (kind or self.vector).as_pointer())
        )
        value.align = 4  # element alignment: panels start anywhere
        return value

    def store(self, value: Any, pointer: Any) -> None:
        store = self.builder.store(value, self.builder.bitcast(pointer, value.type.as_pointer()))
        store.align = 4

    def spread(self, scalar: Any) -> Any:
        """A vector with `scalar` in every lane."""
        undefined = ir.Constant(ir.VectorType(scalar.type, self.lanes), ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
        zeros = ir.Constant(ir.VectorType(_I32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def shuffle(self, a: Any, b: Any, mask: list[int]) -> Any:
        return self.builder.shuffle_vector(
            a, b, ir.Constant(ir.VectorType(_I32, len(mask)), mask)
        )

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        name = f"llvm.fma.v{self.lanes}f{self.bits}"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        return self.builder.call(
            cgutils.get_or_insert_function(self.builder.module, kind, name), [a, b, c]
        )


def _bits(array: Any) -> int:
    return int(array.dtype.bitwidth)


@intrinsic(prefer_literal=True)
def scan(
    typingctx: Any,
    spec: Any,
    panel: Any,
    panel_at: Any,
    centers: Any,
    row_stride: Any,
    feature: Any,
    n_features: Any,
    starts: Any,
    first: Any,
    n_tiles: Any,
    values: Any,
    labels: Any,
    at: Any,
    sums: Any,
    sums_at: Any,
) -> Any:
    """One panel of rows against `n_tiles` tiles of centres from centre `first` on.

    Parameters
    ----------
    spec : int
        ``Micro.code``, a compile-time constant.
    panel, panel_at : real (…,), int
        Rows, transposed: feature f of lane p at ``panel[panel_at + f*P + p]``.
    centers, row_stride, feature, n_features : real (…,), int, int, int
        Flat centres; features ``feature .. feature + n_features`` of each are used.
    starts : real (…,)
        What each centre's accumulator starts from; infinity for padding, which then never wins.
    first, n_tiles : int
    values, labels, at : real (…,), int (…,), int
        Running winners of the panel's lanes, read and updated (second ones P further on).
    sums, sums_at : real (…,), int
        Accumulators, tile after tile, for `SCORES` (written) and `carry` (read).
    """
    if not isinstance(spec, types.IntegerLiteral):
        return None
    micro = Micro.decode(spec.literal_value)
    integer = types.int64
    sig = types.void(
        spec, panel, integer, centers, integer, integer, integer, starts, integer, integer,
        values, labels, integer, sums, integer,
    )  # fmt: skip

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emit = _Emitter(context, builder, sig, args, _bits(panel), micro.lanes)
        _emit_scan(emit, micro)
        return context.get_dummy_value()

    return sig, codegen


def _emit_scan(emit: _Emitter, micro: Micro) -> None:
    builder, lanes, width = emit.builder, micro.lanes, micro.vectors * micro.lanes
    (_, _, panel_at, _, row_stride, feature, n_features, _, first, n_tiles, _, _, at, _, sums_at) = (
        emit.args
    )
    size = micro.centres * width
    panel = emit.at(emit.data(1), panel_at)
    centers = emit.at(emit.data(3), builder.mul(first, row_stride), feature)
    starts = emit.at(emit.data(7), first)
    values = emit.at(emit.data(10), at)
    labels = emit.at(emit.data(11), at)
    sums = emit.at(emit.data(13), sums_at)
    vectors = range(micro.vectors)
    before = [] if micro.mode == SCORES else _load_winners(emit, micro, values, labels)
    entry = builder.block
    loop = builder.append_basic_block("tile")
    done = builder.append_basic_block("tile.done")
    builder.cbranch(builder.icmp_signed(">", n_tiles, ir.Constant(_I64, 0)), loop, done)
    builder.position_at_end(loop)
    tile = builder.phi(_I64)
    tile.add_incoming(ir.Constant(_I64, 0), entry)
    winners = [[builder.phi(part.type) for part in lane] for lane in before]
    base = builder.mul(tile, ir.Constant(_I64, micro.centres))
    rows = [emit.at(centers, builder.mul(base, row_stride))]
    for _ in range(1, micro.centres):
        rows.append(emit.at(rows[-1], row_stride))
    own = emit.at(sums, builder.mul(tile, ir.Constant(_I64, size)))

    def sums_of(m: int, v: int) -> Any:
        return emit.at(own, m * width + v * lanes)

    start: list[list[Any]] = []
    for m in range(micro.centres):
        if micro.carry:
            start.append([emit.load(sums_of(m, v)) for v in vectors])
        else:
            start.append([emit.spread(builder.load(emit.at(starts, base, m)))] * micro.vectors)
    if micro.features:
        total = start
        for f in range(micro.features):
            total = _emit_feature(emit, micro, panel, rows, total, f * width, f)
    else:
        total = _emit_features(emit, micro, panel, rows, start, n_features)
    if micro.mode == SCORES:
        for m in range(micro.centres):
            for v in vectors:
                emit.store(total[m][v], sums_of(m, v))
        after: list[list[Any]] = []
    else:
        index = builder.add(first, tile if micro.mode == BLOCK else base)
        if emit.label is not _I64:
            index = builder.trunc(index, emit.label)
        after = _emit_winners(emit, micro, total, winners, index)
    following = builder.add(tile, ir.Constant(_I64, 1))
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


def _emit_feature(
    emit: _Emitter, micro: Micro, panel: Any, rows: list[Any], total: Any, at: Any, feature: Any
) -> list[list[Any]]:
    """One feature of every pair of the tile: one fused multiply-add each."""
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
    emit: _Emitter, micro: Micro, panel: Any, rows: list[Any], start: Any, n_features: Any
) -> list[list[Any]]:
    """The loop over features, accumulators in registers."""
    builder = emit.builder
    before = builder.block
    loop = builder.append_basic_block("feature")
    done = builder.append_basic_block("feature.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    f = builder.phi(_I64)
    f.add_incoming(ir.Constant(_I64, 0), before)
    total = [[builder.phi(emit.vector) for _ in row] for row in start]
    at = builder.mul(f, ir.Constant(_I64, micro.vectors * micro.lanes))
    new = _emit_feature(emit, micro, panel, rows, total, at, f)
    following = builder.add(f, ir.Constant(_I64, 1))
    f.add_incoming(following, loop)
    for m, row in enumerate(total):
        for v, phi in enumerate(row):
            phi.add_incoming(start[m][v], before)
            phi.add_incoming(new[m][v], loop)
    builder.cbranch(builder.icmp_signed("<", following, n_features), loop, done)
    builder.position_at_end(done)
    return new


def _places(emit: _Emitter, micro: Micro, values: Any, labels: Any) -> Iterator[list[Any]]:
    """Where one vector's winners stand: (pointer, type) of value and label, and second ones."""
    for v in range(micro.vectors):
        places = []
        for rank in range(2 if micro.mode == TWO else 1):
            lane = (rank * micro.vectors + v) * micro.lanes
            places.append((emit.at(values, lane), emit.vector))
            places.append((emit.at(labels, lane), emit.labels))
        yield places


def _load_winners(emit: _Emitter, micro: Micro, values: Any, labels: Any) -> list[list[Any]]:
    return [
        [emit.load(*place) for place in places] for places in _places(emit, micro, values, labels)
    ]


def _store_winners(
    emit: _Emitter, micro: Micro, winners: list[list[Any]], values: Any, labels: Any
) -> None:
    for places, parts in zip(_places(emit, micro, values, labels), winners, strict=False):
        for (pointer, _), part in zip(places, parts, strict=True):
            emit.store(part, pointer)


def _emit_winners(
    emit: _Emitter, micro: Micro, total: Any, winners: list[list[Any]], index: Any
) -> list[list[Any]]:
    """Compare the tile's scores with each lane's best so far; ties keep the earlier centre."""
    builder = emit.builder

    def smaller(a: Any, b: Any) -> Any:
        return builder.fcmp_ordered("<", a, b)

    def own(m: int) -> Any:
        return emit.spread(builder.add(index, ir.Constant(emit.label, m)))

    result = []
    for v, (best, label, *runner_up) in enumerate(winners):
        scores = [total[m][v] for m in range(micro.centres)]
        if micro.mode == BLOCK:
            # Only the smallest score of the tile meets the best so far; which centre it was is
            # found out once, at the end. Sums of squares are not negative, so their bits compare
            # like integers, whose minimum runs beside the multiply-adds instead of among them.
            whole = [builder.bitcast(score, emit.labels) for score in scores]
            while len(whole) > 1:
                a, b = whole[0], whole[1]
                whole = [*whole[2:], builder.select(builder.icmp_signed("<", b, a), b, a)]
            old = builder.bitcast(best, emit.labels)
            wins = builder.icmp_signed("<", whole[0], old)
            best = builder.bitcast(builder.select(wins, whole[0], old), emit.vector)
            label = builder.select(wins, own(0), label)
        for m, score in enumerate(scores if micro.mode in (BEST, TWO) else ()):
            wins = smaller(score, best)
            if micro.mode == TWO:
                second, runner = runner_up
                loser = builder.select(wins, best, score)
                loser_label = builder.select(wins, label, own(m))
                follows = smaller(loser, second)
                runner_up = [
                    builder.select(follows, loser, second),
                    builder.select(follows, loser_label, runner),
                ]
            best = builder.select(wins, score, best)
            label = builder.select(wins, own(m), label)
        result.append([best, label, *runner_up])
    return result


@intrinsic
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
    sig = types.void(
        rows, integer, integer, shift, integer, panel, integer, integer
    )

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        side = 8 if _bits(rows) == 32 else 4
        emit = _Emitter(context, builder, sig, args, _bits(rows), side)
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
                emit.store(moved, emit.at(out, builder.mul(args[7], ir.Constant(_I64, column + f))))
        return context.get_dummy_value()

    return sig, codegen


def _transposed(emit: _Emitter, block: list[Any], half: int) -> list[Any]:
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


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """``a*b + c`` with one rounding."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fma(*args)

    return a(a, a, a), codegen


@intrinsic
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
        emit = _Emitter(context, builder, sig, args, 64, 8)
        narrow = ir.VectorType(ir.FloatType() if _bits(rows) == 32 else ir.DoubleType(), 8)
        x, c = emit.at(emit.data(0), args[1]), emit.at(emit.data(2), args[3])
        n_features = args[4]

        def wide(value: Any, kind: Any) -> Any:
            return value if _bits(rows) == 64 else builder.fpext(value, kind)

        zero = ir.Constant(emit.vector, [0.0] * 8)
        store = cgutils.alloca_once(builder, emit.vector)
        builder.store(zero, store)
        whole = builder.mul(builder.lshr(n_features, ir.Constant(_I64, 3)), ir.Constant(_I64, 8))
        entry = builder.block
        loop = builder.append_basic_block("eight")
        done = builder.append_basic_block("eight.done")
        builder.cbranch(builder.icmp_signed(">", whole, ir.Constant(_I64, 0)), loop, done)
        builder.position_at_end(loop)
        f = builder.phi(_I64)
        total = builder.phi(emit.vector)
        f.add_incoming(ir.Constant(_I64, 0), entry)
        total.add_incoming(zero, entry)
        difference = builder.fsub(
            wide(emit.load(emit.at(x, f), narrow), emit.vector),
            wide(emit.load(emit.at(c, f), narrow), emit.vector),
        )
        new = builder.fadd(total, builder.fmul(difference, difference))
        following = builder.add(f, ir.Constant(_I64, 8))
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
        return builder.extract_element(result, ir.Constant(_I32, 0))

    return sig, codegen
