"""Common parts of the emitted micro-kernels: LLVM vectors of one element type and width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["I32", "I64", "Emitter", "bits_of", "typed_intrinsic"]

Function = Callable[..., Any]

I32, I64 = ir.IntType(32), ir.IntType(64)


def typed_intrinsic(function: Function) -> Function:
    """Apply numba's decorator, with a type; integers known at compile time arrive as such."""
    emitted: Function = intrinsic(prefer_literal=True)(function)
    return emitted


class Emitter:
    """Vector loads, stores and arithmetic on one element type and width."""

    def __init__(self, context: Any, builder: Any, sig: Any, args: Any, bits: int, lanes: int):
        self.context, self.builder, self.sig, self.args = context, builder, sig, args
        self.real = ir.FloatType() if bits == 32 else ir.DoubleType()
        self.lanes = lanes
        self.vector = ir.VectorType(self.real, lanes)
        # labels as wide as the scores, so that one compare mask serves both without narrowing
        self.label = I32 if bits == 32 else I64
        self.labels = ir.VectorType(self.label, lanes)
        self.bits = bits

    def data(self, index: int) -> Any:
        """Return a pointer to the first element of an array argument."""
        array = self.context.make_array(self.sig.args[index])
        return array(self.context, self.builder, self.args[index]).data

    def at(self, pointer: Any, *offsets: Any) -> Any:
        """Return `pointer`, moved on by a number of elements."""
        for offset in offsets:
            index = ir.Constant(I64, offset) if isinstance(offset, int) else offset
            pointer = self.builder.gep(pointer, [index])
        return pointer

    def load(self, pointer: Any, kind: Any = None) -> Any:
        """Return a vector read from memory, of scores unless `kind` says otherwise."""
        value = self.builder.load(self.builder.bitcast(pointer, (kind or self.vector).as_pointer()))
        value.align = 4  # element alignment: panels start anywhere
        return value

    def store(self, value: Any, pointer: Any) -> None:
        """Write a vector to memory."""
        store = self.builder.store(value, self.builder.bitcast(pointer, value.type.as_pointer()))
        store.align = 4

    def prefetch(self, pointer: Any, soon: int = 2) -> None:
        """Prefetch the cache line at `pointer`, which need not be valid memory.

        By default it comes to the second-level cache, with ``soon=3`` to the first.
        """
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
        fetch = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0i8")
        hints = [ir.Constant(I32, hint) for hint in (0, soon, 1)]  # to read; how soon; data
        self.builder.call(fetch, [self.builder.bitcast(pointer, byte), *hints])

    def spread(self, scalar: Any) -> Any:
        """Return a vector with `scalar` in every lane."""
        undefined = ir.Constant(ir.VectorType(scalar.type, self.lanes), ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def shuffle(self, a: Any, b: Any, mask: list[int]) -> Any:
        """Return elements of `a` and, counted on, `b`, picked by `mask`."""
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(mask)), mask))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return ``a*b + c`` with one rounding, lane by lane."""
        name = f"llvm.fma.v{self.lanes}f{self.bits}"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        return self.builder.call(
            cgutils.get_or_insert_function(self.builder.module, kind, name), [a, b, c]
        )


def bits_of(array: Any) -> int:
    """Return the bits of an element of an array type."""
    return int(array.dtype.bitwidth)
