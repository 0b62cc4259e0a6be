"""What a mixture promises, checked by brute force: all rows, all components, double precision."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from largek_dask.data.derived_rows import dithered
from tests.helpers.checks import dense, distinct_rows

Real = NDArray[np.float64]

VALUES = 1 << 22
"""Differences that are held at a time."""


def faults_of_mixture(
    mixture: Any, x: Any, weight: Any = None, *, told: Sequence[warnings.WarningMessage] = ()
) -> list[str]:
    """What is wrong with a fitted mixture of these rows, a line each; nothing if all is right."""
    arrays = mixture.model_.arrays
    k, (n, d) = mixture.n_components, x.shape
    if arrays.means.shape != (k, d) or not np.isfinite(arrays.means).all():
        return [f"means: shape {arrays.means.shape}, finite {np.isfinite(arrays.means).all()}"]
    labels = mixture.labels_
    if labels.shape != (n,) or labels.dtype != np.int32 or labels.min() < 0 or labels.max() >= k:
        return [f"labels: {labels.dtype}, shape {labels.shape}, {labels.min()} to {labels.max()}"]
    faults = list(_faults_of_components(mixture))
    if faults:
        return faults
    weights = np.ones(n) if weight is None else np.asarray(weight, np.float64)
    rows = x
    if mixture.dither:
        rows = dithered(x, 0, mixture.model_.provenance["parameters"]["seed"])
    joints = log_joints(dense(rows), arrays)
    return [
        *_faults_of_labels(mixture, joints, d),
        *_faults_of_likelihood(mixture, x, joints, weights),
        *_faults_of_shares(mixture, x, joints),
        *_faults_of_bound(mixture, weights, d),
        *_faults_of_warnings(mixture, x, weight, told),
    ]


def log_joints(x: Real, arrays: Any) -> Real:
    """(n, k) logarithms of weight times density."""
    means = arrays.means.astype(np.float64)
    variances = np.broadcast_to(arrays.variances, means.shape)
    constants = arrays.log_weights - 0.5 * np.log(2 * np.pi * variances).sum(axis=1)
    out = np.empty((len(x), len(means)))
    step = max(1, VALUES // means.size)
    for begin in range(0, len(x), step):
        at = slice(begin, begin + step)
        squares = (np.square(x[at, None] - means) / variances).sum(axis=-1)
        out[at] = constants - 0.5 * squares
    return out


def log_sums(joints: Real) -> Real:
    """(n,) logarithms of the sums over the components."""
    best = joints.max(axis=1, keepdims=True)
    sums: Real = best[:, 0] + np.log(np.exp(joints - best).sum(axis=1))
    return sums


def _faults_of_components(mixture: Any) -> Iterator[str]:
    """Weights add up to 1, and variances are positive; who is retired has no weight."""
    arrays = mixture.model_.arrays
    if not (np.isfinite(arrays.variances) & (arrays.variances > 0)).all():
        yield f"variances: from {arrays.variances.min()} to {arrays.variances.max()}"
    if not np.array_equal(arrays.alive, arrays.log_weights > -np.inf):
        yield "weights: not those of the components that are alive"
    total = float(np.exp(arrays.log_weights).sum())
    if not abs(total - 1) < 1e-9:
        yield f"weights: they add up to {total!r}"


def _rounding(joints: Real, d: int) -> Real:
    """(n,) how far numbers of the size of a row's best log joint may be off."""
    largest: Real = np.abs(joints.max(axis=1))
    return 1e-9 + (d + 16) * 2.0**-46 * (1 + largest)


def _faults_of_labels(mixture: Any, joints: Real, d: int) -> Iterator[str]:
    """Every row is at its most probable component."""
    own = joints[np.arange(len(joints)), mixture.labels_]
    off = joints.max(axis=1) - own
    wrong = ~(off <= _rounding(joints, d))
    if wrong.any():
        worst = int(np.argmax(off))
        yield (
            f"labels: {wrong.sum()} of {len(off)} rows are not at their most probable component; "
            f"row {worst}: log joint {own[worst]!r} instead of {joints[worst].max()!r}"
        )


def _faults_of_likelihood(mixture: Any, x: Any, joints: Real, weights: Real) -> Iterator[str]:
    """Log-likelihoods are those of all components, and the fit's is their sum."""
    (n, d), expected = x.shape, log_sums(joints)
    found = mixture.score_samples(x)
    allowed = _rounding(joints, d) + len(joints.T) * 1e-10
    wrong = ~(np.abs(found - expected) <= allowed)
    if wrong.any():
        worst = int(np.argmax(np.abs(found - expected) / allowed))
        yield (
            f"score_samples: {wrong.sum()} of {n} rows; row {worst}: {found[worst]!r} instead of "
            f"{expected[worst]!r}"
        )
    total = math.fsum(weights * found)
    most = math.fsum(weights * np.abs(found))
    if not abs(mixture.log_likelihood_ - total) <= 2.0**-48 * most:
        yield f"log-likelihood: {mixture.log_likelihood_!r} instead of {total!r}"
    counts = [math.fsum(weights[mixture.labels_ == c]) for c in range(mixture.n_components)]
    if not np.allclose(mixture.model_.counts, counts, rtol=1e-12, atol=0):
        yield f"counts: {np.abs(mixture.model_.counts - counts).max():.3g} off"


def _faults_of_shares(mixture: Any, x: Any, joints: Real) -> Iterator[str]:
    """Rows are shared out by their log joints."""
    expected = np.exp(joints - log_sums(joints)[:, None])
    allowed = 1e-6 + 4 * _rounding(joints, x.shape[1])[:, None]
    for is_dense in (True, False):
        found = mixture.predict_proba(x, dense=is_dense)
        found = found.toarray() if sp.issparse(found) else found
        if not np.allclose(found.sum(axis=1), 1, rtol=1e-12):
            yield f"predict_proba: rows add up to {found.sum(axis=1).min()!r}"
        off = np.abs(found - expected) / (allowed + (0 if is_dense else len(joints.T) * 2.0**-20))
        if not (off <= 1).all():
            i, c = np.unravel_index(np.argmax(off), off.shape)
            yield f"predict_proba: row {i}, component {c}: {found[i, c]!r}, not {expected[i, c]!r}"


def _faults_of_bound(mixture: Any, weights: Real, d: int) -> Iterator[str]:
    """F never falls, but where components are retired; and the log-likelihood of the last model is
    not below it."""
    arrays = mixture.model_.arrays
    steps = [step for step in mixture.history_ if step["extra"].get("iteration")]
    total = math.fsum(weights)
    if not steps or not total:
        return
    share = 2.0**-18 if arrays.means.dtype == np.float32 else 1e-12
    size = max(abs(step["cost"]) for step in steps) + d * total
    for before, after in pairwise(steps):
        retired = before["extra"].get("retired")
        if not (retired or after["cost"] >= before["cost"] - share * size):
            yield (
                f"F: {before['cost']!r} to {after['cost']!r} in step {after['step']}, by "
                f"{(before['cost'] - after['cost']) / size:.3g}"
            )
            break
    if mixture.coreset is None:
        last = steps[-1]["cost"]
        if not mixture.log_likelihood_ >= last - share * size:
            yield f"F: {last!r} is above the log-likelihood, {mixture.log_likelihood_!r}"


def _faults_of_warnings(
    mixture: Any, x: Any, weight: Any, told: Sequence[warnings.WarningMessage]
) -> Iterator[str]:
    """Who is retired and who has collapsed is told of, and nothing else."""
    n_retired = int(np.count_nonzero(~mixture.model_.arrays.alive))
    n_collapsed = int(mixture.history_[-1]["extra"].get("collapsed") or 0)
    counts = {"are retired": n_retired, "have collapsed": n_collapsed}
    right = [f"{n} of {mixture.n_components} components {what}" for what, n in counts.items() if n]
    for warning in told:
        if not right or not all(part in str(warning.message) for part in right):
            yield f"warning: {warning.category.__name__}: {str(warning.message)[:200]}"
    if right and not told:
        yield f"warning: none of {', '.join(right)}"


def may_be_refused(mixture: Any, x: Any, weight: Any, error: Exception) -> bool:
    """Whether nothing can be learnt from such rows."""
    few = mixture.coreset is not None and "coreset" in str(error)
    return few or distinct_rows(x, weight) == 1
