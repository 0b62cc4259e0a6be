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
"""Objective of every mixture: the weighted sum of the rows' log-likelihoods, over all components.
Steps report F, its variational lower bound."""


@dataclass(frozen=True, slots=True)
class MixtureArrays:
    """Arrays of a mixture, without provenance.

    The arrays are stored and sent under their field names.
    """

    means: NDArray[Any]
    """(k, d) means, compute dtype, in the coordinates of the data."""
    variances: NDArray[np.float64]
    """Variances: (1, 1) if all components share one, (k, 1) per component, or (k, d) per component
    and feature."""
    log_weights: NDArray[np.float64]
    """(k,) logarithms of the weights, which add up to 1; -infinity for a retired component."""
    alive: NDArray[np.bool_]
    """(k,) mask of components that are not retired."""
    counts: NDArray[np.float64]
    """(k,) weight of the rows for which the component is the most probable one."""
    shift: NDArray[Any]
    """(d,) origin about which the kernels compute, compute dtype."""

    def packed_for(self, dtype: DTypeLike) -> PackedMixture:
        """Pack the components for rows of this type, without loss of precision.

        Rows are packed relative to the shift of the fit, so that their labels are exactly the same
        as in the fit.
        """
        wide = np.promote_types(self.means.dtype, compute_dtype(dtype))
        means = self.means.astype(wide, copy=False)
        return pack_mixture(means, self.variances, self.log_weights, self.shift)


def most_probable(arrays: MixtureArrays, dtype: DTypeLike = np.float32) -> Labelling:
    """Label rows of this type by their most probable component; sum log-likelihoods."""
    return Labelling(
        _most_probable_chunk,
        (arrays.packed_for(dtype),),
        {MIXTURE.name: 1, "counts": len(arrays.means)},
        {"means": arrays.means, "variances": arrays.variances, "log_weights": arrays.log_weights},
    )


def _most_probable_chunk(
    chunk: Chunk, sums: dict[str, ExactSums], packed: PackedMixture
) -> NDArray[np.int32]:
    """Label a chunk's rows and add their log-likelihoods."""
    labels, log_likelihood = log_likelihoods(chunk.x, packed)
    label_far(chunk.x, labels, log_likelihood, packed)
    # Skipped rows have weight 0, so they are not counted.
    sums[MIXTURE.name].add(log_likelihood, chunk.weight)
    sums["counts"].add(np.ones(len(labels)), chunk.weight, labels)
    return labels


def label_far(
    x: NDArray[Any], labels: NDArray[np.int32], found: NDArray[np.float64], packed: PackedMixture
) -> NDArray[np.int64]:
    """Correct labels (n,) of rows whose log joint densities are too low to be distinguished.

    ``found`` (n,) are log-likelihoods of the rows. Return indices (m,) of the corrected rows; the
    label of such a row has a posterior probability of 1.
    """
    far = np.flatnonzero(found < LOST)
    step = max(1, FAR_SCORES // packed.n_components)
    for begin in range(0, len(far), step):
        rows = far[begin : begin + step]
        labels[rows] = _least_far(dense_rows(x[rows]).astype(np.float64), packed).argmin(axis=1)
    return far


def _least_far(x: NDArray[np.float64], packed: PackedMixture) -> NDArray[np.float64]:
    """Return (m, k) -2 log joint densities minus common terms, divided by a power of two per row.

    The mean and precisions of one component are subtracted, so squared features only count by the
    difference of precisions.
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
    """Problem of all mixture algorithms."""

    objective: ClassVar[Objective] = MIXTURE
    inits: ClassVar[tuple[str, ...]] = ("auto", *MIXTURE_INITS)

    mixture: Covariance = field(default="iso", kw_only=True)
    """Type of the covariances of the components."""
    weights_init: NDArray[Any] | None = field(default=None, kw_only=True)
    """(k,) weights of the first components; None to estimate them with the components."""
    precisions_init: NDArray[Any] | None = field(default=None, kw_only=True)
    """Inverse variances of the first components, (k,) or for "diag" (k, d); None to estimate
    them."""

    def check(self, table: TableShape) -> None:
        """Reject sparse rows, and invalid parameters of the first components."""
        if table.is_sparse:
            raise ParameterError(
                "mixtures need dense rows, as Gaussians describe sparse ones badly: give a dense "
                "array, or cluster them with KMeans."
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
                    f"weights_init must add up to 1, not {float(self.weights_init.sum())!r}."
                )
            if self.mixture == "iso" and np.ptp(self.weights_init) > MOST_AMISS:
                raise ParameterError(
                    'weights_init: the components of an "iso" mixture have equal weights; '
                    'leave it out, or ask for "isoflex".'
                )
        if self.precisions_init is not None:
            wide = (*shape, table.n_features) if self.mixture == "diag" else shape
            _check_positive("precisions_init", self.precisions_init, wide)

    def labelling(self, arrays: MixtureArrays) -> Labelling:
        """Label rows by their most probable component."""
        return most_probable(arrays)

    def unsearched(
        self, rows: TakenRows, shift: NDArray[Any], draws: np.random.Generator
    ) -> MixtureArrays:
        """Return the given components, or sample rows as means with the variance of the sample."""
        k, x = self.n_clusters, dense_rows(rows.x).astype(np.float64)
        mean = np.average(x, axis=0, weights=rows.weight)
        own = np.average((x - mean) ** 2, axis=0, weights=rows.weight)
        # If all rows are equal, the variance is only the rounding error of their value.
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
        """Return a warning about retired and collapsed components."""
        warnings, k = [], self.n_clusters
        gone = np.flatnonzero(~final.arrays.alive)
        if len(gone):
            named = ", ".join(map(str, gone[:NAMED])) + (", ..." if len(gone) > NAMED else "")
            warnings.append(
                f"{len(gone)} of {k} components are retired ({named}): their rows are too few or "
                "too alike to have a variance, and no move was found for them."
            )
        if fallen := int(last.get("collapsed") or 0):
            warnings.append(
                f"{fallen} of {k} components have collapsed: they have less than one row, or rows "
                "so alike that their variance is the smallest allowed (reg_covar)."
            )
        return " ".join([*warnings, "Ask for fewer components."]) if warnings else None


FAR_SCORES = 1 << 20
"""Maximum number of log joint densities of far rows that are held at once."""
LOST = -(2.0**46)
"""Log joint densities below this value cannot resolve a hundredth of a nat in float64."""
NAMED = 10
"""Maximum number of retired components that a warning names."""
MOST_AMISS = 1e-6
"""Tolerance of the sum of starting weights, which may have been rounded to float32."""


def _check_positive(name: str, values: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Reject anything but an array of positive numbers of this shape."""
    if values.shape != shape:
        raise ParameterError(f"{name} has shape {values.shape}, and it must be {shape}.")
    if values.dtype.kind not in "iuf" or not (np.isfinite(values) & (values > 0)).all():
        raise ParameterError(f"{name} must hold positive numbers.")
