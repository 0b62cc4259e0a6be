"""Register tiles: shapes by CPU, and the modes of micro-kernels.

A tile is `centres` x `vectors` accumulators of `lanes` rows each. AVX-512 has 32 registers of 16
single-precision lanes, so 8 x 3 accumulators, three row vectors and a broadcast fit; AVX2 has 16
registers of 8 lanes: 4 x 3. The shape changes speed only: every tile sums a (row, centre) pair in
the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from largek_dask import config
from largek_dask.errors import ParameterError

DIRECT_FEATURES = 8
"""Maximum number of features of the direct form, which sums squared differences themselves."""
SOME = DIRECT_FEATURES + 1
"""Stands for any number of features in the direct form, in a loop (scores only)."""

# Modes: what a micro-kernel does with the scores of a tile.
BEST = 0  # keep each row's smallest score and its centre
TWO = 1  # keep the two smallest and their centres
SCORES = 2  # store them
BLOCK = 3  # keep the smallest score and the tile it was in (direct form)
PAIR = 4  # keep the two smallest, and the centre of the smallest
NUMBERED = 5  # the same, with the centre's number in its tile in the lowest bits of each score
MINIMA = 6  # store the smallest score of the tile; keep the smallest of all and the tile it was in

NUMBERS = 8
"""Number of centres that these bits distinguish: no tile has more."""
FEW = 2
"""Centres of the tiles at the end of a search, if the remaining ones fill less than half a tile."""


def direct_features(n_features: int) -> int:
    """Return the number of features if they use the direct form, else 0.

    Kernels of the direct form are compiled for one number of features: all of them would take
    eight times as long, and a table has one.
    """
    return n_features if n_features <= DIRECT_FEATURES else 0


@dataclass(frozen=True, slots=True)
class Micro:
    """One micro-kernel, described by small integers that fit into one."""

    centres: int
    """Centres of a tile (rows of accumulators)."""
    vectors: int
    """Vectors of rows in a panel."""
    lanes: int
    """Rows in a vector."""
    mode: int = BEST
    """`BEST`, `TWO`, `SCORES`, `BLOCK`, `PAIR`, `NUMBERED` or `MINIMA`."""
    direct: int = 0
    """Features of which (x - c)² is summed, unrolled, or `SOME`; 0 for the product x·c."""
    carry: bool = False
    """Accumulators continue from stored ones: a later block of features."""

    @property
    def code(self) -> int:
        """Fields as one integer."""
        result = self.centres
        for field in (self.vectors, self.lanes, self.mode, self.direct, int(self.carry)):
            result = result * 64 + field
        return result

    @classmethod
    def decode(cls, code: int) -> Micro:
        """Return the micro-kernel with this `code`."""
        centres, vectors, lanes, mode, direct, carry = (code >> at & 63 for at in range(30, -1, -6))
        return cls(centres, vectors, lanes, mode, direct, bool(carry))


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile for single precision; double precision uses half the lanes."""

    name: str
    centres: int
    """Centres per tile."""
    vectors: int
    """Vectors of rows."""
    lanes: int
    """Single-precision lanes of a vector."""
    direct_vectors: int
    """Vectors of rows in the direct form, whose differences need registers too."""

    def for_form(self, direct: int) -> Tile:
        """Return the tile for the direct form, or itself."""
        return replace(self, vectors=self.direct_vectors) if direct else self

    def lanes_of(self, itemsize: int) -> int:
        """Return the lanes of a vector of elements of `itemsize` bytes."""
        return self.lanes * 4 // itemsize


TILES = {
    "avx512": Tile("avx512", centres=8, vectors=3, lanes=16, direct_vectors=3),
    "avx2": Tile("avx2", centres=4, vectors=3, lanes=8, direct_vectors=2),
    # 16 registers of 4 lanes (SSE) or 32 (NEON); also for CPUs without a vector unit
    "plain": Tile("plain", centres=4, vectors=2, lanes=4, direct_vectors=2),
}


@cache
def _host_tile() -> str:
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return "avx512"
    if features.get("avx2") and features.get("fma"):
        return "avx2"
    return "plain"


def select_tile(name: str | None = None) -> Tile:
    """Return the tile `name`, by default that of ``largek.kernels.tile``; "auto" is the host's.

    Wider vectors than the CPU has compile and give the same bits, only slower.
    """
    name = config.get("kernels.tile") if name is None else name
    if name == "auto":
        name = _host_tile()
    if name not in TILES:
        raise ParameterError(
            f"largek.kernels.tile is {name!r}; choose one of auto, {', '.join(TILES)}."
        )
    return TILES[name]
