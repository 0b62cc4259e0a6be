"""vc-GMM and var-GMM-S as published: isotropic components of one variance and equal weights.

F. Hirschberger, D. Forster, J. Lücke, Large Scale Clustering with Variational EM for Gaussian
Mixture Models, arXiv 1810.00803. Equation numbers are from this preprint; the paper appeared in
TPAMI 2022 under another title.

=================================  ============================================================
in the paper                       here
=================================  ============================================================
Algorithm 1: coreset, seeds, g_c   ``VCGMMPaper.init``, ``starts.coresets``, ``starts.afk_mc2``
its loop; equations 6 and 8        ``VCGMMPaper.step``
Algorithm 2, equation 7: K_n       ``search_chunk``: nearest of the union of g_c, c in K_n
I_c, D̂ (equation 31), next g_c     ``PairSums``: mean distances over the rows nearest to c
posteriors (3), F (4, 20)          ``SoftSums``, in ``search_chunk``
=================================  ============================================================

A pass over the rows y_n with weights γ_n is an E-step and also computes the sums for the M-step.
K_n is row state; if K_n is lost, E-steps are repeated, from the first E-step or from K_n in a
checkpoint.

The paper gives no general values for N' and the length of chains; we use 16 draws per component and
chains of length 20. A coreset of more than 2^25 values stays on the workers. Unlike in the paper,
rows may have weights, which multiply γ_n, and σ² has a lower limit, the resolution of the sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Algorithm, Chunk, Footprint, Info, Passes, PlannedTable, Rng
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.mixture import MixtureArrays, MixtureProblem
from largek_dask.algorithms.parts.gathered import bytes_of_held
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.spread import spread_of
from largek_dask.algorithms.parts.totals import Additive
from largek_dask.algorithms.problem import Problem, check_integer
from largek_dask.algorithms.randomness import draws_of
from largek_dask.algorithms.starts.afk_mc2 import afk_mc2_start
from largek_dask.algorithms.starts.coresets import Coreset, draw_coreset
from largek_dask.algorithms.starts.rows_in_place import HELD_VALUES, rows_of_coreset
from largek_dask.algorithms.starts.seeding import initial_centers
from largek_dask.errors import ParameterError
from largek_dask.kernels.bounds.shared_candidates import (
    PairSums,
    search_neighbourhoods,
    steps_of_pairs,
)
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.soft_sums import SoftSums
from largek_dask.kernels.mixtures import PackedMixture, pack_equal

ROWS = 16  # number of draws per component if coreset is "auto"; not tuned
Labels = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class EMState:
    mu: NDArray[Any]
    sigma2: float
    """Variance, at least ``floor``; before the first M-step the variance of all rows, which only
    sets the scale."""
    g: Labels
    """(C, G) neighbourhoods; each begins with its own component."""
    masses: NDArray[np.float64]
    floor: float
    shift: NDArray[Any]
    coreset: Coreset | None
    n_start: int
    F: float = -np.inf
    step: int = 0
    history: History[tuple[Any, ...]] = field(default_factory=History)
    """Arguments mu, sigma2, g and key of each E-step, which suffice to repeat the step, or the
    resulting K_n."""


@dataclass(frozen=True)
class VCGMMPaper(Algorithm[EMState, Problem]):
    """Truncated variational EM on a lightweight coreset, as published.

    Parameters
    ----------
    candidates, neighbours, explore : int
        C', the size of K_n, at most 32; G, the size of g_c (None means C', as in the paper); and
        the number of random components that are also searched for each row ("+1").
    coreset : "auto" or int, optional
        Number of draws N'; "auto" is 16 per component. None, or at least the number of rows, means
        all rows, i.e. var-GMM-S.
    chain, independent : int, bool
        Length of the chains of AFK-MC²; True for independent draws of the coreset, False for evenly
        spaced ones.
    initial_e_steps, epsilon : int, float
        Number of additional E-steps before the first M-step (supplement F); relative ΔF that ends a
        fit.
    """

    candidates: int = 5
    neighbours: int | None = None
    explore: int = 0
    coreset: int | Literal["auto"] | None = "auto"
    chain: int = 20
    independent: bool = True
    initial_e_steps: int = 0
    epsilon: float = 1e-4
    solves: ClassVar[type[Problem]] = KMeansProblem

    def __post_init__(self) -> None:
        check_integer("candidates", self.candidates, 1, 32)
        for name in ("chain", "neighbours", "coreset", "explore", "initial_e_steps"):
            if (value := getattr(self, name)) is not None and (name, value) != ("coreset", "auto"):
                check_integer(name, value, int(name not in ("explore", "initial_e_steps")))

    def _draws(self, table: Passes | PlannedTable) -> int:
        n = ROWS * self.problem.n_clusters if self.coreset == "auto" else self.coreset
        return min(n or table.n_rows, table.n_rows)

    def init(self, passes: Passes, rng: Rng) -> EMState:
        """Draw the coreset, the seeds and random g_c."""
        C, init, n, coreset = self.problem.n_clusters, self.problem.init, self._draws(passes), None
        if n < passes.n_rows:
            coreset = draw_coreset(passes, rng, n, independent=self.independent)
        rows, n_start = rows_of_coreset(passes, coreset), 0 if coreset is None else passes.n_rows
        if isinstance(init, str) and init in ("auto", "afk-mc2"):
            mu, n_seeding = afk_mc2_start(rows, rng, C, self.chain)
            n_start += n_seeding
        else:
            mu = initial_centers(passes, rng, C, init)
        draw, G = rng.generator(0, "neighbourhoods"), min(self.neighbours or self.candidates, C)
        others = [draw.choice(C - 1, G - 1, replace=False) for _ in range(C)]
        g = np.array([[c, *(own + (own >= c))] for c, own in enumerate(others)], np.int32)
        spread, shift = spread_of(rows), passes.statistics.shift
        floor = float(spread.floor(rows, "iso", 0.0, 0.0)[0])
        return EMState(mu, max(spread.mean, floor), g, np.zeros(C), floor, shift, coreset, n_start)

    def step(self, passes: Passes, rng: Rng, state: EMState) -> tuple[EMState, Info]:
        """Run an E-step and an M-step; before the first M-step, compute σ² from K_n."""
        rows, evaluations = rows_of_coreset(passes, state.coreset), 0
        weight, mu = rows.statistics.total_weight, state.mu
        if not state.step:
            for _ in range(1 + self.initial_e_steps):
                state, total = self._e_step(rows, rng, state, "search")
                evaluations += total.n_evaluated
            sigma2 = total.nearest.value / (rows.n_features * weight)  # equation 8
            state = replace(state, sigma2=max(sigma2, state.floor))
        state, total = self._e_step(rows, rng, state, "both" if state.step else "share")
        sums, F, evaluations = total.sums, total.sums.bound, evaluations + total.n_evaluated
        mu_new = sums.means(mu)  # equation 6; a component without mass keeps its mean
        sigma2 = float(sums.variances(mu, mu_new).sum()) / (rows.n_features * weight)
        extra = {"iteration": state.step + 1.0, "evaluations": float(evaluations)}
        extra |= {"lower_bound": F / weight, "energy": sums.squares / weight}
        extra |= {} if state.step else {"evaluations_start": float(state.n_start)}
        done, step = abs(F - state.F) < self.epsilon * abs(F), state.step + 1
        cost = F if isinstance(self.problem, MixtureProblem) else sums.squares
        state = replace(state, mu=mu_new, sigma2=max(sigma2, state.floor), masses=sums.masses)
        return replace(state, F=F, step=step), Info(cost, rows.n_rows, converged=done, extra=extra)

    def _e_step(self, rows: Any, rng: Rng, state: EMState, does: str) -> tuple[EMState, EMTotal]:
        """Run Algorithm 2: "search" for K_n and the next g_c, "share" rows among K_n, or "both"."""
        mu, history, g, width = state.mu, state.history, state.g, min(self.candidates, len(state.g))
        key = int(rng.generator(history.generation, "components").integers(1 << 62))
        if does == "share":  # K_n alone
            key, g = -1, np.arange(len(g), dtype=np.int32)[:, None]
        keeps = (len(history) + 1) * (mu.nbytes + g.nbytes) > 4 * width * rows.n_rows
        scale = steps_of_pairs(rows.n_features, float(rows.statistics.max_abs))

        def arguments(entry: tuple[Any, ...], counts: bool = False, keeps: bool = False) -> Any:
            theta = pack_equal(entry[0], entry[1], state.shift)
            return theta, *entry[2:], (width, self.explore), scale, counts, keeps

        entry: tuple[Any, ...] = mu, state.sigma2, g, key, None
        total: EMTotal = rows.reduce(
            search_chunk,
            *arguments(entry, does != "search", keeps),
            start=partial(_total, rows.statistics.grid, len(mu)),
            combine=EMTotal.combine,
            state=history.next_state("vc-gmm", arguments),
        )
        if keeps:
            entry = *entry[:4], np.concatenate([total.K[index] for index in sorted(total.K)])
        g = state.g if does == "share" else total.pairs.neighbourhoods(g)
        return replace(state, g=g, history=history.then(entry, anchor=keeps)), total

    def model(self, state: EMState) -> CenterArrays | MixtureArrays:
        """Return the components after the last M-step, or only their means for k-means."""
        if not isinstance(self.problem, MixtureProblem):
            return CenterArrays(state.mu, state.masses, state.shift)
        p, masses = pack_equal(state.mu, state.sigma2, state.shift), state.masses
        return MixtureArrays(state.mu, p.variances, p.log_weights, p.alive, masses, state.shift)

    def footprint(self, table: PlannedTable) -> Footprint:
        """Estimate memory and passes; reject sparse rows and initial weights or precisions."""
        given = [getattr(self.problem, f"{name}_init", None) for name in ("weights", "precisions")]
        if table.is_sparse or given != [None, None]:
            raise ParameterError(
                "VCGMM.paper() requires dense rows, and no initial weights or precisions."
            )
        n, own = self._draws(table), 4 * self.candidates
        if n == table.n_rows or n * table.n_features > HELD_VALUES:
            return Footprint(own, model_copies=24, passes_before=4)
        held = bytes_of_held(table, n, table.itemsize, 2 * own, 2)
        return Footprint(model_copies=24, held_rows=n, held_bytes=held, passes_before=3)


@dataclass
class EMTotal(Additive):
    """Total of an E-step, including K_n by chunk if a checkpoint stores K_n."""

    sums: SoftSums
    nearest: ExactSums = field(default_factory=ExactSums)
    n_evaluated: int = 0
    pairs: PairSums = field(default_factory=PairSums.nothing)
    K: dict[int, Labels] = field(default_factory=dict)


def _total(grid: Any, C: int) -> EMTotal:
    return EMTotal(SoftSums(C, len(grid.shift), grid, "iso"))


def search_chunk(
    chunk: Chunk, total: EMTotal, theta: PackedMixture, g: Labels, key: int, given: Labels | None,
    sizes: tuple[int, int], scale: float, counts: bool, keeps: bool,
) -> None:  # fmt: skip
    """Find K_n: the C' nearest components among all g_c with c in K_n and random components."""
    n, C, (width, explore) = len(chunk), len(g), sizes
    if given is not None:
        chunk.keep(K=given[chunk.start : chunk.start + n])
        return
    numbers, explore = chunk.numbers(), explore if key >= 0 else 0
    known = draws_of(numbers, key, width, C) if chunk.state is None else chunk.state["K"]
    K, d2 = np.array(known, np.int32, order="C"), np.empty((n, width))
    if chunk.weight is not None:
        K[chunk.weight == 0] = -1
    more = draws_of(numbers, key + width, explore, C)
    n_evaluated, pairs = search_neighbourhoods(chunk.x, g, more, theta, K, d2, scale)
    total.n_evaluated += n_evaluated
    total.pairs.merge(pairs)
    total.nearest.add(np.where(K[:, 0] < 0, 0.0, d2[:, 0]), chunk.weight)
    if counts:
        total.sums.add(chunk.x, chunk.weight, K, d2, theta)
    if keeps:
        total.K[chunk.index] = K
    chunk.keep(K=K)
