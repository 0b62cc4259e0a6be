"""Where a model comes from, and the digest that says whether two are equal."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.driver.options import OPTIONS, FitOptions, Part
from largek_dask.driver.storage import sha256_of
from largek_dask.version import __version__

__all__ = [
    "describe",
    "digest_of",
    "identity_of",
    "named_arrays",
    "parameters_of",
    "stop_rules_of",
    "versions",
]

ORIGIN = "shift"
PACKAGES = ("dask", "distributed", "llvmlite", "numba", "numpy", "zarr")


def versions() -> dict[str, str]:
    """Versions of whatever computes."""
    own = {"largek_dask": __version__, "python": platform.python_version()}
    return own | {name: _installed(name) for name in PACKAGES}


@cache
def _installed(package: str) -> str:
    """Version of a package; what a process has loaded stays as it is."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def named_arrays(arrays: Any) -> dict[str, NDArray[Any]]:
    """The arrays of a model, which are the fields of a dataclass, by their names."""
    return {f.name: getattr(arrays, f.name) for f in fields(arrays)}


def digest_of(arrays: Any) -> str:
    """sha256 over the arrays of a model, whatever its kind, in the order of their names.

    Over type, shape and little-endian bytes of each: equal digests are equal bits. Only the origin
    about which kernels compute, ``shift``, is left out: it is no part of what was found.
    """
    digest = hashlib.sha256()
    for name, array in sorted(named_arrays(arrays).items()):
        if name == ORIGIN:
            continue
        digest.update(f"{name} {array.dtype.name} {array.shape} {sha256_of(array)}\n".encode())
    return digest.hexdigest()


def describe(value: Any) -> Any:
    """A parameter as JSON that tells it from another: arrays by shape, dtype and hash."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "dtype": value.dtype.str, "sha256": sha256_of(value)}
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        return {"name": name, **{f.name: describe(getattr(value, f.name)) for f in fields(value)}}
    return repr(value)


def parameters_of(algorithm: Any) -> dict[str, Any]:
    """Name and parameters of an algorithm object as JSON."""
    described: dict[str, Any] = describe(replace(algorithm, problem=None))
    described.pop("problem")
    return described


def identity_of(options: FitOptions) -> dict[str, Any]:
    """What tells this job from another, as JSON: checkpoints are gone on with only by the same.

    What is part of the algorithm (``effort``) is told as one of its parameters.
    """
    told = _described(options, "job")
    if options.mixture is not None:
        told |= _described(options, "mixture")
    return told | {"algorithm": parameters_of(options.make_algorithm())}


def stop_rules_of(options: FitOptions) -> dict[str, Any]:
    """The stop rules, as JSON."""
    return _described(options, "stop")


def _described(options: FitOptions, part: Part) -> dict[str, Any]:
    return {
        name: describe(getattr(options, name))
        for name, option in OPTIONS.items()
        if option.part == part
    }
