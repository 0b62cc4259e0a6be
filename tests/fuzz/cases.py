"""What a case is, how one is drawn, and the rows it stands for.

A case says all it needs by itself: how others are drawn may change, a pasted one stays the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.algorithms.choices import COVARIANCES, MIXTURE_INITS

ALGORITHMS: dict[str, Any] = {
    "auto": "auto",
    "truncated": lk.Truncated(),
    "lloyd": lk.Lloyd(),
    "minibatch": lk.MiniBatch(batch_rows=200),
    "nmbatch": lk.NMBatch(),
    "nmbatch in place": lk.NMBatch(b0=100, gather=0),
    "nmbatch paper": lk.NMBatch.paper(b0=100),
    "incremental": lk.IncrementalLloyd(),
    "incremental rounds": lk.IncrementalLloyd(rounds=4, smoothing=1.0),
    "vrkm": lk.VRKM(),
    "vrkm paper": lk.VRKM.paper(),
    "vc-gmm": lk.VCGMM(),
    "vc-gmm lists": lk.VCGMM(candidates=3, neighbours=8, explore=1, covariance="isoflex"),
    "vc-gmm paper": lk.VCGMM.paper(candidates=4),
    "partition-path": lk.PartitionPath(),
    "partition-path fast": lk.PartitionPath(effort="fast"),
}
MIXTURES: dict[str, dict[str, Any]] = {
    **{f"mixture {kind}": {"covariance": kind} for kind in COVARIANCES},
    "mixture lists": {"covariance": "iso", "candidates": 3, "neighbours": 8, "explore": 1},
    "mixture single": {"covariance": "isoflex", "candidates": 1, "neighbours": 12},
    "mixture coreset": {"covariance": "diag", "candidates": 4, "coreset": 600},
}
"""What is given to ``Mixture``."""
DENSE_ONLY = {"truncated", *MIXTURES, *(name for name in ALGORITHMS if name.startswith("vc-gmm"))}
THRESHOLDS = [1, 2, 5, 6, 8, 9, 32, 33, 44, 100, 101, 128, 129, 200, 240, 241, 250, 300]
"""Numbers of clusters at which something else is done, and some above them."""
FEATURES = [1, 2, 3, 4, 7, 8, 9, 10, 12, 16, 17, 31, 33, 64, 65, 96, 257]
LARGE = [(6_000, 784, 40), (5_000, 1_000, 300), (1_500, 784, 1_000), (2_500, 300, 600)]
LARGE += [(4_000, 6, 1_600), (6_000, 3, 4_200), (3_000, 96, 700), (20_000, 257, 12)]
"""Rows, features and clusters of searches in few directions, in boxes of centres and of k > 300."""
LARGE_SHARE = 0.02
"""Fraction of the cases that are of these sizes: each takes seconds."""
INITS = ["random", "k-means++", "greedy-k-means++", "k-means||", "two-level", "afk-mc2", "rows"]
PATHS = {name for name in ALGORITHMS if name.startswith("partition-path")}
"""They find every partition up to k, and take no starting centres."""
DENSE_ONLY |= PATHS
VCGMM = {name for name in ALGORITHMS if name.startswith("vc-gmm")}
BY_COSINE = {"auto", "lloyd", "nmbatch", "minibatch", "incremental"}
"""Algorithms that ``SphericalKMeans`` is fitted with."""
PATH_CLUSTERS = 12
"""Their clusters, at most: each number of them is as much work as a fit of others."""
LAYOUTS = ["F", "reversed", "strided", "columns", "read-only"]
WORK = 6e7
"""Products of rows, features and clusters of a case, at most: cases are to be many."""

AS_USUAL: dict[str, Any] = {"algorithm": "auto", "init": "auto", "tol": 1e-4, "max_iter": 300}
"""What most people call: everything is left at its default."""
USUAL = 0.3
"""Share of the cases that are fitted so, beside the few that are by chance."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One fit, and what is compared with it."""

    seed: int
    """The seed of the rows, the weights and the fit."""
    kind: str
    """The kind of rows; see KINDS."""
    n: int
    d: int
    dtype: str
    layout: str
    """The layout of the array: C, F, reversed, strided, columns, read-only or csr."""
    weights: str
    """Kind of weights; see WEIGHTS."""
    k: int
    algorithm: str
    """A name of ALGORITHMS or MIXTURES."""
    init: str
    """A name, or "rows": the centres are rows of the data."""
    tol: float
    max_iter: int
    source: str
    """array, store, dask or workers."""
    also: str = ""
    """What else is compared: one of ALSO, repeats, or nothing."""
    estimator: str = "KMeans"
    """KMeans, SphericalKMeans or MiniBatchKMeans; not used for mixtures."""
    effort: str = "balanced"
    normalize: bool = False
    """Rows are scaled to unit length."""
    bad: float = 0.0
    """Fraction of rows that hold NaN or infinity, and are skipped."""
    reg_covar: float = 1e-6
    """Used for mixtures only, as is ``dither``."""
    dither: bool = False

    def rows(self) -> NDArray[Any]:
        """The rows as a dense C-contiguous array, of CSR ones too."""
        rng = np.random.default_rng([self.seed, 1])
        x = KINDS[self.kind](rng, self.n, self.d)
        if self.layout == "csr":
            x = x * (rng.random(x.shape) < rng.choice([0.05, 0.3]))
        x = typed(x, self.dtype)
        if self.bad:
            rows = self.k + np.flatnonzero(rng.random(max(0, self.n - self.k)) < self.bad)
            features = rng.integers(self.d, size=len(rows))
            x[rows, features] = rng.choice([np.nan, np.inf, -np.inf], len(rows))
        return x

    def data(self, x: NDArray[Any]) -> Any:
        """The rows in their layout."""
        n, d = x.shape
        if self.source == "dask":
            return da.from_array(x, chunks=(self.n // 4 + 1, self.d))
        if self.layout == "csr":
            return sp.csr_matrix(x)
        if self.layout == "F":
            return np.asfortranarray(x)
        if self.layout == "reversed":
            return np.ascontiguousarray(x[::-1])[::-1]
        if self.layout == "strided":
            return np.repeat(x, 2, axis=0)[::2]
        if self.layout == "columns":
            wide = np.zeros((n, 2 * d + 1), x.dtype)
            wide[:, 1::2] = x
            return wide[:, 1::2]
        x.flags.writeable = self.layout != "read-only"
        return x

    def weight(self) -> NDArray[np.float64] | None:
        """The weights; at least ``k`` rows count."""
        if self.weights == "none":
            return None
        weight = WEIGHTS[self.weights](np.random.default_rng([self.seed, 2]), self.n)
        weight[: self.k] = np.where(weight[: self.k] > 0, weight[: self.k], 1.0)
        return weight

    def start(self, x: NDArray[Any]) -> Any:
        """What is given as ``init``."""
        if self.init != "rows":
            return self.init
        there = np.flatnonzero(np.isfinite(x.astype(np.float64)).all(axis=1))
        chosen = np.random.default_rng([self.seed, 3]).choice(there, self.k, replace=False)
        return x[np.sort(chosen)].astype(np.float64)


# --- kinds of rows and weights --------------------------------------------------------------------


def _tight(r: np.random.Generator, n: int, d: int) -> NDArray[Any]:
    """Groups far apart, each much smaller than its distance to the next."""
    centers = r.normal(size=(int(r.integers(2, 40)), d)) * 10
    return centers[r.integers(len(centers), size=n)] + r.normal(size=(n, d)) * r.choice(
        [3e-3, 0.01]
    )


def _groups(r: np.random.Generator, n: int, d: int) -> NDArray[Any]:
    centers = r.normal(size=(int(r.integers(1, 50)), d)) * 4
    return centers[r.integers(len(centers), size=n)] + r.normal(size=(n, d))


def _repeated(r: np.random.Generator, n: int, d: int) -> NDArray[Any]:
    distinct = r.normal(size=(max(1, n // int(r.integers(2, 30))), d))
    return distinct[r.integers(len(distinct), size=n)]


def _near(r: np.random.Generator, n: int, d: int) -> NDArray[Any]:
    """Embeddings of unit length, many of which are all but another's."""
    x = r.normal(size=(max(1, n // 20), d))[r.integers(max(1, n // 20), size=n)]
    x = x + r.normal(size=(n, d)) * 1e-3
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _columns(r: np.random.Generator, n: int, d: int) -> NDArray[Any]:
    """A column of large numbers beside small ones."""
    x = r.normal(size=(n, d))
    x[:, 0] *= 1e6
    return x


def _outlier(r: np.random.Generator, n: int, d: int) -> NDArray[Any]:
    x = _groups(r, n, d) / 10
    x[r.integers(n)] = r.choice([1e4, 1e6, 1e8])
    return x


KINDS: dict[str, Callable[[np.random.Generator, int, int], NDArray[Any]]] = {
    "normal": lambda r, n, d: r.normal(size=(n, d)),
    "groups": _groups,
    "tight groups": _tight,
    "repeated": _repeated,
    "equal": lambda r, n, d: np.tile(r.normal(size=(1, d)), (n, 1)),
    "grid": lambda r, n, d: r.integers(-3, 4, size=(n, d)).astype(float),
    "binary": lambda r, n, d: (r.random((n, d)) < 0.3).astype(float),
    "heavy tails": lambda r, n, d: r.standard_t(1.5, size=(n, d)),
    "outlier": _outlier,
    "tiny": lambda r, n, d: r.normal(size=(n, d)) * r.choice([1e-10, 1e-24, 1e-170]),
    "huge": lambda r, n, d: r.normal(size=(n, d)) * 1e12,
    "near": _near,
    "columns": _columns,
    "far away": lambda r, n, d: _groups(r, n, d) + 1e4,
    "low rank": lambda r, n, d: r.normal(size=(n, min(d, 2))) @ r.normal(size=(min(d, 2), d)),
}
DTYPES = {"float32": 16, "float64": 8, "float16": 4, "uint8": 3, "int16": 2, "bool": 1}
DTYPES |= {"int8": 1, "uint16": 1, "int32": 1, "int64": 1}
ALSO = {"": 8, "threads": 4, "resume": 4, "repeats": 2, "batches": 2, "other type": 2, "scores": 2}
ALSO |= {"suggest k": 1}
"""What else is compared, by share."""
OF_ALL = ("", "threads", "batches", "other type")
"""What is compared of every estimator."""
OF_MIXTURES: dict[str, Callable[[np.random.Generator, int, int], NDArray[Any]]] = {
    "units": lambda r, n, d: _groups(r, n, d) * 10.0 ** r.integers(-8, 9, size=d),
    "offset": lambda r, n, d: _groups(r, n, d) + 10.0 ** r.integers(4, 8),
    "constants": lambda r, n, d: np.where(
        r.random(d) < 0.5, 1 + 1e-9 * _groups(r, n, d), r.random()
    ),
    "tiny variances": lambda r, n, d: (
        _repeated(r, n, d) + r.normal(size=(n, d)) * 10.0 ** -r.integers(4, 12)
    ),
}
"""Kinds that only mixtures are asked for."""
KINDS |= OF_MIXTURES
SHARES = {"tight groups": 4.0, "near": 2.0, "binary": 2.0, "normal": 0.5, "equal": 0.5}
SHARES |= dict.fromkeys(OF_MIXTURES, 0.0)
"""Kinds that are drawn more often than others, or less; the rest 1."""

WEIGHTS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "ones": lambda r, n: np.ones(n),
    "whole": lambda r, n: r.integers(0, 4, n).astype(float),
    "zeros": lambda r, n: (r.random(n) < 0.7).astype(float),
    "fractions": lambda r, n: r.random(n),
    "wide": lambda r, n: 10.0 ** r.uniform(-6, 6, n),
    "wider": lambda r, n: 10.0 ** r.uniform(-12, 12, n),
    "small": lambda r, n: 1e-12 * (1 - r.random(n)),
}


def typed(x: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Rows in a type: small numbers are stretched over the range of whole ones."""
    if dtype == "bool":
        return np.asarray(x > x.mean())
    if np.dtype(dtype).kind == "f":
        limit = float(np.finfo(dtype).max) / 8
        return x.clip(-limit, limit).astype(dtype)
    if (x != np.rint(x)).any():
        x = np.rint(x * 20)
    info = np.iinfo(dtype)
    middle = 0 if info.min < 0 else 100
    # Integers of more than 53 bits are no doubles, in which they are computed with.
    limit = min(info.max, 2**53)
    return (x + middle).clip(max(info.min, -limit), limit).astype(dtype)


# --- drawing --------------------------------------------------------------------------------------


def draw(seed: int) -> Case:
    """The case of a seed."""
    r = np.random.default_rng([seed, 0])
    share = np.array([SHARES.get(kind, 1.0) for kind in KINDS])
    dtype = pick(r, DTYPES)
    n, d, k = _sizes(r)
    shares = dict.fromkeys((*ALGORITHMS, *MIXTURES), 1)
    case = Case(
        seed=seed,
        kind=str(r.choice(list(KINDS), p=share / share.sum())),
        n=n,
        d=d,
        dtype=dtype,
        layout="C" if r.random() < 0.5 else str(r.choice(LAYOUTS)),
        weights="none" if r.random() < 0.5 else str(r.choice(list(WEIGHTS))),
        k=k,
        algorithm=pick(r, shares | {"auto": 4, "truncated": 4, "lloyd": 2, "vc-gmm": 2}),
        init="auto" if r.random() < 0.5 else str(r.choice(INITS)),
        tol=float(r.choice([0.0, 1e-4])),
        max_iter=int(r.choice([1, 5, 20, 100])),
        source=pick(r, {"array": 30, "store": 5, "dask": 4, "workers": 1}),
        also=pick(r, ALSO),
        estimator=pick(r, {"KMeans": 12, "SphericalKMeans": 1, "MiniBatchKMeans": 1}),
        effort=pick(r, {"balanced": 8, "fast": 1, "best": 1}),
        normalize=r.random() < 0.1,
        bad=0.1 if r.random() < 0.1 else 0.0,
    )
    if dtype in ("float32", "float64") and r.random() < 0.15:
        case = dataclasses.replace(case, layout="csr")
    if r.random() < USUAL:
        usual = AS_USUAL | ({"algorithm": case.algorithm} if case.algorithm in MIXTURES else {})
        case = dataclasses.replace(case, **usual)
    case = _possible(case, r)
    return _harder(case) if case.algorithm in MIXTURES else case


def _sizes(r: np.random.Generator) -> tuple[int, int, int]:
    """Rows, features and clusters."""
    if r.random() < LARGE_SHARE:
        n, d, k = LARGE[r.integers(len(LARGE))]
        return n, d, k
    d = int(r.choice(FEATURES))
    shape = pick(r, {"few rows": 3, "usual": 7, "many clusters": 4})
    if shape == "many clusters":
        n, k = int(r.integers(1_000, 6_000)), int(r.choice([k for k in THRESHOLDS if k > 100]))
    else:
        n = int(np.exp(r.uniform(0.0, 3.7) if shape == "few rows" else r.uniform(4.0, 7.6)))
        k = int(r.choice(THRESHOLDS)) if r.random() < 0.7 else int(np.exp(r.uniform(0, 6)))
    return n, d, max(1, min(k, n, int(WORK / (n * d))))


def _possible(case: Case, r: np.random.Generator) -> Case:
    """The case, where parts of it exclude each other with one of them changed."""
    if case.n * case.d * case.k > WORK and case.algorithm in (*MIXTURES, *PATHS, *VCGMM):
        case = dataclasses.replace(case, algorithm="auto")
    made: dict[str, Any] = {}
    if case.layout == "csr" and case.source == "dask":
        made["source"] = "array"
    if case.source == "workers" and case.init.endswith("k-means++"):
        made["init"] = "auto"  # a pass for every centre
    if not case.dtype.startswith("float") or case.source == "store":
        made["bad"] = 0.0
    if case.algorithm in MIXTURES:
        if case.init not in ("auto", "rows"):
            made["init"] = str(r.choice(MIXTURE_INITS))
        made |= {"estimator": "KMeans", "normalize": False, "bad": 0.0}
        made["also"] = case.also if case.also in ("", "threads", "resume") else ""
    elif case.algorithm in PATHS:
        made |= {"init": "auto", "k": min(case.k, PATH_CLUSTERS), "estimator": "KMeans"}
        made |= {"max_iter": 300, "also": "" if case.also == "repeats" else case.also}
    case = dataclasses.replace(case, **made)
    if case.estimator != "KMeans":
        case = dataclasses.replace(case, also=case.also if case.also in OF_ALL else "")
        if case.estimator == "MiniBatchKMeans":
            case = dataclasses.replace(case, algorithm="minibatch")
        elif case.algorithm not in BY_COSINE:
            case = dataclasses.replace(case, algorithm="auto")
    if case.also == "repeats":
        named = case.algorithm if case.algorithm.startswith("lloyd") else "lloyd"
        case = dataclasses.replace(
            case, weights="whole", init="rows", algorithm=named, bad=0.0, normalize=False
        )
    if case.layout == "csr" and case.algorithm in DENSE_ONLY:
        named = "lloyd" if case.algorithm.startswith("lloyd") else "auto"
        init = case.init if case.init in INITS else "auto"
        return _possible(dataclasses.replace(case, algorithm=named, init=init), r)
    if case.algorithm != "auto":
        return dataclasses.replace(case, effort="balanced")
    # The best of few clusters are found on a path: stopped early it ends at fewer.
    return dataclasses.replace(case, max_iter=300) if case.effort == "best" else case


def _harder(case: Case) -> Case:
    """The case of a mixture with what variances and retired components are known to depend on."""
    r = np.random.default_rng([case.seed, 4])
    given: dict[str, Any] = {}
    if r.random() < 0.4:
        given["kind"] = str(r.choice([*OF_MIXTURES, "far away", "grid", "repeated"]))
    if r.random() < 0.4:
        given["n"] = max(1, int(case.k * r.uniform(1.0, 1.1)))
    if r.random() < 0.25:
        given["dtype"] = str(r.choice(["uint8", "int16", "int32", "int64"]))
    if r.random() < 0.25:
        given["weights"] = str(r.choice(["whole", "fractions", "zeros"]))
    if r.random() < 0.6:
        given["reg_covar"] = float(r.choice([0.0, 1e-60, 1e-30, 1e-16, 1e-12, 1e-9, 1e-4, 1e-3]))
        given["init"] = str(r.choice([*MIXTURE_INITS, "auto", "rows"]))
    case = dataclasses.replace(case, **given)
    whole = np.dtype(case.dtype).kind in "iu"
    return dataclasses.replace(case, dither=whole and r.random() < 0.5)


def pick(r: np.random.Generator, shares: dict[str, int]) -> str:
    """One of these names, by their shares."""
    share = np.array(list(shares.values()), float)
    return str(r.choice(list(shares), p=share / share.sum()))
