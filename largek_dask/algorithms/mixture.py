"""The problem of Gaussian mixtures: its parameters, model arrays and last pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from largek_dask.algorithms.base import Chunk, TableShape
from largek_dask.algorithms.choices import MIXTURE_INITS, Covariance
from largek_dask.algorithms.objective import Objective
from largek_dask.algorithms.problem import Final, Labelling, Problem
from largek_dask.algorithms.randomness import TakenRows
from largek_dask.algorithms.starts.seeding import check_init, drawn_centers
from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import dense_rows
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.log_likelihood import log_likelihoods
from largek_dask.kernels.mixtures import PackedMixture, pack_mixture
from largek_dask.kernels.rows import compute_dtype

MIXTURE = Objective("log_likelihood", "F", "nats", "max")
"""Objective of mixtures: the weighted sum of the log-likelihoods of all rows. Single steps report
F, a variational lower bound of this sum."""


@dataclass(frozen=True, slots=True)
class MixtureArrays:
    """Means, variances, weights, counts and shift of a fitted mixture.

    The stored arrays have the same names as the fields.
    """

    means: NDArray[Any]
    """(k, d) means, in the units of the data and the compute dtype."""
    variances: NDArray[np.float64]
    """Shape (1, 1): one variance for all components; (k, 1): one per component; (k, d): one per
    component and feature."""
    log_weights: NDArray[np.float64]
    """(k,) logarithms of the weights of the components; -infinity for retired components."""
    alive: NDArray[np.bool_]
    """(k,) False for retired components, whose weight is 0."""
    counts: NDArray[np.float64]
    """(k,) total weight of the rows for which each component is the most probable."""
    shift: NDArray[Any]
    """(d,) vector that the kernels subtract from rows and means before they compute."""

    def packed_for(self, dtype: DTypeLike) -> PackedMixture:
        """Pack the components for rows of the given dtype.

        The shift of the fit is used, so rows get exactly the same labels as in the fit.
        """
        wide = np.promote_types(self.means.dtype, compute_dtype(dtype))
        means = self.means.astype(wide, copy=False)
        return pack_mixture(means, self.variances, self.log_weights, self.shift)


def most_probable(arrays: MixtureArrays, dtype: DTypeLike = np.float32) -> Labelling:
    """Return a labelling by the most probable component, which also sums log-likelihoods."""
    return Labelling(
        _most_probable_chunk,
        (arrays.packed_for(dtype),),
        {MIXTURE.name: 1, "counts": len(arrays.means)},
        {"means": arrays.means, "variances": arrays.variances, "log_weights": arrays.log_weights},
    )


def _most_probable_chunk(
    chunk: Chunk, sums: dict[str, ExactSums], packed: PackedMixture
) -> NDArray[np.int32]:
    labels, log_likelihood = log_likelihoods(chunk.x, packed)
    label_far(chunk.x, labels, log_likelihood, packed)
    sums[MIXTURE.name].add(log_likelihood, chunk.weight)
    sums["counts"].add(np.ones(len(labels)), chunk.weight, labels)
    return labels


def label_far(
    x: NDArray[Any], labels: NDArray[np.int32], found: NDArray[np.float64], packed: PackedMixture
) -> NDArray[np.int64]:
    """Correct in place the labels (n,) of rows whose log joint densities are too low to compare.

    ``found`` (n,) are the log-likelihoods of the rows. Returns the indices (m,) of the corrected
    rows; the posterior probability of their components is 1.
    """
    far = np.flatnonzero(found < LOST)
    step = max(1, FAR_SCORES // packed.n_components)
    for begin in range(0, len(far), step):
        rows = far[begin : begin + step]
        labels[rows] = _least_far(dense_rows(x[rows]).astype(np.float64), packed).argmin(axis=1)
    return far


def _least_far(x: NDArray[np.float64], packed: PackedMixture) -> NDArray[np.float64]:
    """Return (m, k) scores that are lowest for the most probable component of a row.

    The scores are -2 log joint densities without terms common to all components, and are scaled by
    a power of two per row to avoid overflow.
    """
    d = packed.n_features
    one = int(np.argmax(packed.alive))
    wide = packed.precisions if packed.covariance == "diag" else 2 * packed.halves[:, None]
    means = packed.means.astype(np.float64)
    powers = np.frexp(np.abs(x).max(axis=1))[1][:, None]
    rows = np.ldexp(x, -powers) - np.ldexp(means[one], -powers)
    scores: NDArray[np.float64] = np.ldexp(
        -2 * np.where(packed.alive, packed.constants, -np.inf), -2 * powers
    )
    for f in range(d):
        own = wide[:, min(f, wide.shape[1] - 1)]
        row, mean = rows[:, f, None], np.ldexp(means[:, f] - means[one, f], -powers)
        scores += (own - own[one]) * row * row + own * mean * (mean - 2 * row)
    return scores


@dataclass(frozen=True, slots=True)
class MixtureProblem(Problem):
    """Problem that all mixture algorithms solve."""

    objective: ClassVar[Objective] = MIXTURE
    inits: ClassVar[tuple[str, ...]] = ("auto", *MIXTURE_INITS)

    mixture: Covariance = field(default="iso", kw_only=True)
    """Covariance type of the components."""
    weights_init: NDArray[Any] | None = field(default=None, kw_only=True)
    """(k,) weights of the starting components; None: equal weights."""
    precisions_init: NDArray[Any] | None = field(default=None, kw_only=True)
    """Inverse variances of the starting components: (k,), or (k, d) for "diag"; None: estimated
    from the rows."""

    def check(self, table: TableShape) -> None:
        if table.is_sparse:
            raise ParameterError(
                "Mixtures require dense rows, but these rows are sparse. Convert them to a dense "
                "array, or use KMeans."
            )
        if not isinstance(self.init, str):
            check_init(self.init, self.n_clusters, table.n_features)
        elif self.init not in self.inits:
            names = ", ".join(map(repr, self.inits))
            raise ParameterError(f"init must be one of {names} or an array, got {self.init!r}.")
        shape = (self.n_clusters,)
        if self.weights_init is not None:
            _check_positive("weights_init", self.weights_init, shape)
            if abs(float(self.weights_init.sum()) - 1) > MOST_AMISS:
                raise ParameterError(
                    f"weights_init must sum to 1, got a sum of {float(self.weights_init.sum())!r}."
                )
            if self.mixture == "iso" and np.ptp(self.weights_init) > MOST_AMISS:
                raise ParameterError(
                    'weights_init must be equal for an "iso" mixture. Omit weights_init, or use '
                    'an "isoflex" mixture.'
                )
        if self.precisions_init is not None:
            wide = (*shape, table.n_features) if self.mixture == "diag" else shape
            _check_positive("precisions_init", self.precisions_init, wide)

    def labelling(self, arrays: MixtureArrays) -> Labelling:
        return most_probable(arrays)

    def unsearched(
        self, rows: TakenRows, shift: NDArray[Any], draws: np.random.Generator
    ) -> MixtureArrays:
        """Return starting components: the given parameters, or rows and variances of the sample."""
        k, x = self.n_clusters, dense_rows(rows.x).astype(np.float64)
        mean = np.average(x, axis=0, weights=rows.weight)
        own = np.average((x - mean) ** 2, axis=0, weights=rows.weight)
        # If all rows are equal, the rounding error of their values serves as the variance.
        rounding = np.finfo(shift.dtype).eps * np.where(mean == 0, 1.0, mean)
        own = np.where(own > 0, own, rounding**2).clip(np.finfo(np.float64).smallest_normal)
        if self.mixture == "diag":
            variances = np.tile(own, (k, 1))
        else:
            variances = np.full((1 if self.mixture == "iso" else k, 1), own.mean())
        if self.precisions_init is not None:
            given = 1 / np.asarray(self.precisions_init, np.float64).reshape(k, -1)
            variances = given.mean(keepdims=True) if self.mixture == "iso" else given
        weights = np.full(k, 1 / k) if self.weights_init is None else self.weights_init
        return MixtureArrays(
            means=drawn_centers(rows, k, self.init, shift.dtype, draws),
            variances=variances,
            log_weights=np.log(np.asarray(weights, np.float64)),
            alive=np.ones(k, np.bool_),
            counts=np.zeros(k),
            shift=shift,
        )

    def complaint(
        self, final: Final, *, had_time: bool, last: Mapping[str, float | None]
    ) -> str | None:
        warnings, k = [], self.n_clusters
        gone = np.flatnonzero(~final.arrays.alive)
        if len(gone):
            named = ", ".join(map(str, gone[:NAMED])) + (", ..." if len(gone) > NAMED else "")
            warnings.append(
                f"{len(gone)} of {k} components are retired ({named}): they have too few rows, or "
                "their rows are too similar, and no move could repair them."
            )
        if fallen := int(last.get("collapsed") or 0):
            warnings.append(
                f"{fallen} of {k} components have collapsed: they have less than one row, or their "
                "rows are so similar that the variance is at its lower limit (reg_covar)."
            )
        return " ".join([*warnings, "Use fewer components."]) if warnings else None


FAR_SCORES = 1 << 20
"""Maximum number of log joint densities that are computed at a time for very distant rows."""
LOST = -(2.0**46)
"""Below this log joint density, differences of 0.01 nats cannot be represented in float64."""
NAMED = 10
"""Maximum number of retired components that are listed in a warning."""
MOST_AMISS = 1e-6
"""Tolerance for the sum of ``weights_init``, as weights may have been rounded to float32."""


def _check_positive(name: str, values: NDArray[Any], shape: tuple[int, ...]) -> None:
    if values.shape != shape:
        raise ParameterError(f"{name} must have shape {shape}, got {values.shape}.")
    if values.dtype.kind not in "iuf" or not (np.isfinite(values) & (values > 0)).all():
        raise ParameterError(f"{name} must contain only positive, finite numbers.")
