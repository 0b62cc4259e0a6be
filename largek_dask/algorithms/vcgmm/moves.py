"""Moves: collapsed components take over halves of components that gain by a split.

A component with its own variance may *collapse*: it keeps less than one row, or only rows so
similar (usually a single row) that its variance falls to the floor. EM alone never repairs such a
component. A move splits the component whose split raises F most, and the collapsed component takes
over one of the halves. Many moves are tried at a time, and undone unless F rises in the next
iteration.

The gain of a split is estimated on a seeded sample, by EM with two halves for each component
(:mod:`~largek_dask.kernels.split_components`). The contribution of the collapsed component to F is
lost. The contribution of a single row may be large, although it says nothing about other rows, so
only moves that gain more are tried.

A component that no move repairs is retired: its weight becomes 0, and a later move may revive it. A
component with enough rows that are all equal is not retired, because it describes these rows
correctly. F falls only when components are retired.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, Rng, RowSample
from largek_dask.algorithms.choices import Covariance
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.moves import Moves, Splits, choose_moves
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

SPLIT_VALUES = 1 << 26
"""Maximum number of values (rows times features) of the sample on which splits are tried."""
LEAST_SHARE = 1 / 64
"""Minimum responsibility of a component for a row that is used to split the component."""
SPLITS = 4
"""Number of splits that are tried per allowed move."""
LEAST_SPLITS = 256
CHOICE = 4
"""Number of candidates for removal per allowed move."""
MEANT = 2.0
"""Collapsed components that weigh less than this number of rows may be retired."""
LOCKED = 4
"""Number of nearest neighbours of a moved component that must stay unchanged."""
MOVED_SHARE = 10
"""Ratio of the number of components to the maximum number of moves at a time."""

Real = NDArray[np.float64]
Which = NDArray[np.int64]


def move_components(
    components: Components, masses: Real, moves: Moves, halves: ComponentSplits
) -> Components:
    """Return the components after the moves; the weights are proportional to ``masses``.

    The field ``halves`` of ``moves`` contains (m,) indices into ``halves``.
    """
    means, variances = components.means.copy(), components.variances.copy()
    masses, whole = masses.copy(), masses[moves.split]
    for h, which in enumerate((moves.split, moves.removed)):
        means[which] = halves.means[moves.halves, h]
        variances[which] = halves.variances[moves.halves, h]
        masses[which] = whole * halves.shares[moves.halves, h]
    # Normalise the weights, without the previous masses of the moved components.
    return replace(components, means=means, variances=variances, log_weights=log_shares(masses))


def log_shares(masses: Real) -> Real:
    """Return (k,) logarithms of the shares of the total mass; -infinity for a mass of 0."""
    return log(masses / float(np.cumsum(masses)[-1]))


def collapsed(components: Components, masses: Real, row: float, floor: Real) -> NDArray[np.bool_]:
    """Return a (k,) mask of components that weigh less than a row or have variances at the floor.

    ``row`` is the mean weight of a row. The mask excludes retired components.
    """
    # A constant feature is at the floor in every component, so require all features.
    at_floor = (components.variances <= floor).all(axis=1)
    return np.isfinite(components.log_weights) & (at_floor | (masses < row))


def to_retire(
    components: Components, masses: Real, fallen: NDArray[np.bool_], row: float
) -> NDArray[np.bool_]:
    """Return a (k,) mask of collapsed components that have little more than one outlying row.

    At most half of the components that are alive are retired, the lightest first: the others take
    over their rows and may recover. With one row per component, all components have collapsed.
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
    """Return components and masses after retiring the components in the mask ``which`` (k,)."""
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
) -> tuple[Moves, Components] | None:
    """Return moves whose total gain, 2 ΔF / (D W), exceeds ``tol``, and the moved components.

    Returns None if there are no such moves. ``fallen`` (k,) is the mask of collapsed components,
    which are not split; ``width`` is the number of candidates per row.
    """
    components, masses, tried = state.known, state.masses, state.tried
    k, packed = len(masses), components.packed()
    which = to_split(masses, fallen, tried.failed)
    halves, losses = find_splits(rows, rng, state, covariance, width, which)
    # The sample may contain no rows of small components.
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
    return found, move_components(components, masses, found, halves)


def to_split(masses: Real, vacant: NDArray[np.bool_], failed: tuple[int, ...]) -> Which:
    """Return (m,) ascending indices of the components with the largest masses, to be split."""
    rank = np.where(vacant, 0.0, masses)
    rank[list(failed)] = 0.0
    most = max(LEAST_SPLITS, SPLITS * len(masses) // MOVED_SHARE)
    which = np.argsort(-rank, kind="stable")[:most]
    return np.sort(which[rank[which] > 0])


def find_splits(
    rows: Passes, rng: Rng, state: VCGMMState, covariance: Covariance, width: int, which: Which
) -> tuple[ComponentSplits, Real]:
    """Estimate the halves of the components ``which`` (m,), and the losses of removals.

    This uses a sample. Gains of halves are increases of F over all rows; losses (k,) are upper
    bounds of the decrease of F if a component is removed.
    """
    components = state.known
    k, d = components.means.shape
    sample = rows.subset(
        RowSample(rng, "split", min(MOST_ROWS * k, SPLIT_VALUES // d), ascending=True)
    )
    pass_ = EMPass("all", components, width, counts=False)
    if k > NEAREST_COMPONENTS and state.coarse is not None:
        pass_ = replace(pass_, kind="cells", coarse=state.coarse)
    elif state.table is not None:
        pass_ = replace(pass_, kind="nearest", listed=state.table)
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
    """Estimate the (k,) losses in F by removing components whose rows equal their means.

    ``constants`` (k,) are the log joint densities of the components at their own means; ``mean`` is
    F per unit of weight.
    """
    return np.where(masses > 0, masses * np.maximum(constants - mean, 0.0), 0.0)
