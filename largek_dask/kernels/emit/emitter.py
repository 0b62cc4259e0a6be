"""Common code for emitting micro-kernels as LLVM IR."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from largek_dask.kernels.emit import standins

__all__ = ["I32", "I64", "Emitter", "emitted", "i64"]

Function = Callable[..., Any]

I32, I64 = ir.IntType(32), ir.IntType(64)


def i64(value: int) -> Any:
    return ir.Constant(I64, value)


def emitted(
    result: Any = types.void, constants: str = "", integers: str = "", **others: Any
) -> Callable[[Function], Function]:
    """Turn a function that emits code into an intrinsic; without a compiler, use numpy instead.

    The function is called with an :class:`Emitter` and the arguments: constants as Python integers,
    arrays as pointers to the first element, and other arguments as LLVM values. The function
    returns the result as an LLVM value, or None.

    Parameters
    ----------
    result : numba type, str or callable
        Type of the result. The name of an array argument stands for its element type; a function is
        called with the types of the arguments.
    constants, integers : str
        Names of arguments that are compile-time constants, and of other integer arguments (int64).
    **others : numba type or str
        Types of the remaining scalar arguments, by name.
    """

    def make(function: Function) -> Any:
        if numba.config.DISABLE_JIT:
            return getattr(standins, function.__name__)
        names = list(signature(function).parameters)[1:]
        fixed, long = constants.split(), integers.split()

        @wraps(function)
        def typed(typingctx: Any, *given: Any) -> Any:
            kinds = dict(zip(names, given, strict=True))
            if not all(isinstance(kinds[name], types.IntegerLiteral) for name in fixed):
                return None
            for name, kind in {**dict.fromkeys(long, types.int64), **others}.items():
                kinds[name] = kinds[kind].dtype if isinstance(kind, str) else kind
            out = kinds[result].dtype if isinstance(result, str) else result
            out = out if isinstance(out, types.Type) else out(kinds)

            def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
                emit = Emitter(context, builder, kinds, dict(zip(names, values, strict=True)))
                parts = []
                for name, value in zip(names, values, strict=True):
                    if name in fixed:
                        parts.append(kinds[name].literal_value)
                    elif isinstance(kinds[name], types.Array):
                        parts.append(emit.array(name).data)
                    else:
                        parts.append(value)
                found = function(emit, *parts)
                return context.get_dummy_value() if found is None else found

            return out(*kinds.values()), codegen

        return intrinsic(prefer_literal=True)(typed)

    return make


class Emitter:
    """Emit vector loads, stores and arithmetic for one element type and vector width."""

    bits: int
    lanes: int
    real: Any
    vector: Any
    label: Any
    labels: Any

    def __init__(self, context: Any, builder: Any, kinds: Any, values: Any) -> None:
        self.context, self.builder, self.kinds, self.values = context, builder, kinds, values

    def of(self, bits: int | str, lanes: int) -> Emitter:
        """Return an emitter for vectors of ``lanes`` elements; `bits` may name an array."""
        own = Emitter(self.context, self.builder, self.kinds, self.values)
        own.bits = self.bits_of(bits) if isinstance(bits, str) else bits
        own.lanes = lanes
        own.real = ir.FloatType() if own.bits == 32 else ir.DoubleType()
        own.vector = ir.VectorType(own.real, lanes)
        # Labels are as wide as scores, so that one mask selects from both.
        own.label = I32 if own.bits == 32 else I64
        own.labels = ir.VectorType(own.label, lanes)
        return own

    def panel(self, array: str, count: int) -> Emitter:
        """Return an emitter for vectors whose number of lanes divides ``count``.

        Vectors fill a register or half a register, because LLVM splits vectors of other sizes
        badly.
        """
        bits = self.bits_of(array)
        return self.of(bits, next(n for n in (512 // bits, 8, 4) if count % n == 0))

    def bits_of(self, array: str) -> int:
        """Return the number of bits per element of an array argument."""
        return int(self.kinds[array].dtype.bitwidth)

    def array(self, name: str) -> Any:
        """Return the structure of an array argument."""
        return self.context.make_array(self.kinds[name])(
            self.context, self.builder, self.values[name]
        )

    def at(self, pointer: Any, *offsets: Any) -> Any:
        """Return the pointer, advanced by offsets in elements."""
        for offset in offsets:
            index = i64(offset) if isinstance(offset, int) else offset
            pointer = self.builder.gep(pointer, [index])
        return pointer

    def load(self, pointer: Any, kind: Any = None) -> Any:
        """Load a vector; the default type is a vector of scores."""
        value = self.builder.load(self.builder.bitcast(pointer, (kind or self.vector).as_pointer()))
        value.align = 4  # vectors are aligned only to elements
        return value

    def index(self, pointer: Any, place: Any) -> Any:
        """Load a 32-bit or 64-bit integer and extend it to 64 bits."""
        return self.builder.sext(self.builder.load(self.at(pointer, place)), I64)

    def store(self, value: Any, pointer: Any) -> None:
        store = self.builder.store(value, self.builder.bitcast(pointer, value.type.as_pointer()))
        store.align = 4

    def prefetch(self, pointer: Any, soon: int = 2) -> None:
        """Prefetch the cache line at `pointer`, which need not be valid memory.

        The line goes to the second-level cache by default, and to the first-level cache if `soon`
        is 3.
        """
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
        fetch = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0i8")
        hints = [ir.Constant(I32, hint) for hint in (0, soon, 1)]  # read; locality; data
        self.builder.call(fetch, [self.builder.bitcast(pointer, byte), *hints])

    def constant(self, number: float) -> Any:
        return ir.Constant(self.vector, [number] * self.lanes)

    def broadcast(self, scalar: Any) -> Any:
        """Return a vector with a scalar in every lane."""
        undefined = ir.Constant(ir.VectorType(scalar.type, self.lanes), ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def shuffle(self, a: Any, b: Any, mask: list[int]) -> Any:
        """Return the elements that `mask` selects from the concatenation of `a` and `b`."""
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(mask)), mask))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return ``a*b + c`` with one rounding, lane by lane."""
        name = f"llvm.fma.v{self.lanes}f{self.bits}"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        return self.builder.call(
            cgutils.get_or_insert_function(self.builder.module, kind, name), [a, b, c]
        )

    def smaller(self, a: Any, b: Any) -> Any:
        return self.builder.fcmp_ordered("<", a, b)

    def bits_set(self, mask: Any) -> Any:
        """Return a mask as a 64-bit integer."""
        return self.builder.zext(self.builder.bitcast(mask, ir.IntType(self.lanes)), I64)

    def sum_pairwise(self, lanes: Any) -> Any:
        """Return the sum of all lanes, adding one half to the other until one lane is left."""
        half = self.lanes
        while half > 1:
            half //= 2
            parts = (list(range(half)), list(range(half, 2 * half)))
            lanes = self.builder.fadd(*(self.shuffle(lanes, lanes, part) for part in parts))
        return self.builder.extract_element(lanes, ir.Constant(I32, 0))

    def loop(
        self, begin: Any, end: Any, step: int, values: list[Any], body: Function, once: bool = False
    ) -> list[Any]:
        """Emit a loop over f from `begin` to `end`, exclusive; return the values after the loop.

        Each iteration replaces the values by ``body(f, values)``. If `once` is True, there is at
        most one iteration.
        """
        builder, entry = self.builder, self.builder.block
        loop, done = builder.append_basic_block("loop"), builder.append_basic_block("loop.done")
        builder.cbranch(builder.icmp_signed("<", begin, end), loop, done)
        builder.position_at_end(loop)
        f, running = builder.phi(I64), [builder.phi(value.type) for value in values]
        new = body(f, running)
        following, last = builder.add(f, i64(step)), builder.block
        for phi, old, later in zip([f, *running], [begin, *values], [following, *new], strict=True):
            phi.add_incoming(old, entry)
            if not once:
                phi.add_incoming(later, last)
        if once:
            builder.branch(done)
        else:
            builder.cbranch(builder.icmp_signed("<", following, end), loop, done)
        builder.position_at_end(done)
        out = []
        for old, later in zip(values, new, strict=True):
            out.append(builder.phi(old.type))
            out[-1].add_incoming(old, entry)
            out[-1].add_incoming(later, last)
        return out
