"""Moves of components without rows of their own to where a second one is missed.

If components have variances of their own, one may *collapse*: it is left with less than a row,
or with rows so alike (usually a single one) that its variance is at the floor. EM alone never
repairs it. A move gives it a new start: another component is split in two, the one whose split
raises F most, and it takes over one of the halves. Moves are tried, many at a time: the next
iteration begins with them, and unless F has risen by then they are undone, including the rows'
candidates.

The gain of a split is estimated on a seeded sample, by EM of two halves, each component alone
(:mod:`~largek_dask.kernels.split_components`). The contribution of a collapsed component is lost:
a row that it has for itself at the floor adds much to F, though nothing about other rows; so only
moves whose gain is larger are tried.

A component that cannot be repaired is retired: it has weight 0 and keeps its number, mean and
variance, and may come back by a move. One with enough rows that are all equal stays: it describes
them correctly. F falls when components are retired, and nowhere else, as the contribution of their
lone rows is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, Rng, RowSample
from largek_dask.algorithms.choices import Covariance
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.moves import Splits, choose_moves
from largek_dask.algorithms.vcgmm.components import Components
from largek_dask.algorithms.vcgmm.passes import NEAREST_COMPONENTS, EMPass, candidates_of, pass_over
from largek_dask.algorithms.vcgmm.state import VCGMMState
from largek_dask.kernels.bounds.neighbours import nearest_components
from largek_dask.kernels.exact.transcendental import log
from largek_dask.kernels.split_components import (
    MOST_ROWS,
    ComponentSplits,
    shares_of,
    split_components,
)

__all__ = [
    "ComponentMoves",
    "collapsed",
    "find_moves",
    "retired",
    "to_retire",
]

SPLIT_VALUES = 1 << 26
"""Maximum values (rows times features) of the sample on which splits are tried."""
LEAST_SHARE = 1 / 64
"""Minimum responsibility with which a row counts among those of a component."""
SPLITS = 4
"""Components whose splits are tried for each one that may move,"""
LEAST_SPLITS = 256
"""but at least this number of them in all."""
CHOICE = 4
"""Components to choose from for each one that may move."""
MEANT = 2.0
"""Rows above which a component at the floor is more than a single outlying row."""
LOCKED = 4
"""Nearest components of a moved one that stay as they are."""
MOVED_SHARE = 10
"""At most one of this number of components moves at a time."""

Real = NDArray[np.float64]
Which = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ComponentMoves:
    """Moves: components to split, and those that take over the second halves."""

    split: Which
    """(m,)"""
    moved: Which
    """(m,)"""
    halves: ComponentSplits
    """The halves of those that are split."""

    def apply(self, components: Components, masses: Real) -> Components:
        """Return the components after the moves; ``masses`` are those behind their weights."""
        means, variances = components.means.copy(), components.variances.copy()
        masses = masses.copy()
        whole = masses[self.split]
        for h, which in enumerate((self.split, self.moved)):
            means[which] = self.halves.means[:, h]
            variances[which] = self.halves.variances[:, h]
            masses[which] = whole * self.halves.shares[:, h]
        # The mass of the moved ones is redistributed: weights add up to 1.
        return replace(components, means=means, variances=variances, log_weights=log_shares(masses))


def log_shares(masses: Real) -> Real:
    """Return (k,) logarithms of shares of the total; minus infinity without mass."""
    return log(masses / float(np.cumsum(masses)[-1]))


def collapsed(components: Components, masses: Real, row: float, floor: Real) -> NDArray[np.bool_]:
    """Return (k,) components of positive weight below a row's, or with variances at the floor.

    Parameters
    ----------
    components : Components
        Components with variances of their own.
    masses : (k,)
    row : float
        Mean weight of a row.
    floor : (1,) or (d,)
        A constant feature is at the floor in every component, so all features have to be.
    """
    at_floor = (components.variances <= floor).all(axis=1)
    return np.isfinite(components.log_weights) & (at_floor | (masses < row))


def to_retire(
    components: Components, masses: Real, fallen: NDArray[np.bool_], row: float
) -> NDArray[np.bool_]:
    """Return (k,) the fallen components that are little more than a single outlying row.

    At most half of those that are alive, the lightest: the others take over their rows, so they
    need not fall themselves. With as many components as rows, all have fallen.
    """
    hopeless = np.flatnonzero(fallen & (masses < MEANT * row))
    n_alive = int(np.count_nonzero(np.isfinite(components.log_weights)))
    lightest = hopeless[np.argsort(masses[hopeless], kind="stable")]
    found = np.zeros(len(masses), bool)
    found[lightest[: n_alive // 2]] = True
    return found


def retired(
    components: Components, masses: Real, which: NDArray[np.bool_]
) -> tuple[Components, Real]:
    """Return components and masses with some of them (k,) retired."""
    left = np.where(which, 0.0, masses)
    return replace(components, log_weights=log_shares(left)), left


def find_moves(
    rows: Passes,
    rng: Rng,
    state: VCGMMState,
    fallen: NDArray[np.bool_],
    covariance: Covariance,
    width: int,
    tol: float,
) -> ComponentMoves | None:
    """Return moves that are worth a trial, or None.

    Parameters
    ----------
    rows : Passes
    rng : Rng
    state : VCGMMState
    fallen : (k,)
        Components that have collapsed: they are not split.
    covariance : {"isoflex", "diag"}
    width : int
        Candidates of a row.
    tol : float
        Joint gain that moves must have, as 2 ΔF / (D W).
    """
    components, masses, tried = state.components, state.masses, state.tried
    assert components is not None
    k, packed = len(masses), components.packed()
    which = to_split(masses, fallen, tried.failed)
    halves, losses = find_splits(rows, rng, state, covariance, width, which)
    # The sample may lack the rows of components that have few.
    alone = losses_at_floor(packed.constants, masses, state.bound / state.weight)
    losses = np.where(fallen, np.maximum(losses, alone), losses)
    losses = np.where(masses > 0, losses, 0.0)
    most = tried.most or max(1, k // MOVED_SHARE)
    cheapest = np.argsort(losses, kind="stable")[: CHOICE * most]
    near = nearest_components(packed, min(k, LOCKED + 1), rows.threads.n)[cheapest, 1:]
    splits = Splits(which, halves.gains, np.arange(len(which)))
    found = choose_moves(splits, losses, cheapest, near, most=most, split_takers=False)
    if not 2 * found.gain > tol * components.means.shape[1] * state.weight:
        return None
    i = found.halves
    parts = ComponentSplits(halves.gains[i], halves.means[i], halves.variances[i], halves.shares[i])
    return ComponentMoves(found.split, found.removed, parts)


def to_split(masses: Real, vacant: NDArray[np.bool_], failed: tuple[int, ...]) -> Which:
    """Return (m,) components to try splits of, ascending: those of the largest masses."""
    rank = np.where(vacant, 0.0, masses)
    rank[list(failed)] = 0.0
    most = max(LEAST_SPLITS, SPLITS * len(masses) // MOVED_SHARE)
    which = np.argsort(-rank, kind="stable")[:most]
    return np.sort(which[rank[which] > 0])


def find_splits(
    rows: Passes,
    rng: Rng,
    state: VCGMMState,
    covariance: Covariance,
    width: int,
    which: Which,
) -> tuple[ComponentSplits, Real]:
    """Return halves of the components ``which`` (m,), and the worth of each, from a sample.

    Returns
    -------
    halves : ComponentSplits
        Gains are those of F, over all rows.
    losses : (k,)
        Upper bound of the loss in F without each component.
    """
    components = state.components
    assert components is not None
    k, d = components.means.shape
    sample = rows.subset(
        RowSample(rng, "split", min(MOST_ROWS * k, SPLIT_VALUES // d), ascending=True)
    )
    # Rows meet the list of the nearest component, if there are lists and these are not too many.
    kind: Literal["nearest", "cells", "all"] = "all" if state.table is None else "nearest"
    if k > NEAREST_COMPONENTS and state.coarse is not None:
        kind = "cells"
    pass_ = EMPass(
        kind,
        components,
        width,
        listed=state.table if kind == "nearest" else None,
        coarse=state.coarse if kind == "cells" else None,
        counts=False,
    )
    _, kept = pass_over(sample, History(), pass_, covariance, wanted=True)
    assert kept is not None
    x, weight, _ = sample.take()
    packed, candidates = components.packed(), candidates_of(kept)
    shares, losses = shares_of(x, weight, candidates, packed)
    row, place = np.nonzero(shares >= LEAST_SHARE)
    of = candidates[row, place]
    order = np.argsort(of, kind="stable")
    starts = np.searchsorted(of[order], np.arange(k + 1))
    total = rows.statistics.total_weight
    halves = split_components(
        x,
        weight,
        row[order],
        shares[row, place][order],
        starts,
        which,
        packed,
        state.floor,
        total / rows.statistics.n_rows,
        rows.threads,
    )
    sampled = float(len(x)) if weight is None else float(np.cumsum(weight)[-1])
    sample.close()
    return replace(halves, gains=halves.gains * state.masses[which]), losses * (total / sampled)


def losses_at_floor(constants: Real, masses: Real, mean: float) -> Real:
    """Return (k,) estimates of the loss in F without each component, if its rows equal its mean.

    There ``constants`` (k,) are its log joints; ``mean`` is F per unit of weight.
    """
    return np.where(masses > 0, masses * np.maximum(constants - mean, 0.0), 0.0)
