from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import cached_property

from largek_dask.algorithms.parts.cached import Recomputable


@dataclass(frozen=True)
class Square(Recomputable):
    side: int

    @cached_property
    def area(self) -> int:
        return self.side**2


@dataclass(frozen=True)
class Cube(Square):
    @cached_property
    def volume(self) -> int:
        return self.area * self.side


def test_what_is_derived_neither_travels_nor_stays():
    cube = Cube(3)
    assert not cube.has_cached
    assert cube.volume == 27
    assert set(cube.__dict__) == {"side", "area", "volume"}
    assert cube.has_cached
    other = pickle.loads(pickle.dumps(cube))
    assert other == cube
    assert set(other.__dict__) == {"side"}
    assert other.volume == 27
    cube.forget()
    assert set(cube.__dict__) == {"side"}
    assert not cube.has_cached
    assert cube.area == 9
