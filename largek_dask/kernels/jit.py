"""The only ``njit`` of the project, with a cache that 8 processes may share.

Options are the same for every kernel: the GIL is released, a division by zero gives infinity as in
numpy, and floating-point operations are neither fused nor reordered (no ``fastmath``, no
``parallel``), so that a kernel's result does not depend on the machine.

Compiled code is kept in one folder a version. The name of the folder is a hash of every source
file in ``kernels/``, of the versions that make code (Python, numba, llvmlite, numpy, this
package), and of the processor: numba's own key knows only the file that defines a function, and
would go on calling an old copy of a function inlined from another file. Every overload is one file
whose name is a hash of its key; it is written aside and renamed, so there is no index that two
processes could write at once, and no lock. What cannot be read is compiled again, what cannot be
written stays in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import platform
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, overload

import llvmlite
import numba
import numpy as np
from llvmlite import binding
from numba import types
from numba.core import caching
from numba.core.serialize import dumps
from numba.extending import _Intrinsic
from numba.misc.appdirs import AppDirs
from numpy.typing import NDArray

from largek_dask import config
from largek_dask.kernels.within import Entered, Within, rebuild
from largek_dask.version import __version__

__all__ = ["asks_whether_to_compile", "cache_folder", "is_cache_empty", "njit", "readonly"]

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])
Scalar = TypeVar("Scalar", bound=np.generic)

FIXED = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": False,
    "parallel": False,
    "cache": False,
}
KEPT_VERSIONS = 4
DIGEST_BYTES = hashlib.sha256().digest_size
"""Bytes at the end of a file of code: a hash of all before, as torn machine code could be run."""
SOURCES = Path(__file__).parent


@overload
def njit(function: F, /) -> F: ...


@overload
def njit(*signatures: str | tuple[Any, ...], **options: Any) -> Callable[[F], F]: ...


def njit(*signatures: Any, **options: Any) -> Any:
    """Compile a function with the project's fixed options and its cache.

    Used as ``@njit``, ``@njit()`` or ``@njit(signature, ...)``; with signatures the function is
    compiled (or loaded) where it is defined and takes no other types. With
    ``NUMBA_DISABLE_JIT=1`` the plain function comes back.

    Parameters
    ----------
    *signatures : str or tuple of types
        Types of the arguments: compile for exactly these.
    **options : object
        Any numba option that is not fixed here (``inline``, ``locals``, ``boundscheck``).

    Raises
    ------
    TypeError
        An option that this module fixes.

    Notes
    -----
    A function made by a factory is told from its sisters by what its closure holds: plain values,
    functions, other kernels and intrinsics may stand there, and count by content.
    """
    if len(signatures) == 1 and not options and _is_function(signatures[0]):
        return _compiled(signatures[0], (), {})
    refused = sorted(FIXED.keys() & options.keys())
    if refused:
        raise TypeError(f"fixed for every kernel, not an option here: {', '.join(refused)}")
    return lambda function: _compiled(function, signatures, options)


def readonly(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """A read-only view: kernels called with it need no second copy for writable arrays."""
    view = array.view()
    view.flags.writeable = False
    return view


def _is_function(value: Any) -> bool:
    return hasattr(value, "__code__")


def _compiled(function: Any, signatures: tuple[Any, ...], options: dict[str, Any]) -> Any:
    within = options.get("no_cpython_wrapper", False)
    options = {**options, **FIXED, "no_cfunc_wrapper": True}
    compiled: Any = numba.njit(pipeline_class=Within if within else Entered, **options)(function)
    if compiled is function:  # NUMBA_DISABLE_JIT
        return function
    compiled._cache = KernelCache(function)
    compiled.get_call_template = partial(_call_template, compiled)
    if function.__closure__:
        # Numba tells the symbols of sisters made by one factory apart by a counter that begins
        # anew in every process. Two of them, compiled and saved by different processes, could
        # have one name, and a third process that loads both would run the first for either.
        function.__qualname__ += f".{_describe(function, set()).hex()[:16]}"
    for signature in signatures:
        compiled.compile(signature)
    if signatures:
        compiled.disable_compile()
    return compiled


def _call_template(compiled: Any, args: Any, kws: Any) -> Any:
    """How numba types a call of a kernel in a kernel: for ``f(0)`` as for ``f(n)``.

    It would compile the callee once for each constant that stands in an argument's place.
    """
    args = [types.unliteral(kind) for kind in args]
    kws = {name: types.unliteral(kind) for name, kind in kws.items()}
    return type(compiled).get_call_template(compiled, args, kws)


class KernelCache(caching._Cache):  # type: ignore[misc]
    """One function's compiled overloads, each in a file of its own."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._enabled = True

    @property
    def cache_path(self) -> str:
        """The folder of this version."""
        return str(cache_folder())

    def enable(self) -> None:
        """Load and save from now on."""
        self._enabled = True

    def disable(self) -> None:
        """Neither load nor save."""
        self._enabled = False

    def flush(self) -> None:
        """Forget the saved overloads of this function."""
        for path in cache_folder().glob(f"{self._prefix()}*.bin"):
            path.unlink(missing_ok=True)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled overload, or None if it must be compiled."""
        target_context.refresh()
        key = self._key(sig, target_context.codegen())
        if key is None:
            return None
        path = self._path(key)
        found = self._load(path, key, target_context)
        if found is None and not _may_compile(path):
            found = self._load(path, key, target_context)
        return found

    def _load(self, path: Path, key: tuple[str, str, str], target_context: Any) -> Any:
        """What is kept at `path`, or None."""
        try:
            content = path.read_bytes()
            if hashlib.sha256(content[:-DIGEST_BYTES]).digest() != content[-DIGEST_BYTES:]:
                raise ValueError("it is empty or torn, as after a power failure")
            saved_key, payload = pickle.loads(content)
            if saved_key != key:
                raise ValueError(f"this is the code of {saved_key}")
            _mark_used(path.parent)
            return rebuild(target_context, payload)
        except FileNotFoundError:
            return None
        except Exception as error:
            # a torn or foreign file costs a compilation, never a fit
            log.debug("cannot load %s: %r", path, error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save one overload; a folder that cannot be written is no error."""
        key = self._key(sig, data.codegen)
        if key is None:
            return
        path = self._path(key)
        try:
            _prepare(path.parent)
            content = dumps((key, data._reduce()))
            _write(path, content + hashlib.sha256(content).digest())
        except OSError as error:
            global _unsaved
            _unsaved = error
            log.debug("cannot save %s: %r", path, error)

    def _prefix(self) -> str:
        code = self._function.__code__
        name = re.sub(r"[^\w.]", "", self._function.__qualname__)
        return f"{Path(code.co_filename).stem}.{name}-{code.co_firstlineno}-"

    def _key(self, sig: Any, codegen: Any) -> tuple[str, str, str] | None:
        """What the code depends on within this version; None: it is not to be kept."""
        if not self._enabled:
            return None
        return str(sig), repr(codegen.magic_tuple()), _describe(self._function, set()).hex()

    def _path(self, key: tuple[str, str, str]) -> Path:
        name = hashlib.sha256("\n".join(key).encode()).hexdigest()[:24]
        return cache_folder() / f"{self._prefix()}{name}.bin"


_unsaved: OSError | None = None


def unsaved() -> OSError | None:
    """Return why compiled code of this process could not be saved, or None."""
    return _unsaved


_askers: list[Callable[[Path], bool]] = []
"""Who wants to be asked before this process compiles what is not in the cache, the newest last.

Several fits may go on at the same time, and end in any order.
"""


def _may_compile(path: Path) -> bool:
    for ask in reversed(tuple(_askers)):
        return ask(path)
    return True


@contextmanager
def asks_whether_to_compile(may_compile: Callable[[Path], bool]) -> Iterator[None]:
    """While the block runs, ask before a function is compiled in this process, by any thread.

    Of several blocks that run at the same time the one that began last is asked.

    Parameters
    ----------
    may_compile : callable
        Is given where the code will be kept. False: it is there now.
    """
    _askers.append(may_compile)
    try:
        yield
    finally:
        _askers.remove(may_compile)


def cache_folder() -> Path:
    """The folder that holds the compiled code of this very version on this very processor."""
    root = config.get("kernels.cache-dir") or AppDirs("largek_dask", False).user_cache_dir
    return Path(root) / "kernels" / f"v-{_version(SOURCES)}"


def is_cache_empty() -> bool:
    """Return whether no function of this version is in the cache."""
    return next(cache_folder().glob("*.bin"), None) is None


@cache
def _version(sources: Path) -> str:
    """Hash of everything that compiled code depends on."""
    digest = hashlib.sha256()
    for text in (
        platform.python_implementation(),
        sys.version,
        numba.__version__,
        llvmlite.__version__,
        np.__version__,
        __version__,
        binding.get_default_triple(),
        binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
    ):
        digest.update(text.encode() + b"\0")
    for path in sorted(sources.rglob("*.py")):
        digest.update(path.relative_to(sources).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:20]


def _describe(value: Any, seen: set[int]) -> bytes:
    """Hash of a function, or of a value in its closure, that is the same in every process."""
    if isinstance(value, _Intrinsic):
        value = value._defn
    if not _is_function(value):
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
        except ValueError:  # a function that names itself is not there yet
            continue
        content = getattr(content, "py_func", content)
        if id(content) not in seen:  # a function may name itself
            digest.update(_describe(content, seen))
    return digest.digest()


@cache
def _source_hash(filename: str) -> bytes:
    path = Path(filename)
    return hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest()


def _write(path: Path, content: bytes) -> None:
    """Write aside and rename, so that a reader sees all of it or nothing."""
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        aside.write_bytes(content)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


@cache
def _mark_used(folder: Path) -> None:
    """Once a process: the folder was in use now."""
    with contextlib.suppress(OSError):  # it may belong to somebody else
        os.utime(folder)


@cache
def _prepare(folder: Path) -> None:
    """Once a process: make the folder, and remove those of the versions longest unused."""
    folder.mkdir(parents=True, exist_ok=True)
    _mark_used(folder)
    for _, old in sorted(_versions(folder.parent), reverse=True)[KEPT_VERSIONS:]:
        shutil.rmtree(old, ignore_errors=True)


def _versions(root: Path) -> Iterator[tuple[int, Path]]:
    for path in root.glob("v-" + "?" * 20):
        with contextlib.suppress(FileNotFoundError):  # another process may prune as well
            yield path.stat().st_mtime_ns, path
