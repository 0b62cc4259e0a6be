"""vc-GMM and var-GMM-S as published: isotropic components of one variance and equal weights.

F. Hirschberger, D. Forster, J. Lücke, Large Scale Clustering with Variational EM for Gaussian
Mixture Models, arXiv 1810.00803, which has these numbers; TPAMI 2022 (A variational EM
acceleration for efficient clustering at very large scales) is its later form.

=================================  ============================================================
in the paper                       here
=================================  ============================================================
Algorithm 1: coreset, seeds, g_c   :meth:`VCGMMPaper.init`, ``parts.coresets``, ``parts.afk_mc2``
its loop; equations 6 and 8        :meth:`VCGMMPaper.step`
Algorithm 2, equation 7: K_n       :func:`search_chunk`: nearest of the union of g_c, c in K_n
I_c, D̂ (equation 31), next g_c     ``PairSums``: mean distances over the rows nearest to c
posteriors (3), F (4, 20)          ``SoftSums``, in :func:`search_chunk`
=================================  ============================================================

A pass over the rows y_n, whose weights are γ_n, is an E-step, and sums up what the M-step needs.
K_n is row state. If it is lost, E-steps are repeated from the first one on, or from where K_n took
less room in a checkpoint than what repeats them.

N' = 16 draws per component and chains of 20 are our choices: the text has none for a new set (its
chains are of 20, for one set of 200). A coreset above 2^25 values stays on the workers. Departures:
rows may have weights, which multiply γ_n; σ² is not below what sums resolve.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Algorithm, Chunk, Footprint, Info, Passes, Rng, TableShape
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.mixture import MixtureArrays, MixtureProblem
from largek_dask.algorithms.objective import Objective
from largek_dask.algorithms.parts.afk_mc2 import afk_mc2_start
from largek_dask.algorithms.parts.coresets import Coreset, draw_coreset
from largek_dask.algorithms.parts.gathered import bytes_of_held
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.rows_in_place import HELD_VALUES, rows_of_coreset
from largek_dask.algorithms.parts.seeding import initial_centers
from largek_dask.algorithms.parts.spread import check_reach, spread_of
from largek_dask.algorithms.parts.totals import Additive
from largek_dask.algorithms.problem import Problem, check_integer
from largek_dask.algorithms.selection import draws_of
from largek_dask.errors import ParameterError
from largek_dask.kernels.bounds.unions import PairSums, search_unions, steps_of_pairs
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.soft_sums import SoftSums
from largek_dask.kernels.exact.sums import FixedPoint
from largek_dask.kernels.exact.transcendental import log
from largek_dask.kernels.mixtures import PackedMixture, pack_mixture

__all__ = ["EStep", "VCGMMPaper"]

ROWS = 16
"""Draws per component of a coreset of "auto"; not tuned."""
Labels = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class EStep:
    """What an E-step begins with, besides K_n, and enough to repeat it."""

    mu: NDArray[Any]
    """(C, D) means."""
    sigma2: float
    """Before the first M-step: the variance of all rows, as a unit."""
    g: Labels
    """(C, G) neighbourhoods, each component the first of its own."""
    key: int = 0
    """Key of random components."""
    K: Labels | None = None
    """(N', C') result, instead of a repetition."""


@dataclass(frozen=True, slots=True)
class VCGMMPaperState:
    """State between two iterations of EM."""

    next: EStep
    masses: NDArray[np.float64]
    floor: float
    """Least sigma2."""
    shift: NDArray[Any]
    coreset: Coreset | None
    seeding: tuple[tuple[str, float], ...]
    """Distances computed before the first iteration, which reports them."""
    F: float = -np.inf
    t: int = 0
    history: History[EStep] = field(default_factory=History)


@dataclass(frozen=True)
class VCGMMPaper(Algorithm[VCGMMPaperState]):
    """Truncated variational EM on a lightweight coreset, as published.

    Parameters
    ----------
    candidates, neighbours : int
        C', components in K_n, at most 32; and G, in g_c (None: C', as in the paper).
    explore : int
        Random components that rows meet as well ("+1").
    coreset : "auto" or int, optional
        N', draws of the coreset; "auto": 16 per component. None, or as many as there are rows: all
        rows, which is var-GMM-S.
    chain, independent : int, bool
        Length of chains of AFK-MC²; draws of the coreset are independent, or evenly spaced.
    initial_e_steps : int
        E-steps before the first M-step, besides the one that gives σ² (supplement F).
    epsilon : float
        The fit ends when |ΔF / F| is below it.
    """

    candidates: int = 5
    neighbours: int | None = None
    explore: int = 0
    coreset: int | Literal["auto"] | None = "auto"
    chain: int = 20
    independent: bool = True
    initial_e_steps: int = 0
    epsilon: float = 1e-4
    problem: Problem | None = field(default=None, repr=False, kw_only=True)
    solves: ClassVar[type[Problem]] = KMeansProblem

    def __post_init__(self) -> None:
        check_integer("candidates", self.candidates, 1, 32)
        for name in ("chain", "neighbours", "coreset"):
            if (value := getattr(self, name)) is not None and value != "auto":
                check_integer(name, value, 1)
        check_integer("explore", self.explore, 0, 32)
        check_integer("initial_e_steps", self.initial_e_steps, 0)

    @property
    def objective(self) -> Objective:
        """Objective of the problem; ``tol`` is not used."""
        return replace(
            (self.solves if self.problem is None else self.problem).objective, change="gain"
        )

    def _draws(self, table: TableShape) -> int:
        assert self.problem is not None
        n = ROWS * self.problem.n_clusters if self.coreset == "auto" else self.coreset
        return min(n or table.n_rows, table.n_rows)

    def check(self, table: TableShape) -> None:
        """Refuse sparse rows, and first weights and variances."""
        given = [getattr(self.problem, f"{name}_init", None) for name in ("weights", "precisions")]
        if table.is_sparse or given != [None, None]:
            raise ParameterError(
                "VCGMM.paper() needs dense rows, and finds first variances itself."
            )

    def init(self, passes: Passes, rng: Rng) -> VCGMMPaperState:
        """Draw the coreset and seeds (from it, unless ``init`` is another way); g_c is random."""
        assert self.problem is not None
        C, init, n, coreset = self.problem.n_clusters, self.problem.init, self._draws(passes), None
        seeding = {}
        if n < passes.n_rows:
            coreset = draw_coreset(passes, rng, n, independent=self.independent)
            seeding["evaluations_coreset"] = float(coreset.n_evaluated)
        rows = rows_of_coreset(passes, coreset)
        check_reach(rows.statistics)
        if isinstance(init, str) and init in ("auto", "afk-mc2"):
            mu, n_evaluated = afk_mc2_start(rows, rng, C, self.chain)
            seeding["evaluations_seeding"] = float(n_evaluated)
        else:
            mu = initial_centers(passes, rng, C, init)
        draw, G = rng.generator(0, "neighbourhoods"), min(self.neighbours or self.candidates, C)
        others = [draw.choice(C - 1, G - 1, replace=False) for _ in range(C)]
        g = np.array([[c, *(own + (own >= c))] for c, own in enumerate(others)], np.int32)
        spread = spread_of(rows)
        floor = float(spread.floor(rows, "iso", 0.0, 0.0)[0])
        first, shift = EStep(mu, max(spread.mean, floor), g), passes.statistics.shift
        return VCGMMPaperState(first, np.zeros(C), floor, shift, coreset, tuple(seeding.items()))

    def step(
        self, passes: Passes, rng: Rng, state: VCGMMPaperState
    ) -> tuple[VCGMMPaperState, Info]:
        """Run an E-step and an M-step; before the first M-step, find σ² from K_n."""
        rows, evaluations = rows_of_coreset(passes, state.coreset), 0
        weight, D = rows.statistics.total_weight, rows.n_features
        if not state.t:
            for _ in range(1 + self.initial_e_steps):
                state, total = self._e_step(rows, rng, state, counts=False)
                evaluations += total.n_evaluated
            sigma2 = max(total.nearest.value / (D * weight), state.floor)  # equation 8
            state = replace(state, next=replace(state.next, sigma2=sigma2))
        state, total = self._e_step(rows, rng, state, searches=state.t > 0)
        evaluations += total.n_evaluated if state.t else 0
        mu, sums, F = state.next.mu, total.sums, total.sums.bound
        mu_new = sums.means(mu)  # equation 6; a component without mass keeps its mean
        sigma2 = max(float(sums.variances(mu, mu_new).sum()) / (D * weight), state.floor)
        energy, told = sums.squares, dict(state.seeding)
        told |= {"iteration": state.t + 1.0, "evaluations": float(evaluations)}
        told |= {"lower_bound": F / weight, "energy": energy / weight}
        cost = F if isinstance(self.problem, MixtureProblem) else energy
        done = abs(F - state.F) < self.epsilon * abs(F)
        then = replace(state.next, mu=mu_new, sigma2=sigma2)
        after = replace(state, next=then, masses=sums.masses, F=F, t=state.t + 1, seeding=())
        return after, Info(cost, rows.n_rows, converged=done, extra=told)

    def _e_step(
        self,
        rows: Any,
        rng: Rng,
        state: VCGMMPaperState,
        *,
        searches: bool = True,
        counts: bool = True,
    ) -> tuple[VCGMMPaperState, EMTotal]:
        """Run Algorithm 2: K_n and the next g_c; or find posteriors of the same K_n."""
        e, history, width = state.next, state.history, min(self.candidates, len(state.masses))
        key = int(rng.generator(history.generation, "components").integers(1 << 62))
        alone = np.arange(len(e.g), dtype=np.int32)[:, None]
        e = replace(e, key=key) if searches else replace(e, g=alone, key=-1)
        is_larger = (len(history) + 1) * (e.mu.nbytes + e.g.nbytes) > 4 * width * rows.n_rows
        scale = steps_of_pairs(rows.n_features, float(rows.statistics.max_abs))

        def told(e: EStep, counts: bool = False, keeps: bool = False) -> tuple[Any, ...]:
            theta = _packed(e, state.shift)
            return theta, e.g, e.key, e.K, (width, self.explore), scale, counts, keeps

        total: EMTotal = rows.reduce(
            search_chunk,
            *told(e, counts, is_larger),
            start=partial(_total, rows.statistics.grid, len(e.mu)),
            combine=EMTotal.combine,
            state=history.next_state("vc-gmm", told),
        )
        if is_larger:
            K = np.concatenate([total.K[index] for index in sorted(total.K)])
            history = history.then(replace(e, K=K), anchor=True)
        else:
            history = history.then(e)
        g = total.pairs.neighbourhoods(e.g) if searches else state.next.g
        return replace(state, next=replace(state.next, g=g), history=history), total

    def model(self, state: VCGMMPaperState) -> CenterArrays | MixtureArrays:
        """Return the components after the last M-step; for hard clusters their means."""
        mu, masses, p = state.next.mu, state.masses, _packed(state.next, state.shift)
        if not isinstance(self.problem, MixtureProblem):
            return CenterArrays(mu, masses, state.shift)
        return MixtureArrays(mu, p.variances, p.log_weights, p.alive, masses, state.shift)

    def footprint(
        self, table: TableShape, itemsize: int, n_threads: int | None, budget: int | None
    ) -> Footprint:
        """Estimate memory and passes."""
        n, own = self._draws(table), 4 * self.candidates
        if n == table.n_rows or n * table.n_features > HELD_VALUES:
            return Footprint(row_bytes=own, model_copies=24, passes_before=4)
        held = bytes_of_held(table, n, itemsize, 2 * own, 2)
        return Footprint(model_copies=24, held_rows=n, held_bytes=held, passes_before=3)


@dataclass
class EMTotal(Additive):
    """Total of an E-step."""

    sums: SoftSums
    nearest: ExactSums = field(default_factory=ExactSums)
    """γ_n times the squared distance to the nearest of K_n."""
    n_evaluated: int = 0
    pairs: PairSums = field(default_factory=PairSums.nothing)
    K: dict[int, Labels] = field(default_factory=dict)
    """By chunk, if it goes into a checkpoint."""


def _total(grid: FixedPoint, C: int) -> EMTotal:
    return EMTotal(SoftSums(C, len(grid.shift), grid, "iso"))


def _packed(e: EStep, shift: NDArray[Any]) -> PackedMixture:
    C = len(e.mu)
    return pack_mixture(e.mu, np.array([[e.sigma2]]), np.full(C, -log(np.array([C]))[0]), shift)


def search_chunk(
    chunk: Chunk, total: EMTotal, theta: PackedMixture, g: Labels, key: int, given: Labels | None,
    sizes: tuple[int, int], scale: float, counts: bool, keeps: bool,
) -> None:  # fmt: skip
    """Find K_n: the C' nearest of the union of g_c, c in K_n, and of random components."""
    n, C, (width, explore) = len(chunk), len(g), sizes
    if given is not None:
        chunk.keep(K=given[chunk.start : chunk.start + n])
        return
    numbers, explore = chunk.numbers(), explore if key >= 0 else 0
    known = draws_of(numbers, key, width, C) if chunk.state is None else chunk.state["K"]
    K, d2 = np.array(known, np.int32, order="C"), np.empty((n, width))
    if chunk.weight is not None:
        K[chunk.weight == 0] = -1
    more = draws_of(numbers, key + width, explore, C) if explore else np.empty((n, 0), np.int32)
    n_evaluated, pairs = search_unions(chunk.x, g, more, theta, K, d2, scale)
    total.n_evaluated += n_evaluated
    total.pairs.merge(pairs)
    total.nearest.add(np.where(K[:, 0] < 0, 0.0, d2[:, 0]), chunk.weight)
    if counts:
        total.sums.add(chunk.x, chunk.weight, K, d2, theta)
    if keeps:
        total.K[chunk.index] = K
    chunk.keep(K=K)
