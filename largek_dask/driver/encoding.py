"""Encode state as plain JSON with named arrays, and decode it.

No pickle, and no name in a file is imported: only dataclasses that the type hints of the expected
class mention are made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from largek_dask.driver.storage import DamagedError

__all__ = ["dataclasses_of", "decode", "encode"]

KINDS = "biuf"
"""Kinds of numpy dtype that may be stored: bool, integers, floats."""


def encode(value: Any, arrays: dict[str, NDArray[Any]], where: str = "state") -> Any:
    """Return ``value`` as JSON that refers to arrays by name; they are added to ``arrays``.

    It is made of None, bool, int, float, str, numpy scalars and arrays of numbers, tuples and
    dataclasses. Anything else raises TypeError, in which ``where`` names it.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.generic) and value.dtype.kind in KINDS:
        number = np.asarray(value, value.dtype.newbyteorder("<"))
        return {"scalar": number.dtype.str, "hex": number.tobytes().hex()}
    if isinstance(value, np.ndarray) and value.dtype.kind in KINDS:
        # Write an array once, however often it occurs.
        known = (name for name, array in arrays.items() if array is value)
        name = next(known, f"a{len(arrays)}")
        arrays[name] = np.atleast_1d(value)
        return {"array": name, "shape": list(value.shape)}
    if type(value) is tuple:
        return {"tuple": [encode(v, arrays, f"{where}[{i}]") for i, v in enumerate(value)]}
    if is_dataclass(value) and not isinstance(value, type):
        return {
            "class": type(value).__qualname__,
            "fields": {
                f.name: encode(getattr(value, f.name), arrays, f"{where}.{f.name}")
                for f in fields(value)
                if f.init
            },
        }
    raise TypeError(
        f"{where} is a {type(value).__name__}; a state holds arrays of numbers, numbers, strings, "
        "None, tuples and dataclasses of these."
    )


def decode(tree: Any, arrays: Mapping[str, NDArray[Any]], expected: type | UnionType) -> Any:
    """Return the value that :func:`encode` was given; equal arrays and dataclasses are one object.

    Only the class (or union) ``expected`` and the dataclasses in its type hints are made. Raises
    DamagedError if ``tree`` does not encode such a value.
    """
    known = dataclasses_of(expected)
    made: dict[str, Any] = {}

    def once(node: Any, make: Callable[[], Any]) -> Any:
        key = json.dumps(node)
        if key not in made:
            made[key] = make()
        return made[key]

    def as_array(name: str, shape: list[int]) -> NDArray[Any]:
        array = arrays[name].reshape(shape)
        array.flags.writeable = False
        return array

    def walk(node: Any) -> Any:
        match node:
            case None | bool() | int() | float() | str():
                return node
            case {"float": str(text)}:
                return float(text)
            case {"scalar": str(dtype), "hex": str(digits)}:
                return np.frombuffer(bytes.fromhex(digits), _numeric(dtype))[0]
            case {"array": str(name), "shape": list(shape)}:
                return once(node, lambda: as_array(name, shape))
            case {"tuple": list(items)}:
                return tuple(walk(item) for item in items)
            case {"class": str(name), "fields": dict(values)}:
                kind = known[name]
                return once(node, lambda: kind(**{key: walk(v) for key, v in values.items()}))
        raise ValueError(f"{node!r} is not an encoded value")

    try:
        return walk(tree)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        name = expected.__name__ if isinstance(expected, type) else str(expected)
        raise DamagedError(f"a {name} cannot be read back: {error!r}") from error


def _numeric(text: str) -> np.dtype[Any]:
    dtype = np.dtype(text)
    if dtype.kind not in KINDS:
        raise ValueError(f"dtype {text} is not one of numbers")
    return dtype


def dataclasses_of(expected: type | UnionType) -> dict[str, Callable[..., Any]]:
    """Return the dataclasses that ``expected`` and its type hints mention, by qualified name."""
    found: dict[str, Callable[..., Any]] = {}
    waiting: list[Any] = [expected]
    while waiting:
        kind = waiting.pop()
        # A generic class and its parameters.
        waiting.extend(part for part in (get_origin(kind), *get_args(kind)) if part is not None)
        if isinstance(kind, type) and is_dataclass(kind) and kind.__qualname__ not in found:
            found[kind.__qualname__] = kind
            hints = get_type_hints(kind)
            waiting.extend(hints[f.name] for f in fields(kind))
    return found
