from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import cached_property

from largek_dask.algorithms.parts.derived import Derives


@dataclass(frozen=True)
class Square(Derives):
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
    assert not cube.is_derived
    assert cube.volume == 27
    assert set(cube.__dict__) == {"side", "area", "volume"}
    assert cube.is_derived
    other = pickle.loads(pickle.dumps(cube))
    assert other == cube
    assert set(other.__dict__) == {"side"}
    assert other.volume == 27
    cube.forget()
    assert set(cube.__dict__) == {"side"}
    assert not cube.is_derived
    assert cube.area == 9
