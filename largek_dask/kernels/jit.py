"""Compile kernels with the project's only ``njit``.

Options are the same for every kernel: the GIL is released, a division by zero gives infinity as in
numpy, and floating-point operations are neither fused nor reordered (no ``fastmath``, no
``parallel``), so that a kernel's result does not depend on the machine.

With the versions of numba that :mod:`~.inlining` was tested with, kernels are inlined into their
callers, and processes share compiled code (:mod:`~.code_cache`). Any other version of numba uses
its own pipeline: results have the same bits, but compiling is slower and every process repeats it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar, overload

import numba

from largek_dask.kernels.code_cache import report_unsaved

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": False,
    "parallel": False,
    "cache": False,
}
TESTED = (0, 61), (0, 68)
"""First and last minor version of numba with which :mod:`~.inlining` was tested: the fits of
``tests/matrix/suite.py`` have the same digests with every version."""


def _is_tested(version: str) -> bool:
    """Return whether :mod:`~.inlining` was tested with this numba version; record if not."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and TESTED[0] <= (int(found[1]), int(found[2])) <= TESTED[1]:
        return True
    first, last = (".".join(map(str, tested)) for tested in TESTED)
    report_unsaved(f"numba {version} is not one of {first} to {last}")
    return False


_is_inlining = _is_tested(numba.__version__)


@overload
def njit(function: F, /) -> F: ...


@overload
def njit(
    *signatures: str | tuple[Any, ...],
    internal: bool = ...,
    refcounts: bool = ...,
    forceinline: bool = ...,
) -> Callable[[F], F]: ...


def njit(
    *signatures: Any, internal: bool = False, refcounts: bool = True, forceinline: bool = False
) -> Any:
    """Compile a function with the project's options and its cache.

    It is used as ``@njit`` or ``@njit(signature, ...)``. With ``NUMBA_DISABLE_JIT=1`` it returns
    the plain function. Functions made by one factory are told apart by the contents of their
    closures: plain values, functions, other kernels and intrinsics.

    Parameters
    ----------
    *signatures : str or tuple of types
        Argument types: the function is compiled (or loaded) for exactly these types when it is
        defined.
    internal : bool
        Only other kernels call the function: it becomes part of them, without machine code of its
        own.
    refcounts : bool
        Count references to arrays. Use False for a function that owns no arrays: with a dozen
        arrays, counting takes longer than a short loop.
    forceinline : bool
        LLVM inlines the function into its callers, however large it is.
    """
    if len(signatures) == 1 and hasattr(signatures[0], "__code__"):
        return njit()(signatures[0])
    options = OPTIONS | {"forceinline": True} if forceinline else OPTIONS

    def compile_kernel(function: Any) -> Any:
        if numba.config.DISABLE_JIT:
            return function
        if _is_inlining:
            from largek_dask.kernels import inlining

            compiled = inlining.njit(function, internal, refcounts, options)
        else:
            compiled = numba.njit(**options)(function)
        compiled.is_largek_kernel = True
        for signature in signatures:
            compiled.compile(signature)
        if signatures:
            compiled.disable_compile()
        return compiled

    return compile_kernel


def is_kernel(dispatcher: object) -> bool:
    """Return whether this module has compiled the function."""
    return getattr(dispatcher, "is_largek_kernel", False)


def saves_code() -> bool:
    """Return whether compiled code is saved for other processes if the folder is writable."""
    return _is_inlining and not numba.config.DISABLE_JIT
