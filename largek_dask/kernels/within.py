"""Code that only other kernels contain: linked into them, and machine code only there.

Numba optimises a function that another one calls to the end and makes machine code of it, links
it into the caller, and does both again, level by level. Most kernels are called by kernels only,
several levels deep, so a first fit spent most of its compiling on code that nobody enters. What
:class:`Within` compiles is intermediate code and no more; a kernel that Python enters
(:class:`Entered`) is optimised once and as a whole, as a C compiler does with a file.
"""

from __future__ import annotations

import gc
from typing import Any

from llvmlite import binding
from numba import _dynfunc
from numba.core import codegen, compiler, lowering, types
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.environment import lookup_environment
from numba.core.targetconfig import TargetConfig
from numba.core.typed_passes import NativeLowering
from numba.core.types.containers import BaseTuple

__all__ = ["Entered", "Within", "rebuild"]

KIND = "within"
"""What saved code of this module is called where numba has "object" and "bitcode"."""
ENVIRONMENT = "_ZN08NumbaEnv"
"""How the variables begin through which functions find their constants."""


class WithinLibrary(codegen.JITCodeLibrary):  # type: ignore[misc]
    """Intermediate code of a function and of those it calls."""

    def finalize(self) -> None:
        """Link what is called; what a reload has to begin with is of parallel loops alone."""
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._final_module.verify()
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def serialize_using_object_code(self) -> Any:
        """Without an object: the intermediate code alone."""
        self._ensure_finalized()
        return self.name, KIND, self._get_module_for_linking().as_bitcode()


class EnteredLibrary(codegen.JITCodeLibrary):  # type: ignore[misc]
    """Machine code of a function and of those it contains."""

    def _finalize_specific(self) -> None:
        super()._finalize_specific()
        for variable in self._final_module.global_variables:
            if variable.name.startswith(ENVIRONMENT):
                environment = lookup_environment(variable.name)
                # its own is set by numba, later
                if environment is not None:
                    self._codegen.set_env(variable.name, environment)


class Flags(compiler.Flags):  # type: ignore[misc]
    """Numba's flags, compared by what was set.

    They are a part of the key under which numba looks up every operator, several times for each;
    numba compares them by making a list of all flags.
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
"""That of all flags: numba's is of their names alone."""


class KnownCalls:
    """Numba's typing context, with a memory of how operators and builtin functions were typed.

    For each call numba tries one definition of a function after the other, also for the
    hundredth sum of two integers. What it has found before it finds again.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, function: Any, args: Any, kws: Any) -> Any:
        """The signature of a call."""
        if type(function) is not types.Function:
            return self._context.resolve_function_type(function, args, kws)
        key = self._context, function, tuple(args), tuple(kws.items())
        known = _known_calls.get(key)
        if known is None:
            known = self._context.resolve_function_type(function, args, kws)
            # Not what numba compiles for a call: that depends on more than types.
            if known is not None and function.get_impl_key(known) == function.typing_key:
                _known_calls[key] = known
        return known


_known_calls: dict[tuple[Any, ...], Any] = {}


class KernelLower(lowering.Lower):  # type: ignore[misc]
    """Lowering with less code for what kernels do most: take one item of an array, or put one.

    Numba's own takes the array apart through memory, and looks up anew how that is typed.
    """

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        """One item of an array, or whatever else numba can take."""
        array = self.typeof(value.name)
        place = self._place(array, self.typeof(index.name), value, index)
        if place is None or signature.return_type != array.dtype or array.dtype != resty:
            return super().lower_getitem(resty, expr, value, index, signature)
        return self.context.unpack_value(self.builder, array.dtype, place)

    def lower_setitem(self, target_var: Any, index_var: Any, value_var: Any, signature: Any) -> Any:
        """Put an item into an array, or whatever else numba can put."""
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
        """Where the item is; None if it is not one of an array of plain numbers, one by one."""
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
"""Fields of numba's arrays."""


@register_pass(mutates_CFG=True, analysis_only=False)
class EnteredLowering(NativeLowering):  # type: ignore[misc]
    """To machine code."""

    _name = "largek_entered_lowering"

    @property
    def lowering_class(self) -> type[KernelLower]:
        """What lowers one function."""
        return KernelLower


@register_pass(mutates_CFG=True, analysis_only=False)
class WithinLowering(EnteredLowering):
    """To intermediate code that callers link, without machine code."""

    _name = "largek_within_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower, and tell callers of the function."""
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state["cr"]
        cfunc = _known(state.targetctx, state.library, lowered.fndesc, lowered.env)
        state["cr"] = lowered._replace(cfunc=cfunc)
        return True


class Entered(compiler.Compiler):  # type: ignore[misc]
    """The compiler of kernels that Python calls."""

    library_class: type[codegen.JITCodeLibrary] = EnteredLibrary
    lowering_pass: type[NativeLowering] = EnteredLowering

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
        """Compile a function, and what it calls, without looking for garbage meanwhile.

        Of the hundred thousands of objects that numba makes for one nearly all are in use until
        the end; Python looks through them, and through all modules, again and again.
        """
        collects = gc.isenabled()
        gc.disable()
        try:
            return super().compile_extra(func)
        finally:
            if collects:
                gc.enable()

    def define_pipelines(self) -> list[PassManager]:
        """Numba's passes, with another that lowers."""
        [numbas] = super().define_pipelines()
        passes = PassManager(numbas.pipeline_name)
        for kind, description in numbas.passes:
            passes.add_pass(self.lowering_pass if kind is NativeLowering else kind, description)
        passes.finalize()
        return [passes]


class Within(Entered):
    """The compiler of kernels that only kernels call."""

    library_class = WithinLibrary
    lowering_pass = WithinLowering


def rebuild(target_context: Any, saved: tuple[Any, ...]) -> Any:
    """A compiled kernel of either sort from what was saved of it."""
    (name, kind, code), fndesc, environment, signature, objectmode, lifted, *rest = saved
    if kind != KIND:
        return compiler.CompileResult._rebuild(target_context, *saved)
    # (what a reload has to begin with is of parallel loops, which no kernel has)
    annotation, reload_init, environments = rest
    library = WithinLibrary(target_context.codegen(), name)
    library._final_module = binding.parse_bitcode(code)
    library._shared_module = library._final_module
    library._finalized = True
    return compiler.CompileResult(
        typing_context=target_context.typing_context,
        target_context=target_context,
        entry_point=_known(target_context, library, fndesc, environment),
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


def _known(target_context: Any, library: Any, fndesc: Any, environment: Any) -> Any:
    """Let callers find a function; what stands for it where numba wants an entry from Python."""
    name = fndesc.qualname.split(".")[-1]
    module = fndesc.lookup_module()
    nobody = _dynfunc.make_function(module, name, name, 0, environment, (library,))
    target_context.insert_user_function(nobody, fndesc, [library])
    return nobody
