"""Passes of EM over rows.

An :class:`EMPass` contains everything except the rows and their candidates: the components, the
lists of components that rows are compared with, and the kind of sums. The only row state is the
candidates of a row (the set K of the paper), in descending order of log joint density. They depend
on the passes since the last anchor; if candidates are lost, these passes are repeated without sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes
from largek_dask.algorithms.choices import Covariance
from largek_dask.algorithms.parts.cached import Recomputable
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.totals import Additive
from largek_dask.algorithms.randomness import draws_of
from largek_dask.algorithms.truncated.lists import lists_of_cells
from largek_dask.algorithms.truncated.passes import group_cuts, row_slices
from largek_dask.algorithms.vcgmm.components import Components
from largek_dask.kernels.arguments import stretches
from largek_dask.kernels.bounds.candidates import search_candidates, search_components
from largek_dask.kernels.bounds.lists import Lists, order_by_label
from largek_dask.kernels.bounds.neighbours import nearest_components
from largek_dask.kernels.distances import PackedCenters, nearest, pack_centers
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.soft_sums import SoftSums
from largek_dask.kernels.mixtures import PackedMixture

STATE = "vc-gmm"
NEAREST_COMPONENTS = 2_000
"""Maximum number of components for which a row without candidates is compared with the list of its
nearest component; with more components, it is compared with the list of its coarse cell."""
LEAST_COUNTED = 1 << 14
"""Minimum number of rows per thread for summing responsibilities on several threads."""
NONE = 0xFFFF
"""Stored value of a missing candidate."""

Labels = NDArray[np.int32]
Real = NDArray[np.float64]


@dataclass(frozen=True)
class NearComponents(Recomputable):
    """Nearest components of each component; pickles contain only the data to compute them."""

    components: Components
    width: int
    pairs: Labels | None = None
    """(m, 2) pairs of components that must be in the lists of each other: halves of a split. A
    narrow half might otherwise be missing from the list of a wide one."""

    def table(self, n_threads: int = 1) -> Labels:
        """Return (k, width) indices: for each component, itself and then its nearest components."""
        table = nearest_components(self.components.packed(), self.width, n_threads)
        if self.pairs is None:
            return table
        table = table.copy()
        one, other = np.hstack([self.pairs.T, self.pairs.T[::-1]])
        lacks = ~(table[one] == other[:, None]).any(axis=1)
        table[one[lacks], -1] = other[lacks]
        return table

    @cached_property
    def remade(self) -> Labels:
        return self.table()


@dataclass(frozen=True)
class EMPass(Recomputable):
    """One pass of EM; pickles omit the packed arrays, which are recomputed."""

    kind: Literal["lists", "nearest", "cells", "all", "given"]
    """Components that a row is compared with. "lists": the list of its best candidate. All other
    values make the pass an anchor, which does not depend on row state. "nearest": the list of the
    component with the nearest mean; "cells": the components of the nearest coarse cell; "all": all
    components; "given": no search, because ``given`` contains the candidates."""
    components: Components
    width: int
    """Number of candidates per row (C')."""
    near: NearComponents | None = None
    """Source of the lists, if ``listed`` is None."""
    listed: Labels | None = None
    coarse: NDArray[Any] | None = None
    given: NDArray[Any] | None = None
    """(n, C') candidates of all rows, in the format of the row state."""
    explore: int = 0
    """Number of random components that each row is also compared with."""
    key: int = 0
    """Key of the random numbers for ``explore``."""
    counts: bool = True
    keeps: bool = True
    """True if candidates are stored as row state for later passes."""
    save: bool = False
    """True if the candidates from before the pass are also stored, to restore them later."""
    restore: bool = False
    """True if the pass begins with the candidates that the previous pass saved."""
    extents: NDArray[np.int64] | None = None
    """Extents of the features, if each feature is summed with its own resolution
    (``FixedPoint.extents``)."""

    @property
    def is_anchor(self) -> bool:
        """True if the resulting candidates depend only on the rows and this pass."""
        return self.kind != "lists"

    @cached_property
    def packed(self) -> PackedMixture:
        return self.components.packed()

    @cached_property
    def packed_coarse(self) -> PackedCenters:
        assert self.coarse is not None
        return pack_centers(self.coarse, self.components.shift)

    @cached_property
    def lists(self) -> Lists:
        if self.kind == "cells":
            assert self.coarse is not None
            parts = self.components
            return Lists(*lists_of_cells(parts.means, self.coarse, parts.shift))
        if self.listed is not None:
            return Lists.of(self.listed)
        assert self.near is not None
        return Lists.of(self.near.remade)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return state if self.listed is None else {**state, "near": None}

    def to_keep(self) -> EMPass:
        """Return the pass for the history, without sums and arrays that can be recomputed."""
        listed = None if self.near is not None else self.listed
        return replace(self, listed=listed, counts=False, extents=None, restore=False)

    def forget(self) -> None:
        super().forget()
        if self.near is not None:
            self.near.forget()


@dataclass
class EMPassTotal(Additive):
    sums: SoftSums
    least: ExactSums = field(default_factory=ExactSums)
    """Sum of ``weight * ||x - mean||^2`` over rows, with the mean of each row's best candidate."""
    n_rows: int = 0
    n_evaluated: int = 0
    kept: dict[int, NDArray[Any]] = field(default_factory=dict)


def _empty_total(k: int, d: int, grid: FixedPoint, covariance: Covariance) -> EMPassTotal:
    return EMPassTotal(SoftSums(k, d, grid, covariance))


def em_chunk(chunk: Chunk, total: EMPassTotal, pass_: EMPass, wanted: bool = False) -> None:
    """Run one pass over a chunk."""
    n, k, width = len(chunk.x), len(pass_.components.means), pass_.width
    if pass_.kind == "given":
        assert pass_.given is not None
        chunk.keep(candidates=pass_.given[chunk.start : chunk.start + n])
        return
    candidates, squares = np.full((n, width), -1, np.int32), np.full((n, width), np.inf)
    if not pass_.is_anchor and chunk.state is not None:
        candidates[:] = candidates_of(chunk.state["saved" if pass_.restore else "candidates"])
    if chunk.weight is not None:
        candidates[chunk.weight == 0] = -1
    total.n_rows += n
    candidates, squares = _search(chunk, total, pass_, candidates, squares)
    if pass_.counts:
        _count(chunk, total, pass_, candidates, squares)
    else:
        found = candidates[:, 0] >= 0
        total.least.add(np.where(found, squares[:, 0], 0.0), chunk.weight)
    # In uint16, -1 becomes the largest number.
    kept = {"candidates": candidates.astype(kept_dtype(k))}
    if wanted:
        total.kept[chunk.index] = kept["candidates"]
    if pass_.save:
        assert chunk.state is not None
        kept["saved"] = chunk.state["candidates"]
    if pass_.keeps:
        chunk.keep(**kept)


def _search(
    chunk: Chunk, total: EMPassTotal, pass_: EMPass, candidates: Labels, squares: Real
) -> tuple[Labels, Real]:
    """Search near the candidates (n, C') of each row; return candidates and squared distances."""
    x, weight = chunk.x, chunk.weight
    if pass_.kind == "all":

        def search(span: slice) -> int:
            begin, known, found = span.start, (x, pass_.packed, candidates, squares), 0
            for part in stretches(span.stop - begin, pass_.packed.means.size):
                at = begin + part.start, begin + part.stop
                found += search_components(*known, *at, keep=False)
            return found

        total.n_evaluated += sum(chunk.threads.map(search, row_slices(len(x), chunk.threads.n)))
        if weight is not None:
            candidates[weight == 0] = -1
        return candidates, squares
    if not pass_.explore:
        total.n_evaluated += _search_lists(chunk, pass_, candidates, squares)
        return candidates, squares
    # Randomly drawn components compete with the previous candidates.
    n, width = candidates.shape
    drawn = draws_of(chunk.numbers(), pass_.key, pass_.explore, len(pass_.components.means))
    for q in range(pass_.explore):
        known = np.hstack([candidates, drawn[:, :q]]) == drawn[:, q : q + 1]
        drawn[known.any(axis=1), q] = -1
    if weight is not None:
        drawn[weight == 0] = -1
    more, found = np.hstack([candidates, drawn]), np.full((n, width + pass_.explore), np.inf)
    total.n_evaluated += n * pass_.explore + _search_lists(chunk, pass_, more, found)
    return np.ascontiguousarray(more[:, :width]), np.ascontiguousarray(found[:, :width])


def _search_lists(chunk: Chunk, pass_: EMPass, candidates: Labels, squares: Real) -> int:
    """Search one list per row: of its best candidate, nearest component, or coarse cell."""
    x, threads, n, lists, n_more = chunk.x, chunk.threads, len(chunk.x), pass_.lists, 0
    groups = np.ascontiguousarray(candidates[:, 0])
    if pass_.kind in ("nearest", "cells"):
        centers = pass_.packed_coarse if pass_.kind == "cells" else pass_.packed.centers
        slices = row_slices(n, threads.n)
        threads.map(lambda span: nearest(x[span], centers, groups[span]), slices)
        if chunk.weight is not None:
            groups[chunk.weight == 0] = -1
        n_more = n * centers.n_clusters
    order, starts = order_by_label(groups, lists.n_groups, n_threads=threads.n)

    def meet(part: tuple[int, int]) -> int:
        known = x, order, starts, lists, pass_.packed, candidates, squares
        return search_candidates(*known, begin=part[0], end=part[1])

    cuts = group_cuts(np.cumsum(np.diff(starts) * lists.lengths), threads.n, x.shape[1])
    return n_more + sum(threads.map(meet, pairwise(cuts)))


def _count(
    chunk: Chunk, total: EMPassTotal, pass_: EMPass, candidates: Labels, squares: Real
) -> None:
    """Sum responsibilities on several threads; sums are exact, so the order does not matter."""
    n, threads, sums = len(chunk.x), chunk.threads, total.sums
    step = max(LEAST_COUNTED, -(-n // threads.n))
    k, d = pass_.components.means.shape

    def count(begin: int) -> SoftSums:
        at = slice(begin, begin + step)
        weight = None if chunk.weight is None else chunk.weight[at]
        part = SoftSums(k, d, sums.grid, sums.covariance) if begin else sums
        part.add(chunk.x[at], weight, candidates[at], squares[at], pass_.packed)
        return part

    for part in threads.map(count, range(0, max(n, 1), step))[1:]:
        sums.merge(part)


def kept_dtype(k: int) -> np.dtype[Any]:
    return np.dtype(np.uint16 if k <= NONE else np.int32)


def candidates_of(kept: NDArray[Any]) -> Labels:
    """Decode candidates from row state."""
    if kept.dtype == np.int32:
        return kept
    candidates = kept.astype(np.int32)
    candidates[candidates == NONE] = -1
    return candidates


def pass_over(
    passes: Passes, history: History[EMPass], pass_: EMPass, covariance: Covariance, *, wanted: bool
) -> tuple[EMPassTotal, NDArray[Any] | None]:
    """Run one pass over all rows, following the passes in ``history``.

    Returns the total and, if ``wanted``, the candidates (n, C') of all rows, as row state.
    """
    k, d = pass_.components.means.shape
    state = history.next_state(STATE, lambda earlier: (earlier,), anchor=pass_.is_anchor)
    grid = replace(passes.statistics.grid, extents=pass_.extents)
    total: EMPassTotal = passes.reduce(
        em_chunk,
        pass_,
        wanted,
        start=partial(_empty_total, k, d, grid, covariance),
        combine=EMPassTotal.combine,
        state=state if pass_.keeps else None,
        joined=True,
    )
    for earlier in history.entries:
        # Replayed passes no longer need their cached arrays.
        if earlier.has_cached:
            earlier.forget()
    if not wanted:
        return total, None
    parts = [total.kept[index] for index in sorted(total.kept)]
    return total, parts[0] if len(parts) == 1 else np.concatenate(parts)
