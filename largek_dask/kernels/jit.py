"""Compile all kernels with one set of options.

Kernels release the GIL, and a division by zero gives infinity as in numpy. Floating-point
operations are neither fused nor reordered (no ``fastmath``, no ``parallel``), so that results do
not depend on the machine.

With tested versions of numba, kernels are inlined into their callers (:mod:`~.inlining`), and
processes share compiled code (:mod:`~.code_cache`). Other versions use numba's own pipeline:
results are bit-identical, but compiling is slower and is repeated in every process.
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
"""First and last minor version of numba with which :mod:`~.inlining` was tested. All tested
versions give the same digests for the fits of ``tests/matrix/suite.py``."""


def _is_tested(version: str) -> bool:
    """Return True if this numba version was tested; otherwise report that code is not saved."""
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
    """Compile a function with the options and the code cache of this project.

    Use this decorator as ``@njit`` or ``@njit(signature, ...)``. With ``NUMBA_DISABLE_JIT=1``,
    functions are returned unchanged. The cache distinguishes functions from the same factory by
    their closures, which may contain plain values, functions, other kernels and intrinsics.

    Parameters
    ----------
    *signatures : str or tuple of types
        Argument types for which the function is compiled (or loaded) when it is defined.
    internal : bool
        True if only other kernels call the function. It then has no separate machine code.
    refcounts : bool
        Count references to arrays. Use False for a function that owns no arrays: with a dozen
        arrays, counting takes longer than a short loop.
    forceinline : bool
        Make LLVM inline the function into its callers, even if the function is large.
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
    """Return True if :func:`njit` has compiled the function."""
    return getattr(dispatcher, "is_largek_kernel", False)


def saves_code() -> bool:
    """Return True if compiled code is saved for other processes, given a writable folder."""
    return _is_inlining and not numba.config.DISABLE_JIT
