"""vc-GMM: truncated variational EM for mixtures of very many Gaussians.

``algorithms.published.vcgmm`` follows the paper line by line, with its equation numbers.

Each row has a few candidates: components that the row may belong to. Its responsibilities are
computed among these only, and new candidates are sought only near them. So a step computes only a
few log joint densities per row, however many components there are, and the free energy F, a lower
bound of the log-likelihood, rises in every step (J. Lücke, D. Forster, k-means as a variational EM
approximation of Gaussian mixture models, 2019; F. Hirschberger, D. Forster, J. Lücke, A variational
EM acceleration for efficient clustering at very large scales, TPAMI 2022; on coresets: D. Forster,
J. Lücke, Can clustering scale sublinearly with its clusters?, AISTATS 2018).

There are three differences from the paper (DESIGN.md gives the reasons). The first means come from
a truncated search with moves, because they decide which optimum EM reaches. Rows with the same best
candidate share one list of components, those nearest to it, so that kernels process these rows
together. The fit stops by 2 ΔF / (D W), roughly the relative change of the variance, because ``|ΔF
/ F|`` depends on the unit of measurement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import (
    Algorithm,
    Footprint,
    Info,
    Passes,
    PlannedTable,
    Rng,
    RowSample,
    TableShape,
)
from largek_dask.algorithms.choices import COVARIANCES, Covariance
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.mixture import MixtureArrays, MixtureProblem
from largek_dask.algorithms.parts.gathered import bytes_of_held
from largek_dask.algorithms.parts.spread import spread_of
from largek_dask.algorithms.problem import Problem, check_integer
from largek_dask.algorithms.published.vcgmm import VCGMMPaper
from largek_dask.algorithms.starts.afk_mc2 import afk_mc2_start
from largek_dask.algorithms.starts.coresets import Coreset, draw_coreset
from largek_dask.algorithms.starts.samples import coarse_centers
from largek_dask.algorithms.starts.seeding import initial_centers
from largek_dask.algorithms.truncated import Truncated
from largek_dask.algorithms.vcgmm.components import (
    Components,
    bound_of_labels,
    equal_components,
    updated,
)
from largek_dask.algorithms.vcgmm.moves import collapsed, find_moves, retired, to_retire
from largek_dask.algorithms.vcgmm.passes import (
    NEAREST_COMPONENTS,
    EMPass,
    EMPassTotal,
    NearComponents,
    kept_dtype,
    pass_over,
)
from largek_dask.algorithms.vcgmm.state import Trial, VCGMMState
from largek_dask.errors import DataError, ParameterError, ParameterWarning, warn
from largek_dask.kernels.bounds.neighbours import n_compared
from largek_dask.kernels.exact.transcendental import log

START = Truncated(rounds=5)
COARSE_ROWS = 128 * 1024
"""Number of rows in the sample from which coarse centres are computed."""
CANDIDATES = 5
WIDE_CANDIDATES = 16
"""Number of candidates for "isoflex", where wide components overlap other components. With fewer
candidates, the widest component takes over all rows."""
LIST, LISTS = 32, 3
"""Minimum length of a row's list of components; the list also contains at least `LISTS` times the
number of candidates."""
SHARED = 1
"""Number of first iterations in which components share one variance and have equal weights."""
SETTLING = 2
"""Minimum number of iterations after the `SHARED` ones before a small change of F may end a fit."""
TABLE_AGE = 3
"""Minimum number of iterations that use the same table of neighbours."""
TABLE_SHARE = 5
"""Time of the iterations that use a table of neighbours, divided by the time to compute the table.
With 262,144 rows x 32, k = 32,000, and a table used for 1, 3, 6, 12 or 25 iterations, F per row
after 5 s was -53.03, -52.97, -52.99, -52.99 and -53.12."""
PAIR_WORK = 0.125
"""Cost per pair of components in a table of neighbours, relative to the cost of one log joint
density of a row (measured)."""
FULL_EVERY = 10
"""Number of iterations between searches of all components, if these are cheap."""
ROW_WORK = 16.0
"""Additional cost of a row per iteration, relative to the cost of one log joint density
(measured)."""
GIVEN_BYTES = 256 << 20
"""Maximum size of the candidates of all rows in a checkpoint, in bytes."""
KEPT_BYTES = 256 << 20
"""Maximum size of the models since the last anchor in a checkpoint, in bytes."""


@dataclass(frozen=True)
class VCGMM(Algorithm[VCGMMState, Problem]):
    """Mixtures of Gaussians by truncated variational EM.

    Parameters
    ----------
    candidates : int or "auto"
        Components among which a row's responsibilities are computed (C' of the paper), 1 to 32;
        "auto": 5, or 16 for "isoflex", where a few wide components overlap all others.
    neighbours : int or "auto"
        Number of components near a row's best candidate that the row is compared with per
        iteration, at least the number of candidates; "auto": 32, or three times the candidates if
        that is more.
    explore : int
        Number of random components that a row is also compared with (the "+1" of the paper).
    covariance : {"iso", "isoflex", "diag"}
        "iso": one variance and equal weights, as in the paper. "isoflex": a variance and a weight
        per component. "diag": a variance per component and feature, and a weight per component. For
        "iso" and "isoflex", scale features of different units before the fit.
    initial_e_steps : int
        Passes that only search for candidates before the first M-step, if no first variance is
        given.
    coreset : int, optional
        Learn from about this many rows, drawn as a lightweight coreset (Bachem et al. 2018) and
        held in the driver's process. With None, or if the table is no larger, learn from all rows.
        The coreset is too small if ``lower_bound`` of the last step is far above the log-likelihood
        per row of the whole table: the components then overfit the coreset.
    reg_covar : float
        Lower limit of the variance of a component, relative to the variance of the rows: for "diag"
        in that feature, otherwise the mean over all features. Nothing is added to variances. The
        resolution of the sums is another lower limit.
    least_variance : float
        Lower limit of the variance of a component, in squared units of the rows. The larger limit
        applies.
    moves : bool
        Move components of "isoflex" and "diag" that collapse, or whose removal costs little, to
        where F rises most. Components that no move repairs are retired.

    Notes
    -----
    In Hirschberger et al., section 2, F is equation 4; the posteriors among candidates
    are equation 3, the M-step is equation 6, the criterion for candidates is equation 7, and the
    first variance is equation 8.

    In ``history_``, ``cost`` is F over all rows (during the search for first means, F with one
    candidate per row). ``extra`` contains more values: ``gain`` is 2 ΔF / (D W), which is compared
    with ``tol``; ``iteration`` counts iterations of EM, and is 0 during the search; ``lower_bound``
    is F divided by the total weight of the rows used for learning; ``energy`` is the mean squared
    distance of the rows to the means, weighted by responsibilities; ``alive`` is the number of
    components in the next iteration. Except for "iso", there are more counts: ``collapsed``
    components, which have less than a row or variances at the floor; ``moves`` that the next
    iteration tries; and components ``retired`` before it. ``back`` is 1 if moves were undone. F
    falls only when components are retired; a fit that ends before the next iteration returns them
    unchanged.

    ``evaluations`` counts the log joint densities and distances computed for rows in a step, and
    ``evaluations_lists`` the distances between components for new lists. In the first step,
    ``evaluations_coreset`` counts the evaluations for drawing a coreset, and
    ``evaluations_seeding`` the evaluations of AFK-MC².

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> x = np.repeat(np.eye(3, dtype=np.float32), 50, axis=0)
    >>> km = lk.KMeans(3, algorithm=lk.VCGMM(), random_state=0).fit(x)
    >>> len(set(km.labels_.tolist()))
    3
    """

    candidates: int | Literal["auto"] = "auto"
    neighbours: int | Literal["auto"] = "auto"
    explore: int = 0
    covariance: Covariance = "iso"
    initial_e_steps: int = 0
    coreset: int | None = None
    reg_covar: float = 1e-6
    least_variance: float = 0.0
    moves: bool = True
    solves: ClassVar[type[Problem]] = KMeansProblem
    """Hard clusters by default; a ``MixtureProblem`` requests a mixture instead."""
    change: ClassVar[str] = "gain"

    def __post_init__(self) -> None:
        if self.candidates != "auto":
            check_integer("candidates", self.candidates, 1, 32)
        if self.neighbours != "auto":
            check_integer("neighbours", self.neighbours, 1, None)
        check_integer("explore", self.explore, 0, 32)
        check_integer("initial_e_steps", self.initial_e_steps, 0, None)
        if self.coreset is not None:
            check_integer("coreset", self.coreset, 1, None)
        if self.covariance not in COVARIANCES:
            names = ", ".join(map(repr, COVARIANCES))
            raise ParameterError(f"covariance must be one of {names}, got {self.covariance!r}.")
        for name in ("reg_covar", "least_variance"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ParameterError(f"{name} must be a number of at least 0, got {value!r}.")

    @classmethod
    def paper(cls, **parameters: Any) -> VCGMMPaper:
        """Return the published algorithm; ``parameters`` are those of ``VCGMMPaper``."""
        return VCGMMPaper(**parameters)

    @property
    def _k(self) -> int:
        return self.problem.n_clusters

    @property
    def _width(self) -> int:
        return min(self._candidates, self._k)

    @property
    def _candidates(self) -> int:
        if self.candidates != "auto":
            return self.candidates
        if self.covariance != "isoflex":
            return CANDIDATES
        known = WIDE_CANDIDATES if self.neighbours == "auto" else self.neighbours
        return max(CANDIDATES, min(WIDE_CANDIDATES, known))

    @property
    def _length(self) -> int:
        """Number of components per list; if it is k, passes search all and store no candidates."""
        usual = max(LIST, LISTS * self._candidates)
        length = usual if self.neighbours == "auto" else self.neighbours
        return min(self._k, max(length, self._candidates))

    def _coreset_of(self, table: TableShape) -> int | None:
        """Return the size of the coreset for this table, or None to learn from all rows."""
        if self.coreset is None or self.coreset >= table.n_rows:
            return None
        return self.coreset

    def _rows(self, passes: Passes, coreset: Coreset | None) -> Passes:
        if coreset is None:
            return passes
        return passes.subset(coreset.rows, coreset.factors, own_weights=True)

    def bind(self, problem: Problem) -> Self:
        """Raise an error if the coreset is too small; warn if a small k changes parameters."""
        k = problem.n_clusters
        if self.coreset is not None and self.coreset < k:
            raise ParameterError(
                f"coreset={self.coreset} is less than n_clusters={k}. Use a coreset with several "
                "rows per component."
            )
        bound = super().bind(problem)
        taken = {"candidates": bound._width, "neighbours": bound._length}
        cut = [
            f"{name}={asked} is changed to {number}"
            for name, number in taken.items()
            if (asked := getattr(self, name)) not in ("auto", number)
        ]
        if cut:
            warn(
                f"{' and '.join(cut)}: there are {k} components, and neighbours must be at least "
                "the number of candidates.",
                ParameterWarning,
            )
        return bound

    def init(self, passes: Passes, rng: Rng) -> VCGMMState:
        drawn, n = None, self._coreset_of(passes)
        if n is not None:
            drawn = draw_coreset(passes, rng, n)
            if len(drawn.rows) < self._k:
                raise ParameterError(
                    f"coreset={n} contains only {len(drawn.rows)} different rows, fewer than the "
                    f"{self._k} components. Use a larger coreset."
                )
        rows = self._rows(passes, drawn)
        spread = spread_of(rows)
        # For hard clusters, any variance will do if all rows are equal.
        if spread.mean <= 0 and isinstance(self.problem, MixtureProblem):
            raise DataError(
                f"All rows are equal (n_samples={passes.n_rows}), so a mixture of Gaussians has no "
                "variance. Provide rows that differ."
            )
        state = VCGMMState(
            step=0,
            shift=passes.statistics.shift,
            masses=np.zeros(self._k),
            weight=rows.statistics.total_weight,
            floor=spread.floor(rows, self.covariance, self.reg_covar, self.least_variance),
            extents=spread.extents,
            own_from=0 if self.covariance == "iso" else SHARED,
            coreset=drawn,
        )
        init = self.problem.init
        name = init if isinstance(init, str) else "array"
        begun: tuple[tuple[str, float], ...] = ()
        if drawn is not None:
            begun = (("evaluations_coreset", float(drawn.n_evaluated)),)
        if name in ("auto", "k-means"):
            return replace(state, search=self._search().init(rows, rng), begun=begun)
        if name == "afk-mc2":
            means, n_evaluated = afk_mc2_start(rows, rng, self._k)
            begun = (*begun, ("evaluations_seeding", float(n_evaluated)))
        else:
            means = initial_centers(rows, rng, self._k, init)
        sample = rows.subset(RowSample(rng, "coarse", COARSE_ROWS))
        coarse = coarse_centers(sample.take().x, self._k, state.shift)
        sample.close()
        components, knows_variances = self._first_components(means, spread.mean, state)
        return replace(
            state,
            components=components,
            coarse=coarse,
            looks=self.initial_e_steps + (not knows_variances),
            own_from=0 if knows_variances else state.own_from,
            begun=begun,
        )

    def _first_components(
        self, means: NDArray[Any], spread: float, state: VCGMMState
    ) -> tuple[Components, bool]:
        """Return components with these means, and True if the user has given their variances."""
        variance = spread if spread > 0 else 1.0
        components = equal_components(means, variance, state.shift, self.covariance)
        asked = self.problem
        if not isinstance(asked, MixtureProblem):
            return components, False
        if asked.weights_init is not None:
            weights = np.ascontiguousarray(asked.weights_init, np.float64)
            components = replace(components, log_weights=log(weights))
        if asked.precisions_init is None:
            return components, False
        variances = 1 / np.ascontiguousarray(asked.precisions_init, np.float64)
        if self.covariance == "iso":
            variances = np.cumsum(variances)[-1:] / len(variances)
        variances = np.maximum(variances.reshape(components.variances.shape), state.floor)
        return replace(components, variances=variances), True

    def _search(self) -> Truncated:
        return START.bind(KMeansProblem(self._k, tol=self.problem.tol))

    def step(self, passes: Passes, rng: Rng, state: VCGMMState) -> tuple[VCGMMState, Info]:
        rows = self._rows(passes, state.coreset)
        step = self._iteration if state.search is None else self._step_of_search
        after, info = step(rows, rng, replace(state, begun=()))
        return after, replace(info, extra={**info.extra, **dict(state.begun)})

    def _step_of_search(self, rows: Passes, rng: Rng, state: VCGMMState) -> tuple[VCGMMState, Info]:
        search = self._search()
        assert state.search is not None
        after, info = search.step(rows, rng, state.search)
        d, total = rows.n_features, rows.statistics.total_weight
        cost, extra = info.cost, {**info.extra, "iteration": 0.0, "energy": info.cost / total}
        # The search reports the number of distances as a share of all distances.
        extra["evaluations"] = float(round(info.extra["distances"] * self._k * info.rows))
        if isinstance(self.problem, MixtureProblem):
            cost = bound_of_labels(info.cost, float(self._k), d, total, state.floor)
            extra["lower_bound"] = cost / total
        info_of_step = replace(info, cost=cost, converged=False, extra=extra)
        state = replace(state, step=state.step + 1, search=after)
        if not info.converged:
            return state, info_of_step
        components = self._found(state, search.model(after))
        return replace(state, search=None, components=components, coarse=after.coarse), info_of_step

    def _found(self, state: VCGMMState, found: CenterArrays) -> Components:
        """Return components at the centres of the search, with a variance from its cost."""
        assert state.search is not None
        variance, cost = state.floor, state.search.cost
        if np.isfinite(cost):
            variance = np.maximum(cost / (found.centers.shape[1] * state.weight), variance)
        return equal_components(found.centers, variance, state.shift, self.covariance)

    def _iteration(self, rows: Passes, rng: Rng, state: VCGMMState) -> tuple[VCGMMState, Info]:
        """Run one E-step and one M-step; if no variance is known yet, only find candidates."""
        if state.retiring is not None:
            # F falls, so its value is dropped; rows need lists without the retired components.
            components, masses = retired(state.known, state.masses, state.retiring)
            state = replace(state, components=components, masses=masses, bound=-np.inf)
            state = replace(state, table=None, retiring=None)
        state, n_evaluated = self._with_lists(rows, rng, state)
        pass_ = self._next_pass(rows, rng, state)
        wanted = self._stores_candidates(rows, state, pass_)
        total, kept = pass_over(rows, state.history, pass_, self.covariance, wanted=wanted)
        # Undone passes are not replayed: this pass follows the passes before the moves.
        history = state.history.then(
            pass_.to_keep(), anchor=pass_.is_anchor, back_to=state.restored
        )
        if kept is not None:
            last = replace(pass_.to_keep(), kind="given", given=kept, near=None, coarse=None)
            history = replace(history, entries=(last,))
        pass_.forget()
        age = state.table_age + 1
        after = replace(state, step=state.step + 1, history=history, table_age=age, restored=None)
        if state.looks:
            after, info = self._first_variance(rows, after, total)
        elif state.trial is not None and not total.sums.bound > state.bound:
            after, info = self._undo(after, state.trial, pass_, total)
        else:
            after, info = self._m_step(rows, rng, after, pass_, total)
        return after, replace(info, extra={**info.extra, "evaluations_lists": float(n_evaluated)})

    def _first_variance(
        self, rows: Passes, state: VCGMMState, total: EMPassTotal
    ) -> tuple[VCGMMState, Info]:
        """Estimate the variance from the first candidates (the first E-step of the paper)."""
        d, weight = rows.n_features, rows.statistics.total_weight
        variances = state.known.variances
        least = total.least.value
        if self.covariance == "diag":
            # The distances were divided by a provisional variance, equal for all features.
            least *= float(variances[0, 0])
        variance = np.maximum(least / (d * weight), state.floor)
        components = replace(state.known, variances=np.full(variances.shape, variance))
        cost, evaluations = least, float(total.n_evaluated)
        extra = {"iteration": 0.0, "evaluations": evaluations, "energy": least / weight}
        if isinstance(self.problem, MixtureProblem):
            given = self.problem.weights_init
            rarest = 1 / self._k if given is None else float(given.min())
            cost = bound_of_labels(least, 1 / rarest, d, weight, state.floor)
            extra["lower_bound"] = cost / weight
        after = replace(state, components=components, looks=state.looks - 1)
        return after, Info(cost, total.n_rows, extra=extra)

    def _m_step(
        self, rows: Passes, rng: Rng, state: VCGMMState, pass_: EMPass, total: EMPassTotal
    ) -> tuple[VCGMMState, Info]:
        sums, trial = total.sums, state.trial
        shared = state.iteration < state.own_from
        components = updated(state.known, sums, self.covariance, state.floor, shared=shared)
        bound, weight = sums.bound, sums.total
        gain = 2 * (bound - state.bound) / (rows.n_features * weight)
        tried = replace(state.tried, pause=max(0, state.tried.pause - 1))
        if trial is not None:
            tried = tried.after(trial.pairs[:, 0], risen=True, paid=gain > self.problem.tol)
        after = replace(
            state,
            components=components,
            masses=sums.masses,
            bound=bound,
            iteration=state.iteration + 1,
            tried=tried,
            trial=None,
        )
        settled = state.own_from + SETTLING if state.own_from else 0
        compared = np.isfinite(state.bound) and state.iteration >= settled
        after, repairs = self._repair(rows, rng, after, opens=compared)
        extra = self._extra(pass_, total, bound, after) | repairs
        converged = False
        # A fit does not end while moves are tried or will be tried.
        if compared and not (self._repairs and (after.trial or not after.tried.gave_up)):
            extra["gain"] = gain
            converged = gain <= 0
        cost = bound if isinstance(self.problem, MixtureProblem) else sums.squares
        return after, Info(cost, total.n_rows, converged=converged, extra=extra)

    def _extra(
        self, pass_: EMPass, total: EMPassTotal, bound: float, after: VCGMMState
    ) -> dict[str, float]:
        known = after if after.trial is None else after.trial.before
        components = known.known
        alive = np.isfinite(components.log_weights)
        if after.retiring is not None:
            alive &= ~after.retiring
        extra = {
            "iteration": float(after.iteration),
            "neighbours": float(self._k if pass_.kind == "all" else self._length),
            "evaluations": float(total.n_evaluated),
            "lower_bound": bound / total.sums.total,
            "energy": total.sums.squares / total.sums.total,
            "alive": float(np.count_nonzero(alive)),
        }
        if self.covariance != "iso":
            row = total.sums.total / max(1, total.n_rows)
            fallen = collapsed(components, known.masses, row, known.floor)
            extra["collapsed"] = float(np.count_nonzero(fallen))
        return extra

    @property
    def _repairs(self) -> bool:
        """True if collapsed components are moved."""
        return self.moves and self.covariance != "iso" and self._k > 2

    def _repair(
        self, rows: Passes, rng: Rng, state: VCGMMState, *, opens: bool
    ) -> tuple[VCGMMState, dict[str, float]]:
        """Choose moves to try or components to retire; return the new state, and statistics.

        ``opens`` is True if moves may be tried in the next iteration.
        """
        if not self._repairs:
            return state, {}
        figures = {"moves": 0.0, "back": 0.0, "retired": 0.0}
        if not opens:
            return state, figures
        components, masses, tried = state.known, state.masses, state.tried
        row = state.weight / rows.n_rows
        fallen = collapsed(components, masses, row, state.floor)
        if not (tried.gave_up or tried.pause):
            tol = self.problem.tol
            found = find_moves(rows, rng, state, fallen, self.covariance, self._width, tol)
            if found is not None:
                moves, moved = found
                trial = Trial(state, np.array([moves.split, moves.removed], np.int32).T)
                # Moved components need new lists.
                after = replace(state, components=moved, trial=trial, near=None, table=None)
                return after, figures | {"moves": float(len(moves.split))}
            tried = tried.without()
        hopeless = to_retire(components, masses, fallen, row)
        if not (tried.may_retire and hopeless.any()):
            return replace(state, tried=tried), figures
        after = replace(state, tried=tried.retired(), retiring=hopeless)
        return after, figures | {"retired": float(np.count_nonzero(hopeless))}

    def _undo(
        self, state: VCGMMState, trial: Trial, pass_: EMPass, total: EMPassTotal
    ) -> tuple[VCGMMState, Info]:
        """Undo moves that did not raise F; the next pass restores the candidates of the rows."""
        before = trial.before
        after = replace(
            before,
            step=state.step,
            iteration=state.iteration + 1,
            history=state.history,
            tried=state.tried.after(trial.pairs[:, 0], risen=False, paid=False),
            restored=len(before.history),
        )
        figures = {"moves": 0.0, "retired": 0.0, "back": 1.0}
        extra = self._extra(pass_, total, after.bound, after) | figures
        cost = after.bound if isinstance(self.problem, MixtureProblem) else total.sums.squares
        return after, Info(cost, total.n_rows, extra=extra)

    def _with_lists(self, rows: Passes, rng: Rng, state: VCGMMState) -> tuple[VCGMMState, int]:
        """Return the state with lists for the next pass, and the number of evaluations for them."""
        k, length = self._k, self._length
        fresh = state.table is not None and state.table_age < self._table_age(rows.n_rows)
        if length >= k or fresh:
            return state, 0
        pairs = None if state.trial is None else state.trial.pairs
        near = NearComponents(state.known, length, pairs)
        made = replace(state, near=near, table=near.table(rows.threads.n), table_age=0)
        return made, k * n_compared(k, length)

    def _table_age(self, n_rows: int) -> int:
        """Return the number of iterations for which a table of neighbours is used."""
        k, length = self._k, self._length
        iteration = n_rows * (length + ROW_WORK)
        table = PAIR_WORK * k * n_compared(k, length)
        return max(TABLE_AGE, int(np.ceil(TABLE_SHARE * table / iteration)))

    def _next_pass(self, rows: Passes, rng: Rng, state: VCGMMState) -> EMPass:
        k, length = self._k, self._length
        kind: Literal["lists", "nearest", "cells", "all"] = "lists"
        first = not state.history.entries
        if length >= k or self._searches_all(rows, state):
            kind = "all"
        elif first:
            kind = "nearest" if k <= NEAREST_COMPONENTS else "cells"
        near = kind in ("lists", "nearest")
        key = int(rng.generator(state.step, "explore").integers(1 << 62)) if near else 0
        return EMPass(
            kind,
            state.known,
            self._width,
            near=state.near if near else None,
            listed=state.table if near else None,
            coarse=state.coarse if kind == "cells" else None,
            explore=self.explore if near else 0,
            key=key,
            counts=not state.looks,
            keeps=length < k,
            save=kind == "lists" and state.trial is not None,
            restore=kind == "lists" and state.restored is not None,
            extents=state.extents if self.covariance == "diag" else None,
        )

    def _searches_all(self, rows: Passes, state: VCGMMState) -> bool:
        if not state.history.entries or state.trial is not None:
            return False
        if self._is_cheap and state.iteration > 0 and state.iteration % FULL_EVERY == 0:
            return True
        return _kept_bytes(state) > KEPT_BYTES and rows.n_rows * self._given_bytes > GIVEN_BYTES

    @property
    def _is_cheap(self) -> bool:
        """True if it is affordable to search all components every few iterations."""
        return self._k <= FULL_EVERY / 2 * (self._length + ROW_WORK)

    @property
    def _given_bytes(self) -> int:
        return self._width * kept_dtype(self._k).itemsize

    def _stores_candidates(self, rows: Passes, state: VCGMMState, pass_: EMPass) -> bool:
        """Return True if a checkpoint with the candidates is smaller than one with the models."""
        given = rows.n_rows * self._given_bytes
        if pass_.is_anchor or state.trial is not None or given > GIVEN_BYTES:
            return False
        return _kept_bytes(state) > given

    def model(self, state: VCGMMState) -> CenterArrays | MixtureArrays:
        """Return the components after the last M-step; for hard clusters, only their means."""
        state = state if state.trial is None else state.trial.before
        if state.search is not None:
            found = self._search().model(state.search)
            if not isinstance(self.problem, MixtureProblem):
                return found
            return self._found(state, found).arrays(found.counts)
        components = state.known
        if isinstance(self.problem, MixtureProblem):
            return components.arrays(state.masses)
        return CenterArrays(components.means, state.masses, state.shift)

    def footprint(self, table: PlannedTable) -> Footprint:
        if table.is_sparse:
            raise ParameterError(
                "VCGMM requires dense rows, but these are sparse. Use KMeans, or convert them."
            )
        drawn = self._coreset_of(table)
        if drawn is None:
            start = self._search().footprint(table)
            # The first pass computes the mean variance, the second draws the first rows.
            return Footprint(
                row_bytes=max(self._row_bytes, start.row_bytes),
                model_copies=24,
                passes_before=2,
                full_search=self._anchors(table.n_rows, table.n_features),
            )
        return Footprint(
            model_copies=24,
            held_rows=drawn,
            held_bytes=bytes_of_held(table, drawn, table.itemsize, 8, 2),
            passes_before=3,
            full_search=self._anchors(drawn, table.n_features),
        )

    @property
    def _row_bytes(self) -> int:
        """Size of the row state in bytes per row, with a copy if moves may have to be undone."""
        if self._length == self._k:
            return 0
        return self._given_bytes * (2 if self.covariance != "iso" and self.moves else 1)

    def _anchors(self, n_rows: int, d: int) -> str:
        k = self._k
        if self._length == k:
            return "in every step"
        if self._is_cheap:
            return f"every {FULL_EVERY} iterations"
        if n_rows * self._given_bytes <= GIVEN_BYTES:
            return "never: a checkpoint has room for the candidates of all rows"
        shape = {"iso": 1, "isoflex": k, "diag": k * d}[self.covariance]
        model = 4 * k * d + 8 * (shape + k)
        every = KEPT_BYTES // model + 1
        return f"every {every} iterations: a checkpoint has room for that many models"


def _kept_bytes(state: VCGMMState) -> int:
    return len(state.history) * state.known.nbytes
