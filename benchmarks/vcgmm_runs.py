"""Single fits of mixtures, ours and others', on one thread.

    python -m benchmarks.vcgmm_runs --child JSON      ([[name, arguments], ...]; of `vcgmm.py`)

CPU seconds are those of the fit: of ours from the first look at rows in memory to the last
parameters, of others the call that learns. A few rows go first, so that no compilation or loading
of code is timed. Energies and exact log-likelihoods are computed outside the clock, over all rows
and all components, the same for everybody (:func:`scores`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.lloyd import starting_centers

__all__ = ["AUTHORS", "JOBS", "Mix", "Run", "patched", "planted", "run_ours", "scores", "steps_of"]

AUTHORS = "LARGEK_VCGMM"
"""Names the program made from `vcgmm_authors.cpp`, if it was made."""
SNAPSHOTS = 12
"""Steps of a run whose energy is computed for its curve."""
FEW = 4
"""Iterations of a first fit."""
MANY = 2_500
"""Components of a first fit on few rows, at most; for more of them no other code is used."""
warmed: set[str] = set()
"""Kinds of fits that a process has done."""
BY_DISTANCE = "by distance"
"""A change that stands for :func:`nearest_means`."""
UNIFORM = "uniform"
"""A change of the draw of coresets: every row as likely, and of one weight."""
CHAIN = 20
"""States of a chain of AFK-MC2."""

Real = NDArray[np.float64]
Record = dict[str, Any]


class Mix(NamedTuple):
    """A mixture in numpy: variances (1, 1), (k, 1) or (k, d)."""

    means: NDArray[Any]
    variances: Real
    log_weights: Real

    @classmethod
    def hard(cls, centers: NDArray[Any], energy: float) -> Mix:
        """What k-means is as a mixture: equal weights, and one variance as its energy tells it."""
        k, d = centers.shape
        return cls(centers, np.full((1, 1), energy / d), np.full(k, -np.log(k)))


class Score(NamedTuple):
    """Means over rows."""

    energy: float
    """Squared distance to the nearest mean."""
    log_likelihood: float
    """Logarithm of the density, over all components."""
    labels: NDArray[np.int32]
    """The component of the largest log joint."""


def scores(x: NDArray[Any], mix: Mix) -> Score:
    """Score rows over all components, by the kernels of our last pass (a test asks scipy)."""
    from largek_dask.kernels.evidence import evidence
    from largek_dask.kernels.mixtures import pack_mixture

    shift = x.mean(axis=0, dtype=np.float64).astype(x.dtype)
    means = np.ascontiguousarray(mix.means, x.dtype)
    packed = pack_mixture(means, np.array(mix.variances), np.array(mix.log_weights), shift)
    labels, log_likelihood = evidence(x, packed)
    return Score(fast_energy(x)(mix), float(log_likelihood.mean()), labels)


def planted(
    n: int, k: int, d: int, kind: str, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows of k components whose variances differ, and which of them each is of."""
    r = np.random.default_rng(seed)
    means = 2.2 * r.standard_normal((k, d))
    weights = r.dirichlet(np.full(k, 2.0))
    spreads = np.exp(r.normal(0, 0.7, (k, d if kind == "diag" else 1))) * np.ones(d)
    of = r.choice(k, n, p=weights)
    rows = means[of] + spreads[of] * r.standard_normal((n, d))
    return rows.astype(np.float32), of


# --- ours -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A fit of ours, as it is asked for."""

    k: int
    seed: int = 0
    covariance: Literal["iso", "isoflex", "diag"] = "iso"
    paper: bool = False
    """As published (``VCGMM.paper``)."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``VCGMM``."""
    init: Any = "auto"
    tol: float = 1e-4
    most: int = 1_000
    """Iterations of EM at which it is cut."""
    limit: float = 120.0
    """CPU seconds at which it is cut."""


def steps_of(x: NDArray[Any], run: Run) -> Iterator[tuple[Mix, dict[str, float]]]:
    """The mixture after every step, and what is known of the step."""
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.mixture import MixtureProblem
    from largek_dask.algorithms.vcgmm import VCGMM
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    made = VCGMM.paper(**run.parameters) if run.paper else VCGMM(**run.parameters)
    problem = MixtureProblem(run.k, run.init, tol=run.tol, mixture=run.covariance)
    algorithm = replace(made, problem=problem, covariance=run.covariance)
    rng = Rng(run.seed)
    begun = time.process_time()
    with LocalPasses(open_rows(x), n_threads=1) as passes:
        state = algorithm.init(passes, rng)
        first = time.process_time() - begun
        while True:
            state, info = algorithm.step(passes, rng, state)
            arrays: Any = algorithm.model(state)
            gain = info.extra.get("gain")
            about = {
                "F": info.cost / passes.statistics.total_weight,
                "iteration": info.extra.get("iteration", 0.0),
                "distances": sum(
                    value for name, value in info.extra.items() if name.startswith("evaluations")
                ),
                "init": first,
                "rows": info.rows,
            }
            yield Mix(arrays.means, arrays.variances, arrays.log_weights), about
            small = gain is not None and run.tol > 0 and gain <= run.tol
            if info.converged or small or about["iteration"] >= run.most:
                return


def warm_up(x: NDArray[Any], run: Run) -> None:
    """The same fit on a few rows, once for all fits of its kind."""
    k = min(run.k, MANY)
    parameters = dict(run.parameters)
    if parameters.get("coreset"):
        parameters["coreset"] = 2 * k
    init = run.init if isinstance(run.init, str) else run.init[:k]
    small = replace(run, k=k, seed=0, parameters=parameters, init=init)
    kind = repr((replace(small, init=np.shape(init) or init), x.shape[1], x.dtype))
    if kind in warmed:
        return
    warmed.add(kind)
    with patched({"vcgmm.algorithm.START": {"rounds": 1}}):
        for _ in steps_of(x[: max(4 * k, 2_000)], replace(small, most=FEW)):
            pass


@dataclass
class Traced:
    """A fit of ours, step by step."""

    clock: list[float] = field(default_factory=list)
    mixes: list[Mix] = field(default_factory=list)
    said: list[dict[str, float]] = field(default_factory=list)

    @property
    def of_start(self) -> int:
        """Steps that came before the first iteration of EM."""
        return sum(about["iteration"] == 0 for about in self.said)


def trace(x: NDArray[Any], run: Run) -> Traced:
    """Run it, and keep what there was after every step."""
    found, spent, begun = Traced(), 0.0, time.process_time()
    for mix, about in steps_of(x, run):
        spent += time.process_time() - begun
        found.clock.append(spent)
        found.mixes.append(mix)
        found.said.append(about)
        if spent > run.limit:
            break
        begun = time.process_time()
    return found


def told_of(found: Traced) -> Record:
    """Seconds and counts of a run."""
    last, start = found.said[-1], found.of_start
    at_start = found.clock[start - 1] if start else 0.0
    iterations = int(last["iteration"])
    return {
        "seconds": found.clock[-1],
        "seconds_of_init": last["init"],
        "seconds_of_start": at_start,
        "steps_of_start": start,
        "iterations": iterations,
        "an_iteration": (found.clock[-1] - at_start) / max(1, iterations),
        "median_iteration": float(np.median(np.diff([at_start, *found.clock[start:]]))),
        "distances": sum(about["distances"] for about in found.said),
        "distances_of_em": sum(about["distances"] for about in found.said[start:]),
        "F": last["F"],
        "F_by_iteration": [about["F"] for about in found.said[start:]],
    }


def curve_of_ours(x: NDArray[Any], test: NDArray[Any] | None, found: Traced) -> Record:
    """What there was after some steps: energies over all rows, or scores of held-out ones.

    The first steps look at few rows, whose F flatters.
    """
    whole = [i for i, said in enumerate(found.said) if said["rows"] == found.said[-1]["rows"]]
    n = len(whole)
    kept = [whole[i] for i in np.unique(np.linspace(0, n - 1, min(n, SNAPSHOTS)).astype(int))]
    bounds = {"F": [found.said[i]["F"] for i in kept]}
    if test is not None:
        return bounds | curve_of(test, [(found.clock[i], found.mixes[i]) for i in kept])
    energy = fast_energy(x)
    return bounds | {
        "seconds": [found.clock[i] for i in kept],
        "energy": [energy(found.mixes[i]) for i in kept],
    }


@contextmanager
def patched(changes: Mapping[str, Any]) -> Iterator[None]:
    """Constants of modules of ``largek_dask.algorithms`` changed for a while, by their path."""
    before = []
    for name, value in changes.items():
        module, constant = name.rsplit(".", 1)
        owner = importlib.import_module(f"largek_dask.algorithms.{module}")
        known = getattr(owner, constant)
        before.append((owner, constant, known))
        if value == BY_DISTANCE:
            value = nearest_means
        elif value == UNIFORM:
            value = partial(known, uniform=True)
        setattr(owner, constant, replace(known, **value) if isinstance(value, dict) else value)
    try:
        yield
    finally:
        for owner, constant, known in before:
            setattr(owner, constant, known)


def nearest_means(packed: Any, width: int, n_threads: int = 1) -> NDArray[np.int32]:
    """Neighbours of components by the distance of their means alone."""
    from largek_dask.kernels.bounds.neighbours import nearest_centers

    return nearest_centers(packed.centers, width, n_threads)


def run_ours(
    path: str,
    asked: dict[str, Any],
    *,
    curve: bool = False,
    score: bool = True,
    held_out: str | None = None,
    of: str | None = None,
    start: str | None = None,
    save_start: str | None = None,
    partition: str | None = None,
    changes: Mapping[str, Any] | None = None,
    last_pass: bool = False,
    energy: bool = False,
) -> Record:
    """A fit of ours on stored rows.

    Parameters
    ----------
    path : str
    asked : dict
        Fields of :class:`Run`.
    curve, score : bool
        What is wanted beside seconds: energies after some steps, and those of the end.
    held_out, of : str, optional
        Rows that were not learnt from, and which component planted each: for scores on these.
    start, save_start : str, optional
        Means to begin from, and where to leave those that our own start has found.
    partition : str, optional
        Labels to compare with (normalised mutual information).
    changes : mapping, optional
        For :func:`patched`.
    last_pass : bool
        Time exact labels and log-likelihoods of all rows, too.
    energy : bool
        The energy of the end alone, where scores are not wanted.
    """
    x, run = np.load(path), Run(**asked)
    if start is not None:
        run = replace(run, init=np.load(start))
    with patched(changes or {}):
        warm_up(x, run)
        before = peak_mb()
        found = trace(x, run)
    record = told_of(found)
    record["peak_mb"] = peak_mb() - before
    test = None if held_out is None else np.load(held_out)
    if curve:
        record["curve"] = curve_of_ours(x, test, found)
    last = found.mixes[-1]
    if last_pass:
        record["seconds_of_last_pass"] = seconds_of_last_pass(x, last)
    alive = np.isfinite(last.log_weights)
    record["alive"] = int(alive.sum())
    # (a retired one keeps its variance, which says nothing)
    variances = np.broadcast_to(last.variances, (len(alive), last.variances.shape[1]))
    record["least_variance"] = float(variances[alive].min())
    record["variances"] = [float(v) for v in np.quantile(last.variances, (0, 0.5, 1))]
    if save_start is not None:
        save_one_hot(x, found.mixes[max(0, found.of_start - 1)].means, save_start)
    if score:
        record |= told_of_end(x if test is None else test, last, of, partition)
    elif energy:
        record["energy"] = fast_energy(x)(last)
    return record


def seconds_of_last_pass(x: NDArray[Any], mix: Mix) -> float:
    """CPU seconds of labels and exact log-likelihoods of all rows."""
    from largek_dask.kernels.evidence import evidence
    from largek_dask.kernels.mixtures import pack_mixture

    packed = pack_mixture(mix.means, mix.variances, mix.log_weights, mix.means[0])
    evidence(x[:1_000], packed)
    begun = time.process_time()
    evidence(x, packed)
    return time.process_time() - begun


def fast_energy(x: NDArray[Any]) -> Callable[[Mix], float]:
    """Energies, by our own kernels; a retired component is no row's nearest."""
    from benchmarks.curves import Energies

    return lambda mix: Energies(x, [mix.means[np.isfinite(mix.log_weights)]])[0]


def told_of_end(
    x: NDArray[Any], mix: Mix, of: str | None = None, partition: str | None = None
) -> Record:
    """Scores of a mixture; ``of`` and ``partition`` are paths of labels to compare its with."""
    found = scores(x, mix)
    told: Record = {"energy": found.energy, "log_likelihood": found.log_likelihood}
    if of is not None:
        from sklearn.metrics import adjusted_rand_score

        told["ari"] = float(adjusted_rand_score(np.load(of), found.labels))
    if partition is not None:
        from sklearn.metrics import normalized_mutual_info_score

        told["nmi"] = float(normalized_mutual_info_score(np.load(partition), found.labels))
    return told


def peak_mb() -> float:
    """The most memory that this process has taken so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


# --- others ---------------------------------------------------------------------------------------


def save_one_hot(x: NDArray[Any], means: NDArray[Any], path: str) -> None:
    """Leave means for others, and weights and variances of the rows nearest to each."""
    mix = Mix.hard(means, 1.0)
    labels, k = scores(x, mix).labels, len(means)
    counts = np.maximum(np.bincount(labels, minlength=k), 1)
    squares = np.zeros(means.shape)
    np.add.at(squares, labels, (x - means[labels]).astype(np.float64) ** 2)
    variances = squares / counts[:, None] + 1e-6 * float(x.var(axis=0).mean())
    np.savez(path, means=means, weights=counts / counts.sum(), variances=variances)


class _Noted:
    """A mixture of scikit-learn that notes parameters and seconds after each M-step."""

    def _m_step(self, *args: Any, **kwargs: Any) -> None:
        super()._m_step(*args, **kwargs)  # type: ignore[misc]
        self.noted.append((time.process_time() - self.begun, self._mix()))  # type: ignore[attr-defined]

    def _mix(self) -> Mix:
        variances = np.asarray(self.covariances_, np.float64)  # type: ignore[attr-defined]
        weights = self._weights_so_far()
        with np.errstate(divide="ignore"):
            logs = np.log(weights / weights.sum())
        wide = variances if variances.ndim == 2 else variances[:, None]
        return Mix(np.array(self.means_, np.float64), wide, logs)  # type: ignore[attr-defined]

    def _weights_so_far(self) -> Real:
        """Those of the Bayesian one stand in its sticks until the end."""
        if hasattr(self, "weights_"):
            return np.asarray(self.weights_, np.float64)
        one, other = self.weight_concentration_  # type: ignore[attr-defined]
        left = np.cumprod(other / (one + other))
        return np.asarray(one / (one + other) * np.concatenate([[1.0], left[:-1]]))


def run_scikit_learn(
    path: str,
    k: int,
    covariance: str,
    *,
    start: str | None = None,
    most: int = 100,
    seed: int = 0,
    tol: float = 1e-3,
    bayesian: bool = False,
    held_out: str | None = None,
    of: str | None = None,
    curve: bool = False,
    score: bool = True,
    rows: int | None = None,
) -> Record:
    """`GaussianMixture` or `BayesianGaussianMixture` of scikit-learn.

    From the parameters in ``start`` where given (a mixture only, not the Bayesian one), on the
    first ``rows`` rows; ``most`` is `max_iter`.
    """
    from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
    from threadpoolctl import threadpool_limits

    kind: Any = BayesianGaussianMixture if bayesian else GaussianMixture
    noted_kind: Any = type("Noted", (_Noted, kind), {})
    x = np.load(path)
    if rows is not None:
        x = x[:rows]
    options: dict[str, Any] = {
        "covariance_type": covariance,
        "tol": tol,
        "random_state": seed,
        "reg_covar": 1e-6 * float(x.var(axis=0).mean()),
    }
    given: dict[str, Any] = {}
    if start is not None:
        known = np.load(start)
        variances = known["variances"] if covariance == "diag" else known["variances"].mean(axis=1)
        given = {
            "means_init": known["means"],
            "weights_init": known["weights"],
            "precisions_init": 1 / variances,
        }
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        kind(n_components=2, max_iter=1, **options).fit(x[:2_000])
        before = peak_mb()
        model = noted_kind(n_components=k, max_iter=most, **options, **given)
        model.noted, model.begun = [], time.process_time()
        model.fit(x)
        seconds = time.process_time() - model.begun
    clock = [at for at, _ in model.noted]
    record: Record = {
        "seconds": seconds,
        "iterations": int(model.n_iter_),
        "converged": bool(model.converged_),
        "an_iteration": float(np.median(np.diff(clock))) if len(clock) > 1 else None,
        "peak_mb": peak_mb() - before,
        "F": float(model.lower_bound_),
        "least_variance": float(model.covariances_.min()),
    }
    test = x if held_out is None else np.load(held_out)
    if score:
        record |= told_of_end(test, model._mix(), of)
    if curve:
        kept = np.unique(np.geomspace(1, len(clock), min(len(clock), 8)).astype(int)) - 1
        record["curve"] = curve_of(test, [(clock[i], model.noted[i][1]) for i in kept.tolist()])
    return record


def curve_of(x: NDArray[Any], points: list[tuple[float, Mix]]) -> Record:
    """Seconds, log-likelihoods and energies after some steps."""
    found = [scores(x, mix) for _, mix in points]
    return {
        "seconds": [at for at, _ in points],
        "log_likelihood": [score.log_likelihood for score in found],
        "energy": [score.energy for score in found],
    }


def run_lloyd(path: str, k: int) -> Record:
    """`KMeans` of scikit-learn with its default stop, from the common random rows."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    x = np.load(path)
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        KMeans(10, n_init=1).fit(x[:1_000])
        begun = time.process_time()
        model = KMeans(k, init=starting_centers(x, k), n_init=1, tol=1e-4, algorithm="lloyd")
        model.fit(x)
        seconds = time.process_time() - begun
    energy = model.inertia_ / len(x)
    mix = Mix.hard(model.cluster_centers_, energy)
    return {"seconds": seconds, "iterations": int(model.n_iter_)} | told_of_end(x, mix)


def run_faiss(path: str, k: int, passes: int) -> Record:
    """`Kmeans` of faiss, from the common random rows."""
    import faiss

    faiss.omp_set_num_threads(1)
    x = np.load(path)

    def fit(n: int) -> tuple[Any, float]:
        km = faiss.Kmeans(x.shape[1], k, niter=n, max_points_per_centroid=len(x))
        begun = time.process_time()
        km.train(x, init_centroids=starting_centers(x, k))
        return km, time.process_time() - begun

    fit(1)
    km, seconds = fit(passes)
    mix = Mix.hard(np.array(km.centroids), float(km.obj[-1]) / len(x))
    return {"seconds": seconds, "iterations": passes} | told_of_end(x, mix)


def run_authors(path: str, k: int, coreset: int, candidates: int, near: int, seed: int) -> Record:
    """The authors' C++, if its program is there (`vcgmm_authors.cpp` says how it is made)."""
    x = np.load(path)
    n, d = x.shape
    with tempfile.TemporaryDirectory() as folder:
        rows, out = Path(folder) / "rows", Path(folder) / "means"
        x.tofile(rows)
        asked = [rows, n, d, k, coreset, candidates, near, seed + 1, out]
        done = subprocess.run(
            [os.environ[AUTHORS], *map(str, asked)], stdout=subprocess.PIPE, text=True, check=True
        )
        found = np.fromfile(out)
    lines = done.stdout.splitlines()
    mix = Mix(found[1:].reshape(k, d), found[:1].reshape(1, 1), np.full(k, -np.log(k)))
    return {
        "seconds": float(lines[-1].split()[-1]),
        "iterations": sum("iteration" in line for line in lines),
    } | told_of_end(x, mix)


def run_vamm(path: str, k: int, seed: int) -> Record:
    """The authors' later package, where it is installed: one variance, equal weights."""
    gaussian: Any = importlib.import_module("vamm").Gaussian
    x = np.load(path).astype(np.float64)
    r = np.random.default_rng(seed)
    model = gaussian(k, x.shape[1], covariance_type="isotropic", shared=True, flat_prior=True)
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        begun = time.process_time()
        _, log = model.fit(x, rng=r)
        seconds = time.process_time() - begun
    variance = float(np.asarray(model.variance).reshape(-1)[0])
    mix = Mix(np.asarray(model.means), np.full((1, 1), variance), np.full(k, -np.log(k)))
    told = told_of_end(np.load(path), mix)
    return {"seconds": seconds, "iterations": len(log)} | told


def run_means(
    path: str, k: int, method: str, seed: int, limit: float, held_out: str | None = None
) -> Record:
    """A method of `curves.py` for k-means, as the mixture that its centres are."""
    from benchmarks.curves import chosen, steps_of, warm_up

    x = np.load(path)
    test = x if held_out is None else np.load(held_out)
    warm_up(method, x, k)
    clock, met, spent, begun = [], [], 0.0, time.process_time()
    for centers, _ in steps_of(method, x, starting_centers(x, k), seed):
        spent += time.process_time() - begun
        clock.append(spent)
        met.append(np.array(centers, np.float32))
        if spent > limit:
            break
        begun = time.process_time()
    energy = fast_energy(x)
    points = []
    for i in chosen(len(met), SNAPSHOTS):
        mix = Mix.hard(met[i], 1.0)
        points.append((clock[i], Mix.hard(met[i], energy(mix))))
    return {"seconds": clock[-1], "curve": curve_of(test, points)}


def run_auto(path: str, k: int, seed: int) -> Record:
    """`KMeans` with the default algorithm, and its last pass apart."""
    import largek_dask as lk

    x = np.load(path)
    lk.KMeans(min(k, 500), random_state=0, n_threads=1).fit(x[:4_000])
    begun = time.process_time()
    model = lk.KMeans(k, random_state=seed, n_threads=1).fit(x)
    seconds = time.process_time() - begun
    return {
        "seconds": seconds,
        "iterations": len(model.history_),
        "energy": float(model.inertia_) / len(x),
    }


def run_by_rule(
    path: str,
    k: int,
    seed: int,
    *,
    init: str = "k-means++",
    coreset: int | None = None,
    eps: float = 1e-4,
    partition: str | None = None,
    save_labels: str | None = None,
) -> Record:
    """Lloyd's algorithm, all distances computed, stopped by the paper's rule on its own F.

    On a lightweight coreset with independent draws where its size is given, as published.
    """
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.algorithms.lloyd import Lloyd
    from largek_dask.algorithms.parts.coresets import draw_coreset
    from largek_dask.algorithms.vcgmm.start import bound_of_labels
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    x = np.load(path)
    n, d = x.shape
    algorithm = Lloyd(bounds=None, problem=KMeansProblem(k, init))

    def fit(rows: NDArray[Any], m: int | None, most: int) -> tuple[NDArray[Any], Record]:
        begun = time.process_time()
        with LocalPasses(open_rows(rows), n_threads=1) as whole:
            rng, passes = Rng(seed), whole
            if m is not None:
                drawn = draw_coreset(whole, rng, m, independent=True)
                passes = whole.subset(drawn.rows, drawn.factors, own_weights=True)
            state = algorithm.init(passes, rng)
            first = time.process_time() - begun
            weight, bound, count = passes.statistics.total_weight, -np.inf, 0
            while count < most:
                state, info = algorithm.step(passes, rng, state)
                count, before = count + 1, bound
                bound = bound_of_labels(info.cost, k, d, weight, np.zeros(1))
                if info.converged or abs(bound - before) < eps * abs(bound):
                    break
            told = {"seconds_of_init": first, "iterations": count, "rows": passes.n_rows}
            told["seconds"] = time.process_time() - begun
            return algorithm.model(state).centers, told

    fit(x[: max(4 * k, 2_000)], None if coreset is None else 2 * k, 3)
    centers, told = fit(x, coreset, 1_000)
    energy = fast_energy(x)(Mix.hard(centers, 1.0))
    mix = Mix.hard(centers, energy)
    if save_labels is not None:
        np.save(save_labels, scores(x, mix).labels)
    rows = told["rows"]
    seeding = rows * k if init == "k-means++" else rows + CHAIN * k * k // 2
    told["distances"] = (0 if coreset is None else n) + seeding + rows * k * told["iterations"]
    return told | told_of_end(x, mix, None, partition)


JOBS: dict[str, Callable[..., Record]] = {
    "ours": run_ours,
    "lloyd": run_lloyd,
    "faiss": run_faiss,
    "authors": run_authors,
    "vamm": run_vamm,
    "auto": run_auto,
    "scikit-learn": run_scikit_learn,
    "means": run_means,
    "by rule": run_by_rule,
}
"""What can be asked of a process of this module."""


def main() -> None:
    """Jobs one after the other, given as JSON; for processes that `vcgmm.py` starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", required=True, help=argparse.SUPPRESS)
    records = [JOBS[name](**arguments) for name, arguments in json.loads(parser.parse_args().child)]
    sys.stdout.flush()
    print(json.dumps({"records": records}))


if __name__ == "__main__":
    main()
