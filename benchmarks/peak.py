"""Measure the peak rate of fused multiply-adds on one core."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from largek_dask.kernels.jit import njit
from largek_dask.kernels.tile import select_tile

CHAINS = 12
"""Number of independent chains; more than latency times units on current processors."""


@cache
def _chains(lanes: int) -> Any:
    """Return a compiled function that runs `n` rounds of CHAINS vector FMAs."""

    @intrinsic
    def run_chains(typingctx: Any, n: Any, factor: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            count, scalar = args
            vector = ir.VectorType(ir.FloatType(), lanes)
            fma = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{lanes}f32"
            )
            undefined = ir.Constant(vector, ir.Undefined)
            zeros = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
            first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
            spread = builder.shuffle_vector(first, undefined, zeros)
            cells = [cgutils.alloca_once_value(builder, spread) for _ in range(CHAINS)]
            with cgutils.for_range(builder, count):
                for cell in cells:
                    value = builder.load(cell)
                    builder.store(builder.call(fma, [value, spread, spread]), cell)
            total = builder.load(cells[0])
            for cell in cells[1:]:
                total = builder.fadd(total, builder.load(cell))
            return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

        return types.float32(types.int64, types.float32), codegen

    @njit
    def run(n: Any, factor: Any) -> Any:
        return run_chains(n, factor)

    return run


def fma_peak(rounds: int = 2_000_000) -> float:
    """Measure float32 FMAs at the vector width of the kernels, in GFLOP/s of CPU time."""
    tile = select_tile()
    lanes = tile.lanes_of(4)
    run = _chains(lanes)
    factor = np.float32(0.5)
    run(10, factor)
    begin = time.process_time()
    run(rounds, factor)
    seconds = time.process_time() - begin
    return 2.0 * CHAINS * lanes * rounds / seconds / 1e9
