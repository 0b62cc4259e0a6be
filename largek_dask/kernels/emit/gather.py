"""LLVM IR for rows from anywhere: brought near, and transposed into panels.

As in :mod:`~largek_dask.kernels.emit.rows`, nothing here depends on the machine's vector width.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types

from largek_dask.kernels.emit.emitter import I64, Emitter, bits_of, typed_intrinsic
from largek_dask.kernels.emit.rows import emit_block

__all__ = ["fetch", "gather"]


@typed_intrinsic
def gather(
    typingctx, lengths, rows, places, place, stride, shift, feature, counted, panel, panel_at,
    width, norms, norms_at,
):  # fmt: skip
    """Copy a square block of given rows (8 x 8 single, 4 x 4 double precision), less the shift.

    Parameters
    ----------
    lengths : int
        1: add to the rows' squared lengths too. A compile-time constant.
    rows, places, place, stride : real (…,), int32 (…,), int, int
        Row r of the block begins at ``rows[places[place + r] * stride]``.
    shift, feature : real (…,), int
        ``shift[feature + f]`` is subtracted from feature f of the block.
    counted : int
        Features of the block that were in the block before: their squares are not added.
    panel, panel_at, width : real (…,), int, int
        Written at ``panel[panel_at + f*width + r]``.
    norms, norms_at : real (…,), int
        Squared lengths, one fused multiply-add per feature, in the order of features.
    """
    if not isinstance(lengths, types.IntegerLiteral):
        return None
    adds, integer = bool(lengths.literal_value), types.int64
    sig = types.void(
        lengths, rows, places, integer, integer, shift, integer, integer, panel, integer, integer,
        norms, integer,
    )  # fmt: skip

    def codegen(context, builder, sig, args):
        side = 8 if bits_of(rows) == 32 else 4
        emit = Emitter(context, builder, sig, args, bits_of(rows), side)
        where = emit.at(emit.data(2), args[3])
        pointers = []
        for r in range(side):
            row = builder.sext(builder.load(emit.at(where, r)), I64)
            pointers.append(emit.at(emit.data(1), builder.mul(row, args[4]), args[6]))
        emit_block(
            emit,
            pointers,
            emit.at(emit.data(5), args[6]),
            emit.at(emit.data(8), args[9]),
            args[10],
            emit.at(emit.data(11), args[12]) if adds else None,
            (args[7], ir.Constant(I64, side)),
        )
        return context.get_dummy_value()

    return sig, codegen


@typed_intrinsic
def fetch(typingctx, rows, at):
    """Prefetch the cache line that holds ``rows[at]``."""
    sig = types.void(rows, types.int64)

    def codegen(context, builder, sig, args):
        emit = Emitter(context, builder, sig, args, bits_of(rows), 4)
        emit.prefetch(emit.at(emit.data(0), args[1]), soon=3)
        return context.get_dummy_value()

    return sig, codegen
