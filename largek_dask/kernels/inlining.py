"""Inline kernels into their callers, and save compiled code, with numba's internal interfaces.

Numba optimises each function and generates machine code for it before linking it into a caller,
which is then optimised again, level by level. Most kernels are called only by other kernels,
several levels deep, so a first fit spent most of its compile time on code that is never entered.
This module reduces the compile time of a first fit from 50.9 to 35.9 CPU seconds.

An internal kernel (:class:`InternalCompiler`) is only lowered to LLVM IR. A kernel that is called
from Python (:class:`KernelCompiler`) is optimised once, together with all kernels that it calls, as
a C compiler optimises a file.

These interfaces of numba are not public. :mod:`~.jit` uses this module only with the tested
versions of numba (``jit.TESTED``), and uses numba's own pipeline with any other version.
"""

from __future__ import annotations

import gc
import hashlib
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numba
from llvmlite import binding
from numba import _dynfunc, types
from numba.core import caching, codegen, compiler, lowering
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.environment import lookup_environment
from numba.core.serialize import dumps
from numba.core.targetconfig import TargetConfig
from numba.core.typed_passes import NativeLowering
from numba.core.types.containers import BaseTuple
from numba.extending import _Intrinsic

from largek_dask.kernels import code_cache

KIND = "internal"
"""Kind of the saved code of internal kernels; numba itself uses "object" and "bitcode"."""
ENVIRONMENT = "_ZN08NumbaEnv"
"""Prefix of the names of variables through which functions find their constants."""


def njit(
    function: Callable[..., Any], internal: bool, refcounts: bool, options: dict[str, Any]
) -> Any:
    """Compile a kernel; see :func:`largek_dask.kernels.jit.njit`."""
    compiled: Any = numba.njit(
        pipeline_class=InternalCompiler if internal else KernelCompiler,
        no_cpython_wrapper=internal,
        no_cfunc_wrapper=True,
        _nrt=refcounts,
        **options,
    )(function)
    compiled._cache = KernelCache(function)
    compiled.get_call_template = partial(_call_template, compiled)
    if function.__closure__:
        # Make symbols unique across processes, because numba reuses them in each process.
        function.__qualname__ += f".{_describe(function, set()).hex()[:16]}"
    return compiled


def _call_template(compiled: Any, args: Any, kws: Any) -> Any:
    """Give a call ``f(0)`` inside a kernel the same type as ``f(n)``.

    Otherwise numba would compile the callee once for each constant argument.
    """
    args = [types.unliteral(kind) for kind in args]
    kws = {name: types.unliteral(kind) for name, kind in kws.items()}
    return type(compiled).get_call_template(compiled, args, kws)


class KernelCache(caching._Cache):  # type: ignore[misc]
    """Cache of the saved overloads of one function."""

    def __init__(self, function: Any) -> None:
        self._function = function

    @property
    def cache_path(self) -> str:
        return str(code_cache.cache_folder())

    def enable(self) -> None:
        """Do nothing: the cache is always enabled."""

    disable = flush = enable

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the saved overload, or None if it must be compiled."""
        target_context.refresh()
        key, path = self._place(sig, target_context.codegen())
        return code_cache.load(path, key, partial(_rebuild, target_context))

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save one overload."""
        key, path = self._place(sig, data.codegen)
        code_cache.save(path, dumps((key, data._reduce())))

    def _place(self, sig: Any, codegen: Any) -> tuple[tuple[str, str, str], Path]:
        """Return the cache key of the code, and the path of the file."""
        key = str(sig), repr(codegen.magic_tuple()), _describe(self._function, set()).hex()
        code = self._function.__code__
        name = re.sub(r"[^\w.]", "", self._function.__qualname__)
        digest = hashlib.sha256("\n".join(key).encode()).hexdigest()[:24]
        file = f"{Path(code.co_filename).stem}.{name}-{code.co_firstlineno}-{digest}.bin"
        return key, code_cache.cache_folder() / file


def _describe(value: Any, seen: set[int]) -> bytes:
    """Return a hash of a function or of a closure value, which is equal in every process."""
    if isinstance(value, _Intrinsic):
        value = value._defn
    if not hasattr(value, "__code__"):
        return hashlib.sha256(dumps(value)).digest()
    seen.add(id(value))
    code = value.__code__
    digest = hashlib.sha256()
    digest.update(f"{value.__module__}\0{value.__qualname__}\0{code.co_firstlineno}\0".encode())
    digest.update(code.co_code)
    digest.update(_source_hash(code.co_filename))
    for cell in value.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # a recursive function, not yet defined
            continue
        content = getattr(content, "py_func", content)
        if id(content) not in seen:  # recursive functions
            digest.update(_describe(content, seen))
    return digest.digest()


@cache
def _source_hash(filename: str) -> bytes:
    path = Path(filename)
    return hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest()


class InternalLibrary(codegen.JITCodeLibrary):  # type: ignore[misc]
    """LLVM IR of a function and of all functions that it calls."""

    def finalize(self) -> None:
        """Link called functions; omit ``_reload_init``, which only parallel loops need."""
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._final_module.verify()
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def serialize_using_object_code(self) -> Any:
        self._ensure_finalized()
        return self.name, KIND, self._get_module_for_linking().as_bitcode()


class KernelLibrary(codegen.JITCodeLibrary):  # type: ignore[misc]
    """Machine code of a function and of the functions inlined into it."""

    def _finalize_specific(self) -> None:
        super()._finalize_specific()
        for variable in self._final_module.global_variables:
            if variable.name.startswith(ENVIRONMENT):
                environment = lookup_environment(variable.name)
                # Numba sets the environment of the kernel itself later.
                if environment is not None:
                    self._codegen.set_env(variable.name, environment)


class Flags(compiler.Flags):  # type: ignore[misc]
    """Numba flags that are compared by the values that were set.

    Flags are part of the key of each operator lookup, and numba's own comparison of all flags is
    slow.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return _FLAGS_HASH

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TargetConfig):
            return NotImplemented
        if type(other) is not Flags:
            return bool(super().__eq__(other))
        return self._values == other._values or bool(super().__eq__(other))


_FLAGS_HASH = hash(compiler.Flags())
"""Hash of every instance, because numba hashes only the names of flags."""


class KnownCalls:
    """Cache of the operators and builtin functions that numba's typing context has resolved.

    Without this cache, numba tries all definitions of a function at each call.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, function: Any, args: Any, kws: Any) -> Any:
        if type(function) is not types.Function:
            return self._context.resolve_function_type(function, args, kws)
        key = self._context, function, tuple(args), tuple(kws.items())
        known = _known_calls.get(key)
        if known is None:
            known = self._context.resolve_function_type(function, args, kws)
            # Do not cache functions that numba compiles: they depend on more than argument types.
            if known is not None and function.get_impl_key(known) == function.typing_key:
                _known_calls[key] = known
        return known


_known_calls: dict[tuple[Any, ...], Any] = {}


class KernelLower(lowering.Lower):  # type: ignore[misc]
    """Lower array indexing by integers to less code than numba generates.

    Most of a kernel is array indexing, and numba loads the fields of an array at each access.
    """

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        """Lower ``array[index]``; leave other objects to numba."""
        array = self.typeof(value.name)
        place = self._place(array, self.typeof(index.name), value, index)
        if place is None or signature.return_type != array.dtype or array.dtype != resty:
            return super().lower_getitem(resty, expr, value, index, signature)
        return self.context.unpack_value(self.builder, array.dtype, place)

    def lower_setitem(self, target_var: Any, index_var: Any, value_var: Any, signature: Any) -> Any:
        """Lower ``array[index] = value``; leave other objects to numba."""
        array = self.typeof(target_var.name)
        given = self.typeof(value_var.name)
        kind = signature.args[2]
        place = None
        if isinstance(kind, types.Number | types.Boolean):
            place = self._place(array, self.typeof(index_var.name), target_var, index_var)
        if place is None:
            return super().lower_setitem(target_var, index_var, value_var, signature)
        value = self.context.cast(self.builder, self.loadvar(value_var.name), given, kind)
        value = self.context.cast(self.builder, value, kind, array.dtype)
        self.context.pack_value(self.builder, array.dtype, value, place)
        return None

    def _place(self, array: Any, index: Any, value: Any, at: Any) -> Any:
        """Return a pointer to an item, or None unless the array is C-ordered and numeric."""
        several = isinstance(index, BaseTuple)
        kinds = tuple(index) if several else (index,)
        if not (
            type(array) is types.Array
            and array.layout == "C"
            and array.aligned
            and array.ndim == len(kinds)
            and isinstance(array.dtype, types.Integer | types.Float | types.Boolean)
            and all(isinstance(kind, types.Integer) for kind in kinds)
            and not self.context.enable_boundscheck
        ):
            return None
        builder = self.builder
        whole, indices = self.loadvar(value.name), self.loadvar(at.name)
        shape = builder.extract_value(whole, _SHAPE)
        offset = None
        for axis, kind in enumerate(kinds):
            place = builder.extract_value(indices, axis) if several else indices
            wide = types.intp if kind.signed else types.uintp
            place = self.context.cast(builder, place, kind, wide)
            length = builder.extract_value(shape, axis)
            if kind.signed:
                negative = builder.icmp_signed("<", place, place.type(0))
                place = builder.select(negative, builder.add(place, length), place)
            offset = place if offset is None else builder.add(builder.mul(offset, length), place)
        return builder.gep(builder.extract_value(whole, _DATA), [offset])


_DATA, _SHAPE = 4, 5
"""Indices of fields in numba's array structure."""


@register_pass(mutates_CFG=True, analysis_only=False)
class KernelLowering(NativeLowering):  # type: ignore[misc]
    """Lower to machine code."""

    _name = "largek_kernel_lowering"

    @property
    def lowering_class(self) -> type[KernelLower]:
        return KernelLower


@register_pass(mutates_CFG=True, analysis_only=False)
class InternalLowering(KernelLowering):
    """Lower to LLVM IR that callers link, without generating machine code."""

    _name = "largek_internal_lowering"

    def run_pass(self, state: Any) -> bool:
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state["cr"]
        cfunc = _register(state.targetctx, state.library, lowered.fndesc, lowered.env)
        state["cr"] = lowered._replace(cfunc=cfunc)
        return True


class KernelCompiler(compiler.Compiler):  # type: ignore[misc]
    """Compile kernels that are called from Python."""

    library_class: type[codegen.JITCodeLibrary] = KernelLibrary
    lowering_pass: type[NativeLowering] = KernelLowering

    def __init__(
        self, typingctx: Any, targetctx: Any, library: Any, args: Any, return_type: Any,
        flags: Any, *rest: Any,
    ) -> None:  # fmt: skip
        if library is None:
            library = self.library_class(targetctx.codegen(), "kernel")
            library.enable_object_caching()
        flags = Flags(flags)
        super().__init__(typingctx, targetctx, library, args, return_type, flags, *rest)
        self.state.typingctx = KnownCalls(typingctx)

    def compile_extra(self, func: Any) -> Any:
        """Compile a function and its callees with the garbage collector turned off.

        Collecting garbage would free little: nearly all objects that numba creates are used until
        the end.
        """
        collects = gc.isenabled()
        gc.disable()
        try:
            return super().compile_extra(func)
        finally:
            if collects:
                gc.enable()

    def define_pipelines(self) -> list[PassManager]:
        """Return numba's passes, with the lowering pass replaced."""
        [numbas] = super().define_pipelines()
        passes = PassManager(numbas.pipeline_name)
        for kind, description in numbas.passes:
            passes.add_pass(self.lowering_pass if kind is NativeLowering else kind, description)
        passes.finalize()
        return [passes]


class InternalCompiler(KernelCompiler):
    """Compile kernels that only other kernels call."""

    library_class = InternalLibrary
    lowering_pass = InternalLowering


def _rebuild(target_context: Any, saved: tuple[Any, ...]) -> Any:
    (name, kind, code), fndesc, environment, signature, objectmode, lifted, *rest = saved
    if kind != KIND:
        return compiler.CompileResult._rebuild(target_context, *saved)
    annotation, reload_init, environments = rest
    library = InternalLibrary(target_context.codegen(), name)
    library._final_module = binding.parse_bitcode(code)
    library._shared_module = library._final_module
    library._finalized = True
    return compiler.CompileResult(
        typing_context=target_context.typing_context,
        target_context=target_context,
        entry_point=_register(target_context, library, fndesc, environment),
        typing_error=None,
        type_annotation=annotation,
        signature=signature,
        library=library,
        call_helper=None,
        environment=environment,
        objectmode=objectmode,
        fndesc=fndesc,
        lifted=lifted,
        metadata=None,
        reload_init=reload_init,
        referenced_envs=environments,
    )


def _register(target_context: Any, library: Any, fndesc: Any, environment: Any) -> Any:
    """Register a function for its callers; return a placeholder for its Python entry point."""
    name = fndesc.qualname.split(".")[-1]
    module = fndesc.lookup_module()
    placeholder = _dynfunc.make_function(module, name, name, 0, environment, (library,))
    target_context.insert_user_function(placeholder, fndesc, [library])
    return placeholder
