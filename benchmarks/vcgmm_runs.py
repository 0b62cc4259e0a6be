"""Run single fits of mixtures by this package and others, on one thread, for `vcgmm.py`.

CPU seconds are those of the fit, from the first access to rows in memory to the last parameters, or
of the call that fits. A fit on a few rows runs first, so that times do not include compiling or
loading code. Energies and exact log-likelihoods are computed over all rows and all components, in
the same way for all methods (:func:`scores`), and are not included in times.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import new_parser, parse, patched
from benchmarks.curves import Energies, Task, chosen, follow
from benchmarks.curves import warm_up as warm_up_kmeans
from benchmarks.peers import exact_fit, timed
from benchmarks.sets import starting_centers

AUTHORS = "LARGEK_VCGMM"
"""Environment variable that names the program built from `vcgmm_authors.cpp`."""
SNAPSHOTS = 12
"""Number of steps for which energies are computed."""
FEW = 4
"""Number of iterations of a first fit."""
MANY = 2_500
"""Maximum number of components of a first fit; more components use no other code."""
BY_DISTANCE = "by distance"
"""Change that stands for :func:`nearest_means`."""
Real = NDArray[np.float64]
Record = dict[str, Any]


class Mix(NamedTuple):
    """Mixture in numpy: variances have shape (1, 1), (k, 1) or (k, d)."""

    means: NDArray[Any]
    variances: Real
    log_weights: Real

    @classmethod
    def hard(cls, centers: NDArray[Any], energy: float) -> Mix:
        """Return k-means as a mixture with equal weights and one variance, given by its energy."""
        k, d = centers.shape
        return cls(centers, np.full((1, 1), energy / d), np.full(k, -np.log(k)))


class Score(NamedTuple):
    """Means over rows."""

    energy: float
    """Squared distance to the nearest mean."""
    log_likelihood: float
    """Logarithm of the density over all components."""
    labels: NDArray[np.int32]
    """Index of the component with the largest log joint density."""


def scores(x: NDArray[Any], mix: Mix) -> Score:
    """Score rows over all components by the kernels of our last pass (a test compares scipy)."""
    from largek_dask.kernels.log_likelihood import log_likelihoods
    from largek_dask.kernels.mixtures import pack_mixture

    shift = x.mean(axis=0, dtype=np.float64).astype(x.dtype)
    means = np.ascontiguousarray(mix.means, x.dtype)
    packed = pack_mixture(means, np.array(mix.variances), np.array(mix.log_weights), shift)
    labels, log_likelihood = log_likelihoods(x, packed)
    return Score(fast_energy(x)(mix), float(log_likelihood.mean()), labels)


def planted(
    n: int, k: int, d: int, kind: str, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return rows of k components with different variances, and the component of each row."""
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
    """Parameters of a fit of ours."""

    k: int
    seed: int = 0
    covariance: Literal["iso", "isoflex", "diag"] = "iso"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``VCGMM``."""
    init: Any = "auto"
    tol: float = 1e-4
    most: int = 1_000
    """Maximum number of EM iterations."""
    limit: float = 120.0
    """Time limit in CPU seconds."""


def steps_of(x: NDArray[Any], run: Run) -> Iterator[tuple[Mix, dict[str, float]]]:
    """Yield the mixture and statistics after every step."""
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.mixture import MixtureProblem
    from largek_dask.algorithms.vcgmm import VCGMM
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    problem = MixtureProblem(run.k, run.init, tol=run.tol, mixture=run.covariance)
    algorithm = VCGMM(**run.parameters, covariance=run.covariance).bind(problem)
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
    """Run the same fit on a few rows."""
    k = min(run.k, MANY)
    parameters = dict(run.parameters)
    if parameters.get("coreset"):
        parameters["coreset"] = 2 * k
    init = run.init if isinstance(run.init, str) else run.init[:k]
    small = replace(run, k=k, seed=0, parameters=parameters, init=init)
    with patched({"vcgmm.algorithm.START": {"rounds": 1}}):
        for _ in steps_of(x[: max(4 * k, 2_000)], replace(small, most=FEW)):
            pass


@dataclass
class Traced:
    """Steps of a fit of ours."""

    clock: list[float] = field(default_factory=list)
    mixes: list[Mix] = field(default_factory=list)
    steps: list[dict[str, float]] = field(default_factory=list)

    @property
    def of_start(self) -> int:
        """Number of steps before the first EM iteration."""
        return sum(about["iteration"] == 0 for about in self.steps)


def trace(x: NDArray[Any], run: Run) -> Traced:
    """Run a fit, and keep the mixture after every step."""
    found, spent, begun = Traced(), 0.0, time.process_time()
    for mix, about in steps_of(x, run):
        spent += time.process_time() - begun
        found.clock.append(spent)
        found.mixes.append(mix)
        found.steps.append(about)
        if spent > run.limit:
            break
        begun = time.process_time()
    return found


def record_of(found: Traced) -> Record:
    last, start = found.steps[-1], found.of_start
    at_start = found.clock[start - 1] if start else 0.0
    iterations = int(last["iteration"])
    return {
        "seconds": found.clock[-1],
        "seconds_of_init": last["init"],
        "seconds_of_start": at_start,
        "iterations": iterations,
        "an_iteration": (found.clock[-1] - at_start) / max(1, iterations),
        "distances_of_em": sum(about["distances"] for about in found.steps[start:]),
        "F": last["F"],
    }


def curve_of_ours(test: NDArray[Any], found: Traced) -> Record:
    """Score held-out rows after some steps, without the first steps, which use few rows."""
    whole = [i for i, step in enumerate(found.steps) if step["rows"] == found.steps[-1]["rows"]]
    n = len(whole)
    kept = [whole[i] for i in np.unique(np.linspace(0, n - 1, min(n, SNAPSHOTS)).astype(int))]
    return curve_of(test, [(found.clock[i], found.mixes[i]) for i in kept])


def nearest_means(packed: Any, width: int, n_threads: int = 1) -> NDArray[np.int32]:
    """Return neighbours of components by the distance of their means only."""
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
    changes: Mapping[str, Any] | None = None,
    last_pass: bool = False,
    energy: bool = False,
) -> Record:
    """Run a fit of ours on stored rows.

    Parameters
    ----------
    path : str
    asked : dict
        Fields of :class:`Run`.
    curve, score : bool
        Whether to score held-out rows after some steps, and at the end.
    held_out, of : str, optional
        Paths of held-out rows, and of the components that they were drawn from.
    changes : mapping, optional
        Changes for :func:`patched`.
    last_pass : bool
        Also time exact labels and log-likelihoods of all rows.
    energy : bool
        Compute only the final energy, without scores.
    """
    x, run = np.load(path), Run(**asked)
    changes = {
        name: nearest_means if value == BY_DISTANCE else value
        for name, value in (changes or {}).items()
    }
    with patched(changes):
        warm_up(x, run)
        found = trace(x, run)
    record = record_of(found)
    test = None if held_out is None else np.load(held_out)
    if curve:
        assert test is not None
        record["curve"] = curve_of_ours(test, found)
    last = found.mixes[-1]
    if last_pass:
        record["seconds_of_last_pass"] = seconds_of_last_pass(x, last)
    if score:
        record |= scores_of(x if test is None else test, last, of)
    elif energy:
        record["energy"] = fast_energy(x)(last)
    return record


def seconds_of_last_pass(x: NDArray[Any], mix: Mix) -> float:
    """Return CPU seconds of labels and exact log-likelihoods of all rows."""
    from largek_dask.kernels.log_likelihood import log_likelihoods
    from largek_dask.kernels.mixtures import pack_mixture

    packed = pack_mixture(mix.means, mix.variances, mix.log_weights, mix.means[0])
    log_likelihoods(x[:1_000], packed)
    begun = time.process_time()
    log_likelihoods(x, packed)
    return time.process_time() - begun


def fast_energy(x: NDArray[Any]) -> Callable[[Mix], float]:
    """Return a function for energies by our kernels; removed components are ignored."""
    return lambda mix: Energies(x, [mix.means[np.isfinite(mix.log_weights)]])[0]


def scores_of(x: NDArray[Any], mix: Mix, of: str | None = None) -> Record:
    """Score a mixture; ``of`` is the path of labels to compare its labels with."""
    found = scores(x, mix)
    record: Record = {"energy": found.energy, "log_likelihood": found.log_likelihood}
    if of is not None:
        from sklearn.metrics import adjusted_rand_score

        record["ari"] = float(adjusted_rand_score(np.load(of), found.labels))
    return record


# --- others ---------------------------------------------------------------------------------------


class _Noted:
    """scikit-learn mixture that records parameters and seconds after each M-step."""

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
        """Return the current weights; the Bayesian mixture stores sticks until the end."""
        if hasattr(self, "weights_"):
            return np.asarray(self.weights_, np.float64)
        one, other = self.weight_concentration_  # type: ignore[attr-defined]
        left = np.cumprod(other / (one + other))
        return np.asarray(one / (one + other) * np.concatenate([[1.0], left[:-1]]))


def run_scikit_learn(
    path: str, k: int, covariance: str, *, most: int, bayesian: bool, held_out: str, rows: int
) -> Record:
    """Fit `GaussianMixture` or `BayesianGaussianMixture` to the first ``rows`` rows."""
    from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
    from threadpoolctl import threadpool_limits

    kind: Any = BayesianGaussianMixture if bayesian else GaussianMixture
    noted_kind: Any = type("Noted", (_Noted, kind), {})
    x = np.load(path)[:rows]
    options: dict[str, Any] = {
        "covariance_type": covariance,
        "tol": 1e-3,
        "random_state": 0,
        "reg_covar": 1e-6 * float(x.var(axis=0).mean()),
    }
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        kind(n_components=2, max_iter=1, **options).fit(x[:2_000])
        model = noted_kind(n_components=k, max_iter=most, **options)
        model.noted, model.begun = [], time.process_time()
        model.fit(x)
        seconds = time.process_time() - model.begun
    n, test = len(model.noted), np.load(held_out)
    kept = np.unique(np.geomspace(1, n, min(n, 8)).astype(int)) - 1
    curve = curve_of(test, [model.noted[i] for i in kept.tolist()])
    return {"seconds": seconds, "iterations": int(model.n_iter_), "curve": curve} | scores_of(
        test, model._mix()
    )


def curve_of(x: NDArray[Any], points: list[tuple[float, Mix]]) -> Record:
    found = [scores(x, mix) for _, mix in points]
    return {
        "seconds": [at for at, _ in points],
        "log_likelihood": [score.log_likelihood for score in found],
        "energy": [score.energy for score in found],
    }


def run_lloyd(path: str, k: int) -> Record:
    """Run scikit-learn's `KMeans` with its default stop rule, from the common random rows."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    x = np.load(path)
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        KMeans(10, n_init=1).fit(x[:1_000])
        model = KMeans(k, init=starting_centers(x, k), n_init=1, tol=1e-4, algorithm="lloyd")
        _, seconds = timed(model.fit, x)
    energy = model.inertia_ / len(x)
    mix = Mix.hard(model.cluster_centers_, energy)
    return {"seconds": seconds, "iterations": int(model.n_iter_)} | scores_of(x, mix)


def run_faiss(path: str, k: int, passes: int) -> Record:
    """Run `Kmeans` of faiss from the common random rows."""
    x = np.load(path)
    fit = exact_fit("faiss", starting_centers(x, k))
    fit(x, 1)
    km, seconds = timed(fit, x, passes)
    mix = Mix.hard(np.array(km.centroids), float(km.obj[-1]) / len(x))
    return {"seconds": seconds, "iterations": passes} | scores_of(x, mix)


def run_authors(path: str, k: int, coreset: int, candidates: int, near: int, seed: int) -> Record:
    """Run the authors' C++ program, if it exists (see `vcgmm_authors.cpp`)."""
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
    } | scores_of(x, mix)


def run_means(
    path: str, k: int, method: str, seed: int, limit: float, held_out: str | None = None
) -> Record:
    """Run a k-means method of `curves.py`, and treat its centres as a mixture."""
    x = np.load(path)
    test = x if held_out is None else np.load(held_out)
    warm_up_kmeans(method, x, k)
    found = follow(Task(method, path, k, seed, limit), x, starting_centers(x, k))
    energy = fast_energy(x)
    points = []
    for i in chosen(len(found.met), SNAPSHOTS):
        mix = Mix.hard(found.met[i], 1.0)
        points.append((found.clock[i], Mix.hard(found.met[i], energy(mix))))
    return {"seconds": found.clock[-1], "curve": curve_of(test, points)}


JOBS: dict[str, Callable[..., Record]] = {
    "ours": run_ours,
    "lloyd": run_lloyd,
    "faiss": run_faiss,
    "authors": run_authors,
    "scikit-learn": run_scikit_learn,
    "means": run_means,
}


def child(*asked: tuple[str, Record]) -> list[Record]:
    return [JOBS[name](**arguments) for name, arguments in asked]


if __name__ == "__main__":
    parse(new_parser(__doc__), child)
