"""State as a tree of plain JSON beside named arrays, and back.

No pickle, and no name in a file is ever imported: a dataclass is found again only among those
that the type hints of the expected class mention.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
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
    """``value`` as JSON; its arrays are added to ``arrays`` and referred to by name.

    Parameters
    ----------
    value : object
        None, bool, int, float, str, numpy scalars and arrays of numbers, tuples and
        dataclasses of these.
    arrays : dict
        Takes the arrays.
    where : str
        What messages call the value.

    Raises
    ------
    TypeError
        Something else is in it; the message says where.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.generic) and value.dtype.kind in KINDS:
        number = np.asarray(value, value.dtype.newbyteorder("<"))
        return {"scalar": number.dtype.str, "hex": number.tobytes().hex()}
    if isinstance(value, np.ndarray) and value.dtype.kind in KINDS:
        # What is in it several times is written once.
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
    """The value that :func:`encode` was given.

    Equal arrays and equal dataclasses in it are one object, as they were if they were one: what is
    written of it again is no larger, and what it leads to is computed once.

    Parameters
    ----------
    tree : JSON
        What ``encode`` returned.
    arrays : mapping
        The arrays, by the same names.
    expected : type
        The class of the value, or several: only they and the dataclasses in their type hints are
        made.

    Raises
    ------
    DamagedError
        ``tree`` is not something that ``encode`` returns for ``expected``.
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
    """The dtype named in a file, if it is one of numbers."""
    dtype = np.dtype(text)
    if dtype.kind not in KINDS:
        raise ValueError(f"dtype {text} is not one of numbers")
    return dtype


def dataclasses_of(expected: type | UnionType) -> dict[str, Callable[..., Any]]:
    """The dataclasses that ``expected`` and its type hints mention, by qualified name."""
    found: dict[str, Callable[..., Any]] = {}
    waiting: list[Any] = [expected]
    while waiting:
        kind = waiting.pop()
        # Of a generic class with its parameters: the class, and these.
        waiting.extend(part for part in (get_origin(kind), *get_args(kind)) if part is not None)
        if isinstance(kind, type) and is_dataclass(kind) and kind.__qualname__ not in found:
            found[kind.__qualname__] = kind
            waiting.extend(_hints(kind))
    return found


def _hints(kind: type) -> Iterator[Any]:
    """The types of a dataclass's fields."""
    hints = get_type_hints(kind)
    return (hints[f.name] for f in fields(kind))
