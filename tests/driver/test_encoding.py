from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from largek_dask.driver.checkpoint import decode, encode
from largek_dask.driver.storage import DamagedError


@dataclass(frozen=True, slots=True)
class Leaf:
    value: Any


@dataclass(frozen=True, slots=True)
class Stranger:
    value: Any


@dataclass(frozen=True)
class Tree:
    """A state of every kind of value."""

    value: Any
    leaves: tuple[Leaf, ...] | None = None


NUMBERS = ["?", "i1", "u2", "<i4", ">i8", "<u8", "f2", "<f4", ">f8"]
arrays = st.sampled_from(NUMBERS).flatmap(
    lambda dtype: hnp.arrays(
        dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    )
)
plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | arrays
    | st.sampled_from([np.float32(0.1), np.int64(-3), np.bool_(True)])
)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3).map(tuple) | inner.map(Leaf), max_leaves=8
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray | np.generic):
        native = np.asarray(a).astype(a.dtype.newbyteorder("="))
        return (
            np.asarray(b).dtype == native.dtype
            and np.shape(b) == np.shape(a)
            and np.asarray(b).tobytes() == native.tobytes()
        )
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Leaf):
        return isinstance(b, Leaf) and same(a.value, b.value)
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and a == b and repr(a) == repr(b)


@settings(deadline=None)
@given(values, st.lists(plain.map(Leaf), max_size=2).map(tuple) | st.none())
def test_every_value_comes_back(value: Any, leaves: Any) -> None:
    stored: dict[str, Any] = {}
    tree = json.loads(json.dumps(encode(Tree(value, leaves), stored), allow_nan=False))
    # Storage gives arrays back in native order.
    stored = {k: a.astype(a.dtype.newbyteorder("=")) for k, a in stored.items()}
    back = decode(tree, stored, Tree)
    assert same(value, back.value)
    assert (leaves is None and back.leaves is None) or same(leaves, back.leaves)


@pytest.mark.parametrize(
    "value", [[1], {"a": 1}, {1}, b"x", 1j, np.array(["a"]), np.array([object()]), object(), print]
)
def test_anything_else_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(TypeError, match=r"state\.value\[1\]\.value is a "):
        encode(Tree((0, Leaf(value))), {})


def test_only_classes_of_the_type_hints_are_made() -> None:
    known = Tree(1, (Leaf(2),))
    assert decode(encode(known, {}), {}, Tree) == known
    tree = encode(Tree(Stranger(1)), {})
    with pytest.raises(DamagedError, match=r"the stored Tree cannot be decoded.*Stranger"):
        decode(tree, {}, Tree)


@pytest.mark.parametrize(
    "tree",
    [
        {"class": "Tree", "fields": {"value": 1, "unknown": 2}},
        {"class": "Tree", "fields": {}},
        {"class": "os.system", "fields": {}},
        {"class": ["Tree"], "fields": {}},
        {"array": "a9", "shape": [1]},
        {"array": "a0", "shape": [7]},
        {"scalar": "O", "hex": "0000000000000000"},
        {"scalar": "<f4", "hex": "zz"},
        {"scalar": "<f4", "hex": ""},
        {"float": "one"},
        {"tuple": 3},
        {"something": 1},
        [1, 2],
    ],
)
def test_a_broken_tree_is_damage(tree: Any) -> None:
    with pytest.raises(DamagedError, match="the stored Tree cannot be decoded"):
        decode(tree, {"a0": np.zeros(3)}, Tree)


def test_what_was_one_object_is_one_again():
    """A state that was read back is written to as few bytes as before, any number of times."""
    array, other = np.arange(6.0), np.arange(6.0)
    leaf = Leaf(array)
    tree = Tree((leaf, array, Leaf((leaf, other))), (leaf, Leaf(other)))
    sizes = []
    for _ in range(3):
        stored: dict[str, Any] = {}
        text = json.dumps(encode(tree, stored))
        sizes.append((len(text), sorted(stored)))
        tree = decode(json.loads(text), stored, Tree)
        assert tree.leaves is not None
        first, shared, deep = tree.value
        assert first is tree.leaves[0] is deep.value[0]
        assert shared is first.value
        assert deep.value[1] is tree.leaves[1].value
        assert shared is not deep.value[1]
    assert sizes[0] == sizes[1] == sizes[2]
    assert sizes[0][1] == ["a0", "a1"]
