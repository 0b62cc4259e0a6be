"""AFK-MC2: starting centres drawn approximately by D², in a few passes for all of them.

O. Bachem, M. Lucic, H. Hassani, A. Krause, Fast and provably good seedings for k-means, NIPS 2016.

k-means++ draws each centre in proportion to ``w d2``, the row's weight times its squared distance
to the centres so far. Here a Metropolis chain draws it instead: its m states are rows proposed by a
law that is drawn from beforehand, that of lightweight coresets about the first centre
(:mod:`~largek_dask.algorithms.starts.weighted_sampling`), and only their distances have to be
known. From a row x to a row y it goes with probability

    min(1, w_y d2_y q_x / (w_x d2_x q_y))

so that the law of the drawn centre tends to D² with the length of the chain, including weights
(without these in the ratio it would tend to that of rows of equal weight). That takes no pass over
the rows, but ``k^2 m / 2`` distances: beyond some 10,000 centres most of a fit.
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
"""States of a chain; 200 suits data in which a few clusters lie far from all others."""
AFK_MC2_PASSES = 6
"""Two to draw the first centre, two to draw proposals, and one to fetch each."""


def afk_mc2_start(
    passes: Passes, rng: Rng, n_clusters: int, chain: int = CHAIN
) -> tuple[NDArray[Any], int]:
    """Return (k, d) rows as starting centres, and the number of distances computed.

    They do not depend on chunks, threads or workers. The last state of each ``chain`` of that
    length is a centre; if all proposals lie on centres already drawn, one of these is repeated.
    ``n_clusters * chain`` rows are held, or all if there are fewer. Raises ``DataError`` if no row
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

    # Each proposed row once, those needed last first: so the first rows are those still needed.
    distinct, last = np.unique(drawn.rows[::-1], return_index=True)
    order = np.argsort(last, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    places = place[np.searchsorted(distinct, drawn.rows)]
    x, weight, _ = passes.take(distinct[order])
    # Over all rows w / q is below twice the weight of all: no product with d2 overflows.
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
    """Write all centres (k, d) but the first; return the number of distances computed.

    ``x`` (u, d) has the proposed rows, each once; those still needed always come first. ``places``
    (k - 1, m) are the rows of ``x`` in the chain of each further centre, ``factors`` their weights
    divided by their probabilities, and ``uniforms`` random numbers; both of the same shape.
    """
    k, chain = len(centers), places.shape[1]
    # Some centres at a time: until the last of them is drawn only the proposals for these meet
    # them one by one; after that all the rest meets them at once. Both take as long.
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
    """Return the states of a chain, as positions among its proposals; the first is the first state.

    ``gains`` (m) are ratios of target to proposal probability, ``w d2 / q``; of ``uniforms`` (m) in
    [0, 1) the first is unused.
    """
    state, states = 0, [0]
    for proposed in range(1, len(gains)):
        # A row on a centre is always left, for another one as well.
        if gains[state] == 0 or uniforms[proposed] * gains[state] < gains[proposed]:
            state = proposed
        states.append(state)
    return states
