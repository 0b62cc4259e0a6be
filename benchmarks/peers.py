"""Time other k-means libraries by whole calls, without reading the rows.

Exact k-means follows the same trajectory from the same starting centres in every library, so the
energy after p passes is known, and only the seconds of p passes have to be measured. They are the
set-up plus p times the seconds per pass, because our times also include the first scan. Fits with
few and with more passes give both values:

* faiss: seconds(p) = set-up + p · pass.
* scikit-learn labels all rows once more at the end of a fit that has not converged:
  seconds(p) = set-up + p · pass + labelling. A ``predict`` measures the time of the labelling,
  which is subtracted.

SuperKMeans and pylance choose their own starting centres. They are called with an increasing number
of passes over all rows, without early stopping; each call is one point. With very many
clusters, faiss is called once, with as many passes as the time limit allows; it reports all
energies.

Every library uses as many threads as ours; ``common.clock`` reads the time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import child_record, clock, fastest_record, new_parser, parse, thread_count
from benchmarks.sets import starting_centers

EXACT = ("scikit-learn", "faiss")
SUPER = {"SuperKMeans, flat": (1, 3, 6, 12, 25), "SuperKMeans, hierarchical": (0, 2, 5, 10, 25)}
"""Numbers of passes of the calls, or of refinements for the hierarchical method."""
MODULES = {
    "scikit-learn": "sklearn",
    "scikit-learn-intelex": "sklearnex",
    "faiss": "faiss",
    "SuperKMeans": "superkmeans",
    "pylance": "lance",
}
DEAR = 1.0
"""If the short fit takes longer, in seconds, the long fit has only 3 passes."""

Line = dict[str, float]
"""Set-up and seconds per pass: ``setup`` and ``pass``, in seconds."""


def there(library: str) -> bool:
    return find_spec(MODULES[library.partition(",")[0]]) is not None


def line_through(short: tuple[int, float], long: tuple[int, float], labelling: float) -> Line:
    """Return set-up and seconds per pass from two fits, without the labelling at the end."""
    a_pass = (long[1] - short[1]) / (long[0] - short[0])
    return {"setup": max(0.0, short[1] - labelling - short[0] * a_pass), "pass": a_pass}


def seconds_of(line: Line, passes: int) -> float:
    """Return seconds until the centres after ``passes`` passes."""
    return line["setup"] + passes * line["pass"]


def exact_fit(library: str, centers: NDArray[np.float32]) -> Callable[[Any, int], Any]:
    """Return ``fit(rows, passes)`` of a library, from given centres."""
    k, d = centers.shape
    if library == "faiss":
        import faiss

        faiss.omp_set_num_threads(thread_count())

        def fit_faiss(rows: Any, passes: int) -> Any:
            km = faiss.Kmeans(d, k, niter=passes, max_points_per_centroid=len(rows))
            km.train(rows, init_centroids=centers)
            return km

        return fit_faiss
    KMeans = import_module(f"{MODULES[library]}.cluster").KMeans

    def fit(rows: Any, passes: int) -> Any:
        km = KMeans(k, init=centers, n_init=1, max_iter=passes, tol=0, algorithm="lloyd")
        km.fit(rows)
        assert km.n_iter_ == passes
        return km

    return fit


def timed(what: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    begun = clock()
    result = what(*args)
    return result, clock() - begun


def _exact(library: str, x: NDArray[np.float32], centers: NDArray[np.float32]) -> Line:
    """Return seconds of two fits and of labelling, in this process."""
    fit = exact_fit(library, centers)
    # The first call loads code.
    _, short = timed(fit, x, 1)
    model, again = timed(fit, x, 1)
    short = min(short, again)
    labelling = 0.0 if library == "faiss" else timed(model.predict, x)[1]
    passes = 3 if short > DEAR else 6
    return line_through((1, short), (passes, timed(fit, x, passes)[1]), labelling)


Train = Callable[[NDArray[np.float32], int, int], NDArray[np.float32]]


def _super(kind: str) -> Train:
    """Return ``train(rows, clusters, passes)`` of SuperKMeans, such as "SuperKMeans, flat"."""
    from superkmeans import SuperKMeans

    _, method, *quantizer = kind.split(", ")
    hierarchical = method == "hierarchical"

    def train(rows: NDArray[np.float32], clusters: int, passes: int) -> Any:
        model = SuperKMeans(
            clusters,
            rows.shape[1],
            hierarchical=hierarchical,
            quantizer=quantizer[0] if quantizer else "f32",
            sampling_fraction=1.0,
            max_points_per_cluster=len(rows),
            n_threads=thread_count(),
            early_termination=False,
            **{"iters_refinement" if hierarchical else "iters": passes},
        )
        return np.array(model.train(rows), np.float32)

    return train


def _lance(rows: NDArray[np.float32], clusters: int, passes: int) -> NDArray[np.float32]:
    from lance.util import KMeans

    model = KMeans(clusters, max_iters=passes)
    model.fit(rows)
    return np.array(model.centroids.to_numpy_ndarray(), np.float32)


def _calls(
    library: str, x: NDArray[np.float32], k: int, longest: float, calls: Sequence[int]
) -> Iterator[dict[str, float]]:
    """Return seconds and energies of calls with an increasing number of passes."""
    from benchmarks.curves import Energies

    train = _lance if library == "pylance" else _super(library)
    train(x[:2000], 20, 1)
    before = None
    for passes in calls:
        if before and before["seconds"] * passes / max(1, before["passes"]) > longest:
            return
        centers, seconds = timed(train, x, k, passes)
        energy = Energies(x, [centers])[0]
        before = {"passes": passes, "seconds": seconds, "energy": energy}
        yield before


def _faiss_call(x: NDArray[np.float32], k: int, longest: float) -> list[dict[str, float]]:
    """Return seconds and energies after 1, 2, 4, … passes of one call."""
    import faiss

    from benchmarks.curves import Energies

    faiss.omp_set_num_threads(thread_count())

    def fit(rows: NDArray[np.float32], passes: int) -> tuple[Any, float]:
        km = faiss.Kmeans(x.shape[1], k, niter=passes, max_points_per_centroid=len(x), seed=1)
        return km, timed(km.train, rows)[1]

    fit(x[:k], 1)
    part = max(k, len(x) // 50)
    a_pass = fit(x[:part], 1)[1] * len(x) / part
    passes = max(1, int(longest / a_pass))
    km, seconds = fit(x, passes)
    # The first pass reports the energy of the starting centres.
    known = dict(enumerate((float(value) / len(x) for value in km.obj[1:]), 1))
    known[passes] = Energies(x, [np.array(km.centroids, np.float32)])[0]
    wanted = sorted({*(2**i for i in range(passes.bit_length())), passes})
    return [{"passes": p, "seconds": seconds * p / passes, "energy": known[p]} for p in wanted]


def measure_exact(library: str, path: str, k: int) -> Line:
    """Return set-up and seconds per pass of exact k-means, from common starting centres."""
    task = {"library": library, "path": path, "k": k}
    line: Line = fastest_record(library, "benchmarks.peers", [task], itemgetter("pass"))
    return line


def measure_faiss(path: str, k: int, longest: float) -> list[dict[str, float]]:
    """Return ``passes``, ``seconds`` and ``energy`` of one call of about ``longest`` seconds."""
    task = {"library": "faiss", "path": path, "k": k, "longest": longest}
    points: list[dict[str, float]] = fastest_record(
        "faiss", "benchmarks.peers", [task], lambda points: points[0]["seconds"]
    )
    return points


def measure_calls(
    library: str, path: str, k: int, longest: float, calls: Sequence[int] = ()
) -> list[dict[str, float]]:
    """Return ``passes``, ``seconds`` and ``energy`` of calls of at most ``longest`` seconds."""
    calls = list(calls or SUPER[library])
    task = {"library": library, "path": path, "k": k, "longest": longest, "calls": calls}
    result: list[dict[str, float]] = child_record("benchmarks.peers", [task])
    return result


def child(task: dict[str, Any]) -> Any:
    from threadpoolctl import threadpool_limits

    x = np.load(task["path"])
    warnings.simplefilter("ignore")
    if "calls" in task:
        return list(_calls(task["library"], x, task["k"], task["longest"], task["calls"]))
    with threadpool_limits(thread_count()):
        if "longest" in task:
            return _faiss_call(x, task["k"], task["longest"])
        return _exact(task["library"], x, starting_centers(x, task["k"]))


if __name__ == "__main__":
    parse(new_parser(__doc__), child)
