"""E-step of var-GMM-S as published: search the neighbourhoods of each row's candidates.

This is Algorithm 1 of D. Forster and J. Lücke, Can clustering scale sublinearly with its clusters?,
AISTATS 2018. It is the reference for the faster search by lists (:mod:`~.candidates`).
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.bounds.lists import order_by_label
from largek_dask.kernels.emit import square_distance
from largek_dask.kernels.jit import njit
from largek_dask.kernels.mixtures import PackedMixture, log_joint
from largek_dask.kernels.rows import native_blocks

BLOCK = 4_096
"""Number of rows whose squared distances are stored at a time."""

Labels = NDArray[np.int32]
Places = NDArray[np.int64]
Met = namedtuple("Met", "components squares counts stamps")
"""Components compared with each row of a block, their squared distances, and their number. The
stamp of a component is the last row compared with it, or the index of a pair of components."""


@dataclass(slots=True)
class PairSums:
    """Integer sums of squared distances between the rows of a component and other components."""

    keys: Places
    """(m,) pair codes ``c * k + other``, ascending: rows nearest to c were compared with
    ``other``."""
    steps: Places
    """(m,) sum of squared distances of each pair, in integer steps."""
    counts: Places
    """(m,) number of rows that contribute to each pair."""

    @classmethod
    def nothing(cls) -> PairSums:
        return cls(*(np.empty(0, np.int64) for _ in range(3)))

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.steps.nbytes + self.counts.nbytes

    def merge(self, other: PairSums) -> PairSums:
        """Add the sums of another total to this total in place, and return this total."""
        keys, at = np.unique(np.concatenate([self.keys, other.keys]), return_inverse=True)
        steps, counts = np.zeros((2, len(keys)), np.int64)
        np.add.at(steps, at, np.concatenate([self.steps, other.steps]))
        np.add.at(counts, at, np.concatenate([self.counts, other.counts]))
        self.keys, self.steps, self.counts = keys, steps, counts
        return self

    def neighbourhoods(self, before: Labels) -> Labels:
        """Return (k, G) indices: each component, followed by its nearest components.

        Rows with fewer than G - 1 known pairs are filled from the (k, G) array ``before``.
        """
        k, width = before.shape
        out = before.copy()
        means = self.steps / np.maximum(self.counts, 1)
        owner, other = np.divmod(self.keys, k)
        order = np.lexsort((other, means, owner))
        begins = np.searchsorted(owner[order], np.arange(k + 1))
        for c in range(k):
            met = other[order[begins[c] : begins[c + 1]][: width - 1]]
            stay = [b for b in before[c, 1:].tolist() if b not in set(met.tolist())]
            out[c, 1:] = [*met.tolist(), *stay][: width - 1]
        return out


def search_neighbourhoods(
    x: NDArray[Any],
    near: Labels,
    drawn: Labels,
    packed: PackedMixture,
    candidates: Labels,
    squares: NDArray[np.float64],
    scale: float,
) -> tuple[int, PairSums]:
    """Update each row's candidates in place by searching the neighbourhoods of the candidates.

    Parameters
    ----------
    x : (n, d)
        Rows of any real type.
    near : (k, G) int32
        Neighbourhood of each component, which begins with the component itself.
    drawn : (n, e) int32
        Further components to compare each row with; e may be 0.
    packed : PackedMixture
        "iso" or "isoflex".
    candidates : (n, C') int32
        Candidates by log joint, best first; -1 for none. Rows without candidates are skipped.
    squares : (n, C') float64
        Written to: squared distances to the candidates.
    scale : float
        Integer steps per unit of squared distance, for the sums of pairs.

    Returns
    -------
    n_evaluated, pairs
        Number of distances computed, and the sums of pairs.
    """
    k, width = len(packed.means), near.shape[1]
    most = candidates.shape[1] * (width + 1) + drawn.shape[1]
    met = Met(
        np.empty((BLOCK, most), np.int32), np.empty((BLOCK, most)), np.empty(BLOCK, np.int64),
        np.full(k, -1),
    )  # fmt: skip
    pairs, n_evaluated = PairSums.nothing(), 0
    for part, rows in native_blocks(x):
        block = rows.astype(packed.dtype, copy=False)
        for begin in range(0, len(block), BLOCK):
            at = slice(part.start + begin, part.start + min(begin + BLOCK, len(block)))
            met.stamps[:] = -1
            n_evaluated += _search(
                readonly(np.ascontiguousarray(block[begin : begin + BLOCK])), packed.means,
                packed.constants, packed.halves, readonly(near), readonly(drawn[at]),
                candidates[at], squares[at], tuple(met),
            )  # fmt: skip
            nearest = candidates[at, 0]
            order, starts = order_by_label(np.ascontiguousarray(nearest), k)
            sums = np.empty((3, int(met.counts[: len(nearest)].sum())), np.int64)
            met.stamps[:] = -1
            n = _pairs(readonly(order), readonly(starts), tuple(met), scale, sums)
            pairs.merge(PairSums(*sums[:, :n]))
    return n_evaluated, pairs


def steps_of_pairs(n_features: int, max_abs: float) -> float:
    """Return the steps per unit of squared distance; int64 then holds sums of 2^23 distances."""
    return float(2.0 ** (40 - int(np.frexp(4.0 * n_features * max_abs**2)[1])))


@njit
def _search(x, means, constants, halves, near, drawn, candidates, squares, met_by_rows):
    n, d = x.shape
    met, found, counts, stamps = met_by_rows
    rows, centers = x.reshape(n * d), means.reshape(means.size)
    width, total = candidates.shape[1], 0
    best = np.empty(width)
    for i in range(n):
        count = 0
        if candidates[i, 0] < 0:
            counts[i] = 0
            squares[i, :] = np.inf
            continue
        # Compare previous candidates first, because ties go to the component compared first.
        for q in range(width):
            c = candidates[i, q]
            if c >= 0 and stamps[c] != i:
                stamps[c] = i
                met[i, count] = c
                count += 1
        for q in range(width):
            c = candidates[i, q]
            if c < 0:
                continue
            for g in range(near.shape[1]):
                other = near[c, g]
                if stamps[other] != i:
                    stamps[other] = i
                    met[i, count] = other
                    count += 1
        for e in range(drawn.shape[1]):
            other = drawn[i, e]
            if stamps[other] != i:
                stamps[other] = i
                met[i, count] = other
                count += 1
        counts[i] = count
        total += count
        for q in range(width):
            best[q], candidates[i, q], squares[i, q] = -np.inf, -1, np.inf
        for p in range(count):
            c = met[i, p]
            square = square_distance(rows, i * d, centers, np.int64(c) * d, d)
            found[i, p] = square
            value = log_joint(constants[c], halves[c], square)
            q = width
            while q > 0 and value > best[q - 1]:
                if q < width:
                    best[q], candidates[i, q] = best[q - 1], candidates[i, q - 1]
                    squares[i, q] = squares[i, q - 1]
                q -= 1
            if q < width:
                best[q], candidates[i, q], squares[i, q] = value, c, square
    return total


@njit
def _pairs(order, starts, met_by_rows, scale, sums):
    """Sum distances per pair of components, in any order; return the number of pairs."""
    met, found, counts, stamps = met_by_rows
    keys, steps, times = sums[0], sums[1], sums[2]
    k, n = starts.size - 1, 0
    for c in range(k):
        first = n
        for p in range(starts[c], starts[c + 1]):
            i = order[p]
            for m in range(counts[i]):
                other = met[i, m]
                if other == c:
                    continue
                if stamps[other] < first:
                    stamps[other] = n
                    keys[n], steps[n], times[n] = np.int64(c) * k + other, 0, 0
                    n += 1
                at = stamps[other]
                steps[at] += np.int64(np.rint(found[i, m] * scale))
                times[at] += 1
    return n
