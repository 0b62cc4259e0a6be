"""Describe the provenance of a model, and compute its digest."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.driver.options import OPTIONS, FitOptions, Part
from largek_dask.driver.storage import sha256_of
from largek_dask.version import __version__

ORIGIN = "shift"
PACKAGES = ("dask", "distributed", "llvmlite", "numba", "numpy", "zarr")


def versions() -> dict[str, str]:
    """Return the versions of the packages that can affect results."""
    own = {"largek_dask": __version__, "python": platform.python_version()}
    return own | {name: _version_of(name) for name in PACKAGES}


_version_of = cache(version)


def named_arrays(*parts: Any) -> dict[str, NDArray[Any]]:
    """Return the fields of a model's dataclasses by name; a part may be None."""
    return {f.name: getattr(p, f.name) for p in parts if p is not None for f in fields(p)}


def digest_of(*parts: Any) -> str:
    """Return a SHA-256 hash of the dtypes, shapes and little-endian bytes of a model's arrays.

    Models with equal digests are bit-identical. ``shift``, the origin of the kernels' coordinates,
    is not part of the digest.
    """
    digest = hashlib.sha256()
    for name, array in sorted(named_arrays(*parts).items()):
        if name == ORIGIN:
            continue
        digest.update(f"{name} {array.dtype.name} {array.shape} {sha256_of(array)}\n".encode())
    return digest.hexdigest()


def describe(value: Any) -> Any:
    """Convert a parameter to JSON; an array becomes its shape, dtype and hash."""
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
    """Return the name and the parameters of an algorithm as JSON."""
    described: dict[str, Any] = describe(algorithm)
    return described


def identity_of(options: FitOptions) -> dict[str, Any]:
    """Return the parameters that must be equal when a fit is resumed, as JSON.

    ``effort`` is included as a parameter of the algorithm.
    """
    found = _described(options, "job")
    if options.mixture is not None:
        found |= _described(options, "mixture")
    if options.scale is None:
        del found["scale"]  # unfinished labels of former versions are of a job without it
    return found | {"algorithm": parameters_of(options.make_algorithm())}


def stop_rules_of(options: FitOptions) -> dict[str, Any]:
    return _described(options, "stop")


def _described(options: FitOptions, part: Part) -> dict[str, Any]:
    return {
        name: describe(getattr(options, name))
        for name, option in OPTIONS.items()
        if option.part == part
    }
