"""Register tiles: tile shapes for each type of CPU, and the modes of micro-kernels.

A tile has `centres` x `vectors` accumulators of `lanes` rows each. AVX-512 has 32 registers of 16
single-precision lanes, enough for 8 x 3 accumulators, three row vectors and a broadcast. AVX2 has
16 registers of 8 lanes, enough for 4 x 3 accumulators. NEON has 32 registers of 4 lanes:
LLVM loads four features of a centre at once, so that 4 x 4 accumulators, four row vectors and four
centres need 24. The shape affects only speed, because every tile adds the features of a row and a
centre in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from largek_dask import config
from largek_dask.errors import ParameterError

DIRECT_FEATURES = 8
"""Maximum number of features for the direct form, which sums squared differences."""
SOME = DIRECT_FEATURES + 1
"""Value of `Micro.direct` for a direct form with any number of features, used only for scores."""

# Modes define how a micro-kernel processes the scores of a tile.
BEST = 0  # keep the smallest score of each row, and the centre
TWO = 1  # keep the two smallest scores of each row, and both centres
SCORES = 2  # store all scores
BLOCK = 3  # keep the smallest score of each row, and the tile (direct form)
PAIR = 4  # keep the two smallest scores of each row, and the nearest centre
NUMBERED = 5  # like PAIR, with the index within the tile in the lowest bits of a score
MINIMA = 6  # store the minimum of each tile, and keep the overall minimum and its tile

NUMBERS = 8
"""Maximum number of centres per tile that mode `NUMBERED` can distinguish."""
FEW = 2
"""Number of centres per tile at the end of a search, if less than half a tile is left."""


def direct_features(n_features: int) -> int:
    """Return the number of features if the direct form is used, otherwise 0.

    Kernels of the direct form are compiled only for the number of features that is needed, because
    compiling all of them would take eight times as long.
    """
    return n_features if n_features <= DIRECT_FEATURES else 0


@dataclass(frozen=True, slots=True)
class Micro:
    """Settings of a micro-kernel, which can be packed into one integer."""

    centres: int
    """Number of centres in a tile (rows of accumulators)."""
    vectors: int
    """Number of row vectors in a panel."""
    lanes: int
    """Number of rows in a vector."""
    mode: int = BEST
    """One of `BEST`, `TWO`, `SCORES`, `BLOCK`, `PAIR`, `NUMBERED` or `MINIMA`."""
    direct: int = 0
    """Number of features in the unrolled sum of (x - c)², or `SOME`; 0 for the product form."""
    carry: bool = False
    """True if accumulators start from the stored sums of an earlier block of features."""

    @property
    def code(self) -> int:
        """All fields packed into one integer."""
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
    """Register tile for single precision; double precision uses half the lanes."""

    name: str
    centres: int
    """Number of centres per tile."""
    vectors: int
    """Number of row vectors."""
    lanes: int
    """Number of single-precision lanes in a vector."""
    direct_vectors: int
    """Number of row vectors in the direct form, which also needs registers for differences."""

    def for_form(self, direct: int) -> Tile:
        """Return the tile for the direct form if ``direct`` is not 0, otherwise this tile."""
        return replace(self, vectors=self.direct_vectors) if direct else self

    def lanes_of(self, itemsize: int) -> int:
        """Return the number of lanes in a vector of elements of `itemsize` bytes."""
        return self.lanes * 4 // itemsize


TILES = {
    "avx512": Tile("avx512", centres=8, vectors=3, lanes=16, direct_vectors=3),
    "avx2": Tile("avx2", centres=4, vectors=3, lanes=8, direct_vectors=2),
    "neon": Tile("neon", centres=4, vectors=4, lanes=4, direct_vectors=4),
    # For SSE with 16 registers of 4 lanes, and CPUs without vectors.
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
    return "neon" if features.get("neon") else "plain"


def select_tile(name: str | None = None) -> Tile:
    """Return the tile with this name, by default from the setting ``largek.kernels.tile``.

    "auto" selects the tile of the host. Vectors wider than those of the CPU are slower, but results
    are bit-identical.
    """
    name = config.get("kernels.tile") if name is None else name
    if name == "auto":
        name = _host_tile()
    if name not in TILES:
        raise ParameterError(
            f"largek.kernels.tile must be one of auto, {', '.join(TILES)}; got {name!r}."
        )
    return TILES[name]
