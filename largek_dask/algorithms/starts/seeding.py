"""Initial centres: random rows, two levels, k-means++ and variants, or an array.

D. Arthur, S. Vassilvitskii, k-means++: the advantages of careful seeding, SODA 2007.
B. Bahmani et al., Scalable k-means++, VLDB 2012 (k-means||).
Greedy k-means++ draws 2 + log k candidates for each centre and keeps the best, as in scikit-learn.
AFK-MC2 (:mod:`~largek_dask.algorithms.starts.afk_mc2`) approximates k-means++ in few passes.

k-means++ and its variants draw rows by D²: the probability is proportional to the weight of a row
times its squared distance to the nearest centre so far. This takes one pass per centre. Every chunk
draws candidates by D², with random numbers derived from (step, chunk), and returns its mass, the
sum of weights times squared distances. One of the chunks is then drawn by mass.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes, Rng, RowSample, RowState, TakenRows
from largek_dask.algorithms.choices import INITS
from largek_dask.algorithms.parts.chunk_results import ChunkResults
from largek_dask.algorithms.parts.nested import NestedRows
from largek_dask.algorithms.starts.afk_mc2 import AFK_MC2_PASSES, afk_mc2_start
from largek_dask.algorithms.starts.samples import rounds_start, sparse_start, two_level_start
from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import SparseBlock, Table, dense_rows
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.statistics import RowScan
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.kernels.sampling import bernoulli_by_d2, draw_by_d2, potentials, update_d2

AUTO_PLUS_PLUS_CLUSTERS = 100
"""Maximum number of clusters for which ``init="auto"`` means k-means++. Above this, k passes would
take too long, and random rows are drawn."""

TWO_LEVEL_ROWS = 64
"""Rows per centre of the sample for the two-level start."""

PARALLEL_ROUNDS = 5
"""Number of rounds of k-means||; each round draws about k / 2 candidates (Bahmani et al., section
5.3)."""

CANDIDATE_LLOYD_STEPS = 3
"""Number of weighted Lloyd steps on the candidates of k-means||, after k-means++ on these."""


def check_init(init: str | NDArray[Any], n_clusters: int, n_features: int) -> None:
    """Raise ``ParameterError`` for an unknown ``init``, or an array that cannot be used as centres.

    An array must have the shape (n_clusters, n_features) and finite real numbers.
    """
    if isinstance(init, str):
        if init not in ("auto", *INITS):
            known = ", ".join(map(repr, ("auto", *INITS)))
            raise ParameterError(f"init must be one of {known} or an array, got {init!r}.")
        return
    if init.shape != (n_clusters, n_features):
        raise ParameterError(
            f"init has shape {init.shape}; with n_clusters={n_clusters} and rows of "
            f"{n_features} features it must be ({n_clusters}, {n_features})."
        )
    if init.dtype.kind not in "iuf":
        raise ParameterError(f"init must hold real numbers, not {init.dtype}.")
    bad = ~np.isfinite(init).all(axis=1)
    if bad.any():
        raise ParameterError(
            f"init: centre {int(np.argmax(bad))} holds NaN or infinity; all values must be finite."
        )


def passes_of(init: str | NDArray[Any], n_clusters: int) -> int:
    """Return the approximate number of passes that :func:`initial_centers` takes."""
    if not isinstance(init, str):
        return 0
    if init == "auto":
        init = _auto(n_clusters)
    if init in ("k-means++", "greedy-k-means++"):
        return n_clusters
    return {"k-means||": PARALLEL_ROUNDS + 2, "afk-mc2": AFK_MC2_PASSES}.get(init, 1)


def _auto(n_clusters: int) -> str:
    return "k-means++" if n_clusters <= AUTO_PLUS_PLUS_CLUSTERS else "random"


def initial_centers(
    passes: Passes, rng: Rng, n_clusters: int, init: str | NDArray[Any]
) -> NDArray[Any]:
    """Return (n_clusters, n_features) initial centres; raise the errors of :func:`check_init`."""
    check_init(init, n_clusters, passes.n_features)
    if not isinstance(init, str):
        return init.astype(passes.statistics.dtype)
    if init == "auto":
        init = _auto(n_clusters)
    match init:
        case "random":
            return _random_rows(passes, rng, n_clusters)
        case "two-level":
            return _two_level(passes, rng, n_clusters)
        case "afk-mc2":
            return afk_mc2_start(passes, rng, n_clusters)[0]
        case "k-means||":
            return _parallel(passes, rng, n_clusters)
    n_candidates = 1 if init == "k-means++" else 2 + int(log(n_clusters))
    return _plus_plus(passes, rng, n_clusters, n_candidates)


def _two_level(passes: Passes, rng: Rng, n_clusters: int) -> NDArray[Any]:
    sample = passes.subset(RowSample(rng, "two-level", TWO_LEVEL_ROWS * n_clusters))
    (x, weight, _), n_threads = sample.take(), passes.threads.n
    sample.close()
    if isinstance(x, SparseBlock):
        return sparse_start(x, weight, n_clusters, passes.statistics.grid, n_threads)
    return two_level_start(x, weight, n_clusters, passes.statistics.shift, n_threads)[0]


def nested_start(
    passes: Passes, rng: Rng, k: int, init: str | NDArray[Any], rows: int
) -> tuple[NDArray[Any], int]:
    """Return initial centres, by default from a sample, and the size of the first nested batch."""
    if not isinstance(init, str) or init != "auto":
        return initial_centers(passes, rng, k, init), rows
    x, weight, size = NestedRows(passes, rng).sample(rows, k)
    return centers_of_sample(x, weight, k, passes, rng), max(size, rows)


def centers_of_sample(
    x: Table, weight: NDArray[np.float64], n_clusters: int, passes: Passes, rng: Rng
) -> NDArray[Any]:
    """Return (k, d) initial centres from a sample (n, d).

    Few clusters are found by k-means++. Many clusters are found by the two-level start for dense
    rows, and by drawing in rounds for sparse rows.
    """
    shift, n_threads = passes.statistics.shift, passes.threads.n
    if n_clusters <= AUTO_PLUS_PLUS_CLUSTERS:
        return choose_among(x, weight, n_clusters, shift, rng)
    if isinstance(x, SparseBlock):
        generator, grid = rng.generator(0, "rounds"), passes.statistics.grid
        return rounds_start(x, weight, n_clusters, grid, generator, n_threads)
    order = rng.generator(0, "two-level").permutation(len(x))
    return two_level_start(x[order], weight[order], n_clusters, shift, n_threads)[0]


def choose(
    draws: ChunkResults, uniforms: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Choose one chunk by mass for each candidate; return the candidates of these chunks.

    The result of a chunk is its mass and the global rows and coordinates of its candidates.
    ``uniforms[j]`` selects the chunk for candidate j. Return the global rows and coordinates of the
    chosen candidates, or none if no chunk has any mass.
    """
    results = draws.in_order()
    heavy = [result for result in results if result[0] > 0]
    if not heavy:
        _, rows, x = results[0]
        return rows[:0], x[:0]
    # Sums in chunk order are identical wherever chunks were computed.
    edges = np.cumsum([mass for mass, _, _ in heavy])
    places = np.searchsorted(edges, uniforms * edges[-1], side="right")
    picks = [heavy[min(p, len(heavy) - 1)] for p in places]
    rows = np.array([r[j] for j, (_, r, _) in enumerate(picks)], np.int64)
    return rows, np.stack([x[j] for j, (_, _, x) in enumerate(picks)])


def weight_chunk(chunk: Chunk, total: ChunkResults, rng: Rng, step: int, n: int) -> None:
    """Draw ``n`` rows of a chunk by weight."""
    weight = np.ones(len(chunk.x)) if chunk.weight is None else chunk.weight
    uniforms = rng.generator(step, "weight", chunk.index).random(n)
    picks, mass = draw_by_d2(weight, None, uniforms)
    total.chunks[chunk.index] = (mass, chunk.start + picks, dense_rows(chunk.x[picks]))


def d2_chunk(
    chunk: Chunk,
    total: ChunkResults,
    centers: NDArray[Any],
    shift: NDArray[Any],
    rng: Rng,
    step: int,
    n: int,
) -> None:
    """Update the chunk's D² for new centres, then draw ``n`` of its rows by D²."""
    d2 = np.full(len(chunk.x), np.inf) if chunk.state is None else chunk.state["d2"].copy()
    update_d2(chunk.x, pack_centers(centers, shift), d2)
    uniforms = rng.generator(step, "d2", chunk.index).random(n)
    picks, mass = draw_by_d2(d2, chunk.weight, uniforms)
    total.chunks[chunk.index] = (mass, chunk.start + picks, dense_rows(chunk.x[picks]))
    chunk.keep(d2=d2)


def _draw_by_weight(
    passes: Passes, rng: Rng, attempt: int, purpose: str, n: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Draw n rows by weight, with replacement; return their global indices and coordinates."""
    start, combine = ChunkResults, ChunkResults.combine
    draws: ChunkResults = passes.reduce(weight_chunk, rng, attempt, n, start=start, combine=combine)
    return choose(draws, rng.generator(attempt, purpose).random(n))


def potential_chunk(
    chunk: Chunk, total: ExactSums, centers: NDArray[Any], shift: NDArray[Any]
) -> None:
    """Add the potential (sum of weighted D²) that remains after adding each candidate."""
    assert chunk.state is not None
    total.merge(potentials(chunk.x, pack_centers(centers, shift), chunk.state["d2"], chunk.weight))


def _random_rows(passes: Passes, rng: Rng, k: int) -> NDArray[Any]:
    """Draw k rows without replacement, by weight if rows are weighted."""
    statistics = passes.statistics
    same_weight = statistics.min_weight == statistics.max_weight
    if same_weight and statistics.n_rows == passes.n_rows:
        rows = rng.generator(0, "random").choice(passes.n_rows, k, replace=False)
        return dense_rows(passes.take(np.sort(rows)).x)
    chosen: dict[int, NDArray[Any]] = {}
    # Skipping repeated rows gives the distribution of draws without replacement.
    attempt = 0
    while len(chosen) < k and attempt < 64:
        n = 2 * (k - len(chosen)) + 16
        rows, x = _draw_by_weight(passes, rng, attempt, "random", n)
        for row, point in zip(rows.tolist(), x, strict=True):
            if len(chosen) < k:
                chosen.setdefault(row, point)
        attempt += 1
    picked = sorted(chosen)
    if len(picked) < k:
        # Nearly all weight is on a few rows, so fill up with any rows.
        others = (row for row in range(passes.n_rows) if row not in chosen)
        picked += [row for row, _ in zip(others, range(k - len(picked)), strict=False)]
    return dense_rows(passes.take(np.array(picked, np.int64)).x)


def _plus_plus(passes: Passes, rng: Rng, k: int, n_candidates: int) -> NDArray[Any]:
    """Run k-means++ by exact D²; greedy if ``n_candidates`` > 1."""
    shift = passes.statistics.shift
    centers = np.empty((k, passes.n_features), passes.statistics.dtype)
    centers[0] = _draw_by_weight(passes, rng, 0, "first", 1)[1][0]
    for t in range(1, k):
        # D² depends only on the centres so far, so one broadcast rebuilds it for a lost chunk.
        replay = ((centers[: t - 1], shift, rng, t, 0),) if t > 1 else ()
        draws: ChunkResults = passes.reduce(
            d2_chunk,
            *(centers[t - 1 : t], shift, rng, t, n_candidates),
            start=ChunkResults,
            combine=ChunkResults.combine,
            state=RowState("d2", t, replay),
        )
        _, new = choose(draws, rng.generator(t, "choose").random(n_candidates))
        if not len(new):
            # Every row coincides with a centre: there are only t distinct rows.
            centers[t:] = centers[0]
            break
        best = 0
        if n_candidates > 1:
            replay = ((centers[:t], shift, rng, t, 0),)
            total: ExactSums = passes.reduce(
                potential_chunk,
                *(new, shift),
                start=partial(ExactSums, n_candidates),
                combine=ExactSums.merge,
                state=RowState("d2", t + 1, replay, d2_chunk, ChunkResults),
            )
            best = int(np.argmin(total.values))
        centers[t] = new[best]
    return centers


def sample_chunk(chunk: Chunk, total: ChunkResults, rng: Rng, turn: int, factor: float) -> None:
    """Sample every row with probability min(1, factor · weight · D²)."""
    assert chunk.state is not None
    uniforms = rng.generator(turn, "sample", chunk.index).random(len(chunk.x))
    picks = bernoulli_by_d2(chunk.state["d2"], chunk.weight, factor, uniforms)
    if len(picks):
        total.chunks[chunk.index] = dense_rows(chunk.x[picks])


def nearest_candidate_chunk(
    chunk: Chunk, total: ExactSums, candidates: NDArray[Any], shift: NDArray[Any], offset: int
) -> None:
    """Update D² and nearest candidates for new candidates, numbered from ``offset``."""
    if chunk.state is None:
        d2, labels = np.full(len(chunk.x), np.inf), np.zeros(len(chunk.x), np.int32)
    else:
        d2, labels = chunk.state["d2"].copy(), chunk.state["labels"].copy()
    if len(candidates):
        update_d2(chunk.x, pack_centers(candidates, shift), d2, labels, offset)
    total.add(d2, chunk.weight)
    chunk.keep(d2=d2, labels=labels)


def candidate_weight_chunk(chunk: Chunk, total: ClusterSums) -> None:
    """Add up the weight of the rows nearest to each candidate."""
    assert chunk.state is not None
    total.add(np.empty((len(chunk.x), 0), np.float32), chunk.state["labels"], chunk.weight)


def _parallel(passes: Passes, rng: Rng, k: int) -> NDArray[Any]:
    """Run k-means||: sample about k / 2 rows per round, then run k-means++ on these rows."""
    shift = passes.statistics.shift
    # Only weights are summed, so the grid has no features.
    grid = replace(passes.statistics.grid, shift=shift[:0])
    _, candidates = _draw_by_weight(passes, rng, 0, "first", 1)
    new, turn = candidates, 0
    while True:
        turn += 1
        known = len(candidates) - len(new)
        replay = ((candidates[:known], shift, 0),) if known else ()
        left: ExactSums = passes.reduce(
            nearest_candidate_chunk,
            *(new, shift, known),
            start=ExactSums,
            combine=ExactSums.merge,
            state=RowState("candidates", turn, replay),
        )
        replay = ((candidates, shift, 0),)
        written = RowState("candidates", turn + 1, replay, nearest_candidate_chunk, ExactSums)
        # Extra rounds are run only while there are fewer than k candidates.
        enough = turn > PARALLEL_ROUNDS and len(candidates) >= k
        if enough or left.value <= 0 or turn > 20 * PARALLEL_ROUNDS:
            break
        sample: ChunkResults = passes.reduce(
            sample_chunk,
            *(rng, turn, max(k / 2, 1.0) / left.value),
            start=ChunkResults,
            combine=ChunkResults.combine,
            state=written,
        )
        new = np.concatenate([candidates[:0], *sample.in_order()])
        candidates = np.concatenate([candidates, new])
    weight: ClusterSums = passes.reduce(
        candidate_weight_chunk,
        start=partial(ClusterSums, len(candidates), 0, grid),
        combine=ClusterSums.merge,
        state=written,
    )
    return choose_among(candidates.astype(passes.statistics.dtype), weight.counts, k, shift, rng)


def choose_among(
    points: Table, weight: NDArray[np.float64], k: int, shift: NDArray[Any], rng: Rng
) -> NDArray[Any]:
    """Run k-means++ on weighted points (n, d) in memory, then a few Lloyd steps on them."""
    if len(points) < k:
        # Repeat points if there are fewer than k; empty clusters are relocated later.
        return np.resize(dense_rows(points), (k, points.shape[1]))
    generator = rng.generator(0, "among")
    d2 = np.full(len(points), np.inf)
    centers = np.empty((k, points.shape[1]), points.dtype)
    picks, _ = draw_by_d2(weight, None, generator.random(1))
    for t in range(k):
        if not len(picks):
            centers[t:] = centers[0]
            break
        centers[t] = points[picks[0]]
        update_d2(points, pack_centers(centers[t : t + 1], shift), d2)
        picks, _ = draw_by_d2(d2, weight, generator.random(1))
    scan = RowScan(points.shape[1], points.dtype)
    scan.add(points, weight, 0)
    grid = scan.finish().grid
    for _ in range(CANDIDATE_LLOYD_STEPS):
        sums = ClusterSums(len(centers), centers.shape[1], grid)
        sums.add(points, nearest(points, pack_centers(centers, shift)), weight)
        centers = sums.means(centers)
    return centers


def drawn_centers(
    rows: TakenRows, k: int, init: str | NDArray[Any], dtype: Any, draws: np.random.Generator
) -> NDArray[Any]:
    """Return (k, d) distinct rows drawn at random, or ``init`` if it is an array.

    If there are fewer than ``k`` distinct rows, some are repeated.
    """
    if not isinstance(init, str):
        return np.asarray(init).astype(dtype)
    x = dense_rows(rows.x)
    _, first = np.unique(x, axis=0, return_index=True)
    chosen: NDArray[Any] = x[np.resize(draws.permutation(first), k)].astype(dtype)
    return chosen
