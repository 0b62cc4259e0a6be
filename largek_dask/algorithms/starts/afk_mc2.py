"""AFK-MC2: draw initial centres approximately by D², in a few passes.

O. Bachem, M. Lucic, H. Hassani, A. Krause, Fast and provably good seedings for k-means, NIPS 2016.

k-means++ draws each centre with probability proportional to ``w d2``, the weight of a row times its
squared distance to the nearest centre so far. Here each centre is drawn by a Metropolis chain of m
states. The states are rows proposed from a fixed distribution q, which is the distribution of
lightweight coresets about the first centre
(:mod:`~largek_dask.algorithms.starts.weighted_sampling`), and only distances of proposed rows are
computed.

The chain moves from row x to row y with probability

    min(1, w_y d2_y q_x / (w_x d2_x q_y))

As the chain gets longer, the distribution of the drawn centre approaches weighted D². Chains need
no passes over the rows but ``k^2 m / 2`` distances, which take most of the time of a fit above
about 10,000 centres.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, Rng
from largek_dask.algorithms.starts.samples import update_distances
from largek_dask.algorithms.starts.weighted_sampling import draw_by_mass
from largek_dask.kernels.blocks import Table, dense_rows, rows_at
from largek_dask.kernels.distances import pack_centers
from largek_dask.kernels.sampling import update_d2
from largek_dask.kernels.threads import Threads

CHAIN = 20
"""Number of states in a chain. A length of 200 suits data in which a few clusters are far from all
others."""
AFK_MC2_PASSES = 6
"""Number of passes: two to draw and one to read rows, for the first centre and again for the
proposals."""


def afk_mc2_start(
    passes: Passes, rng: Rng, n_clusters: int, chain: int = CHAIN
) -> tuple[NDArray[Any], int]:
    """Return (k, d) rows as initial centres, and the number of distances computed.

    The result does not depend on chunks, threads or workers. Each centre is the last state of a
    chain of length ``chain``. If all proposals coincide with earlier centres, an earlier centre is
    repeated. At most ``n_clusters * chain`` rows are held in memory. Raises ``DataError`` if no row
    has positive weight.
    """
    first = draw_by_mass(passes, rng.generator(0, "afk-mc2-first"), 1)
    centers = np.empty((n_clusters, passes.n_features), passes.statistics.dtype)
    centers[0] = dense_rows(passes.take(first.rows).x)[0]
    if n_clusters == 1:
        return centers, 0
    n = (n_clusters - 1) * chain
    drawn = draw_by_mass(passes, rng.generator(0, "afk-mc2"), n, centers[0])
    uniforms = rng.generator(0, "afk-mc2-chain").random((n_clusters - 1, chain))

    # Rows needed for the last centres come first, so the rows still needed are a prefix.
    distinct, last = np.unique(drawn.rows[::-1], return_index=True)
    order = np.argsort(last, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    places = place[np.searchsorted(distinct, drawn.rows)]
    x, weight, _ = passes.take(distinct[order])
    # w / q is below twice the total weight, so no product with d2 overflows.
    factors = (1.0 if weight is None else weight[places]) / drawn.probabilities
    factors /= factors.max()
    shape, shift = uniforms.shape, passes.statistics.shift
    evaluated = _draw_centers(
        centers, x, places.reshape(shape), factors.reshape(shape), uniforms, shift, passes.threads
    )
    return centers, passes.statistics.n_rows + evaluated


def _draw_centers(
    centers: NDArray[Any],
    x: Table,
    places: NDArray[np.int64],
    factors: NDArray[np.float64],
    uniforms: NDArray[np.float64],
    shift: NDArray[Any],
    threads: Threads,
) -> int:
    """Draw all centres but the first; return the number of distances computed.

    ``x`` (u, d) holds the distinct proposed rows, ordered so that rows needed longest come
    first. For each further
    centre, ``places`` (k - 1, m) are the positions in ``x`` of the rows in its chain, ``factors``
    (k - 1, m) are their weights divided by their probabilities, and ``uniforms`` (k - 1, m) are
    random numbers.
    """
    k, chain = len(centers), places.shape[1]
    # Draw about sqrt(k) centres per block; later proposals are updated once per block.
    step = isqrt(k)
    d2 = np.full(len(x), np.inf)
    evaluated = update_distances(x, pack_centers(centers[:1], shift), d2, threads)
    for begin in range(1, k, step):
        end = min(begin + step, k)
        block = slice(begin - 1, end - 1)
        own, gain = places[block].ravel(), factors[block].ravel()
        near, near_d2 = rows_at(x, own), d2[own]
        for t in range(begin, end):
            at = (t - begin) * chain
            states = slice(at, at + chain)
            gains = (gain[states] * near_d2[states]).tolist()
            at += states_of_chain(gains, uniforms[t - 1].tolist())[-1]
            centers[t] = dense_rows(near[at : at + 1])[0]
            later = slice(states.stop, len(own))
            if later.start < later.stop:
                update_d2(near[later], pack_centers(centers[t : t + 1], shift), near_d2[later])
                evaluated += later.stop - later.start
        if end < k:
            n = int(places[end - 1 :].max()) + 1
            packed = pack_centers(centers[begin:end], shift)
            evaluated += update_distances(x[:n], packed, d2[:n], threads)
    return evaluated


def states_of_chain(gains: Sequence[float], uniforms: Sequence[float]) -> list[int]:
    """Return the states of a chain, as indices of proposals; the first state is proposal 0.

    ``gains`` (m,) are ratios of target to proposal probability, ``w d2 / q``. ``uniforms`` (m,) are
    random numbers in [0, 1), of which the first is unused.
    """
    state, states = 0, [0]
    for proposed in range(1, len(gains)):
        # A state that coincides with a centre always moves to the next proposal.
        if gains[state] == 0 or uniforms[proposed] * gains[state] < gains[proposed]:
            state = proposed
        states.append(state)
    return states
