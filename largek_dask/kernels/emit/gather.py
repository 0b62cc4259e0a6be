"""LLVM IR for rows from anywhere: brought near, and transposed into panels.

As in :mod:`~largek_dask.kernels.emit.rows`, nothing here depends on the machine's vector width.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from largek_dask.kernels.emit.emitter import I64, Emitter, bits_of, typed_intrinsic
from largek_dask.kernels.emit.rows import _transposed

__all__ = ["fetch", "gather"]


@typed_intrinsic
def gather(
    typingctx: Any,
    lengths: Any,
    rows: Any,
    places: Any,
    place: Any,
    stride: Any,
    shift: Any,
    feature: Any,
    counted: Any,
    panel: Any,
    panel_at: Any,
    width: Any,
    norms: Any,
    norms_at: Any,
) -> Any:
    """A square block of given rows (8 x 8 single, 4 x 4 double precision), moved, into a panel.

    Parameters
    ----------
    lengths : int
        1: add to the rows' squared lengths too. A compile-time constant.
    rows, places, place, stride : real (…,), int32 (…,), int, int
        Row r of the block begins at ``rows[places[place + r] * stride]``.
    shift, feature : real (…,), int
        Feature f of the block has ``shift[feature + f]`` taken off.
    counted : int
        Features of the block that were in the block before: their squares are not added.
    panel, panel_at, width : real (…,), int, int
        Written at ``panel[panel_at + f*width + r]``.
    norms, norms_at : real (…,), int
        Squared lengths, one fused multiply-add a feature, in the order of features.
    """
    if not isinstance(lengths, types.IntegerLiteral):
        return None
    adds, integer = bool(lengths.literal_value), types.int64
    sig = types.void(
        lengths, rows, places, integer, integer, shift, integer, integer, panel, integer, integer,
        norms, integer,
    )  # fmt: skip

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        side = 8 if bits_of(rows) == 32 else 4
        emit = Emitter(context, builder, sig, args, bits_of(rows), side)
        half = side // 2
        short = ir.VectorType(emit.real, half)
        where = emit.at(emit.data(2), args[3])
        pointers = []
        for r in range(side):
            row = builder.sext(builder.load(emit.at(where, r)), I64)
            pointers.append(emit.at(emit.data(1), builder.mul(row, args[4]), args[6]))
        offsets = emit.at(emit.data(5), args[6])
        out = emit.at(emit.data(8), args[9])
        norm_at = emit.at(emit.data(11), args[12])
        norm = emit.load(norm_at) if adds else None
        # halves are joined on loading, as where rows are neighbours
        for column in (0, half):
            block = [
                emit.shuffle(
                    emit.load(emit.at(pointers[r], column), short),
                    emit.load(emit.at(pointers[r + half], column), short),
                    list(range(side)),
                )
                for r in range(half)
            ]
            for f, lane in enumerate(_transposed(emit, block, half)):
                number = ir.Constant(I64, column + f)
                moved = builder.fsub(lane, emit.spread(builder.load(emit.at(offsets, column + f))))
                emit.store(moved, emit.at(out, builder.mul(args[10], number)))
                if adds:
                    is_new = builder.icmp_signed("<=", args[7], number)
                    norm = builder.select(is_new, emit.fma(moved, moved, norm), norm)
        if adds:
            emit.store(norm, norm_at)
        return context.get_dummy_value()

    return sig, codegen


@typed_intrinsic
def fetch(typingctx: Any, rows: Any, at: Any) -> Any:
    """Ask for the cache line that holds ``rows[at]``."""
    sig = types.void(rows, types.int64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emit = Emitter(context, builder, sig, args, bits_of(rows), 4)
        emit.prefetch(emit.at(emit.data(0), args[1]), soon=3)
        return context.get_dummy_value()

    return sig, codegen
