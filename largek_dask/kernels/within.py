"""Code that only other kernels contain: linked into them, and machine code only there.

Numba optimises a function that another one calls to the end and makes machine code of it, links
it into the caller, and does both again, level by level. Most kernels are called by kernels only,
several levels deep, so a first fit spent most of its compiling on code that nobody enters. What
:class:`Within` compiles is intermediate code and no more; a kernel that Python enters
(:class:`Entered`) is optimised once and as a whole, as a C compiler does with a file.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding
from numba import _dynfunc
from numba.core import codegen, compiler
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.environment import lookup_environment
from numba.core.typed_passes import NativeLowering

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


@register_pass(mutates_CFG=True, analysis_only=False)
class WithinLowering(NativeLowering):  # type: ignore[misc]
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

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *rest: Any) -> None:
        if library is None:
            library = self.library_class(targetctx.codegen(), "kernel")
            library.enable_object_caching()
        super().__init__(typingctx, targetctx, library, *rest)


class Within(Entered):
    """The compiler of kernels that only kernels call."""

    library_class = WithinLibrary

    def define_pipelines(self) -> list[PassManager]:
        """Numba's passes, with another last one."""
        [numbas] = super().define_pipelines()
        passes = PassManager(KIND)
        for kind, description in numbas.passes:
            passes.add_pass(WithinLowering if kind is NativeLowering else kind, description)
        passes.finalize()
        return [passes]


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
