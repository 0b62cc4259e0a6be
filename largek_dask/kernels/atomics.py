"""Atomic operations on words of memory, and calls of compiled functions by address.

Operations that load are acquire operations, and those that store are release operations. Without a
compiler, plain Python functions under one lock take their place.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

DATA_BYTES = 1 << 13
"""Maximum size of the arguments of a call, in which an array takes 100 bytes."""
_I64 = ir.IntType(64)
_PART = ir.FunctionType(ir.VoidType(), [_I64, _I64, _I64])


def _word(context: Any, builder: Any, sig: Any, values: Any) -> Any:
    data = context.make_array(sig.args[0])(context, builder, values[0]).data
    return builder.gep(builder.bitcast(data, _I64.as_pointer()), [values[1]])


@intrinsic
def load(typingctx, words, at):
    def codegen(context, builder, sig, values):
        return builder.load_atomic(_word(context, builder, sig, values), "acquire", 8)

    return types.int64(words, types.int64), codegen


@intrinsic
def store(typingctx, words, at, value):
    def codegen(context, builder, sig, values):
        builder.store_atomic(values[2], _word(context, builder, sig, values), "release", 8)
        return context.get_dummy_value()

    return types.void(words, types.int64, types.int64), codegen


@intrinsic
def add(typingctx, words, at, value):
    """Add to a word, and return the previous value."""

    def codegen(context, builder, sig, values):
        word = _word(context, builder, sig, values)
        return builder.atomic_rmw("add", word, values[2], "acq_rel")

    return types.int64(words, types.int64, types.int64), codegen


@intrinsic
def clear(typingctx, words, at, bits):
    """Clear bits of a word, and return the previous value."""

    def codegen(context, builder, sig, values):
        word = _word(context, builder, sig, values)
        return builder.atomic_rmw("and", word, builder.not_(values[2]), "acq_rel")

    return types.int64(words, types.int64, types.int64), codegen


@intrinsic
def replace(typingctx, words, at, old, new):
    """Replace the value ``old`` of a word; return False if the word has another value."""

    def codegen(context, builder, sig, values):
        word = _word(context, builder, sig, values)
        found = builder.cmpxchg(word, *values[2:], "acq_rel", "monotonic")
        return builder.extract_value(found, 1)

    return types.boolean(words, types.int64, types.int64, types.int64), codegen


@intrinsic
def pause(typingctx):
    """Tell the processor that this thread waits."""

    def codegen(context, builder, sig, values):
        if platform.machine().lower() in ("x86_64", "amd64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def call_part(typingctx, function, data, part, thread):
    """Call the function at an address with the arguments at another address."""

    def codegen(context, builder, sig, values):
        builder.call(builder.inttoptr(values[0], _PART.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), codegen


def describing(kernel: Any) -> Any:
    """Return an intrinsic that writes arguments to an address, and returns a function's address.

    The function calls ``kernel(part, thread, *arguments)`` with these arguments.
    """

    @intrinsic
    def describe(typingctx, data, args):
        kind = typingctx.resolve_value_type(kernel)
        called = kind.get_call_type(typingctx, (types.int64, types.int64, *args.types), {})

        def codegen(context, builder, sig, values):
            for library in context.get_function(kind, called).libs:
                context.active_code_library.add_linking_library(library)
            stored = context.get_value_type(args)
            if context.get_abi_sizeof(stored) > DATA_BYTES:
                raise NotImplementedError(f"more than {DATA_BYTES} bytes of arguments")
            place = builder.inttoptr(values[0], stored.as_pointer())
            builder.store(values[1], place, align=8)
            name = builder.module.get_unique_name("part")
            function = ir.Function(builder.module, _PART, name)
            function.linkage = "internal"
            inner = ir.IRBuilder(function.append_basic_block())
            whole = inner.load(inner.inttoptr(function.args[0], stored.as_pointer()), align=8)
            given = [
                context.cast(inner, inner.extract_value(whole, i), have, want)
                for i, (have, want) in enumerate(zip(args.types, called.args[2:], strict=True))
            ]
            descriptor = kernel.overloads[called.args].fndesc
            context.call_conv.call_function(
                inner,
                context.declare_function(builder.module, descriptor),
                called.return_type,
                called.args,
                [*function.args[1:], *given],
            )
            inner.ret_void()
            return builder.ptrtoint(function, _I64)

        return types.int64(types.int64, args), codegen

    return describe


if numba.config.DISABLE_JIT:
    _lock = threading.Lock()
    _calls: dict[int, tuple[Callable[..., None], tuple[Any, ...]]] = {}

    def load(words, at):
        return int(words[at])

    def store(words, at, value):
        words[at] = value

    def add(words, at, value):
        with _lock:
            words[at] += value
            return int(words[at]) - value

    def clear(words, at, bits):
        with _lock:
            before = int(words[at])
            words[at] = before & ~bits
            return before

    def replace(words, at, old, new):
        with _lock:
            if words[at] != old:
                return False
            words[at] = new
            return True

    def pause():
        pass

    def describing(kernel: Any) -> Any:
        def describe(data: int, arguments: tuple[Any, ...]) -> int:
            _calls[data] = kernel, arguments
            return data

        return describe

    def call_part(function, data, part, thread):
        kernel, arguments = _calls[function]
        kernel(part, thread, *arguments)
