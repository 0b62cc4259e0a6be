"""The algorithms by the names that users, command lines and job documents give them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from largek_dask.algorithms.auto import Auto
from largek_dask.algorithms.base import Algorithm
from largek_dask.algorithms.choices import Covariance, Effort
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.algorithms.minibatch import MiniBatch
from largek_dask.algorithms.nmbatch import NMBatch
from largek_dask.algorithms.truncated import Truncated
from largek_dask.algorithms.vcgmm import VCGMM
from largek_dask.algorithms.vrkm import VRKM
from largek_dask.errors import ParameterError

__all__ = ["ALGORITHMS", "MIXTURES", "algorithm_of", "algorithm_of_mixture"]

ALGORITHMS: dict[str, type[Any]] = {
    "auto": Auto,
    "lloyd": Lloyd,
    "minibatch": MiniBatch,
    "nmbatch": NMBatch,
    "truncated": Truncated,
    "vc-gmm": VCGMM,
    "vrkm": VRKM,
}
"""Algorithms by the name a user gives."""
MIXTURES = "vc-gmm"
"""The one that answers mixtures, with a field ``covariance``."""


def algorithm_of(algorithm: Any, effort: Effort = "balanced") -> Algorithm[Any] | Auto:
    """The algorithm object of a name, or the object itself; ``effort`` is that of "auto".

    Raises
    ------
    ParameterError
        Unknown name, or an object that is no algorithm.
    """
    told = ", ".join(repr(name) for name in ALGORITHMS)
    if isinstance(algorithm, str):
        if algorithm not in ALGORITHMS:
            raise ParameterError(f"algorithm must be one of {told}, got {algorithm!r}.")
        return Auto(effort) if algorithm == "auto" else ALGORITHMS[algorithm]()
    if isinstance(algorithm, Auto):
        return algorithm
    if isinstance(algorithm, type) or not isinstance(algorithm, Algorithm):
        raise ParameterError(
            f"algorithm must be one of {told} or an object such as Lloyd(), got {algorithm!r}."
        )
    return algorithm


def algorithm_of_mixture(algorithm: Any, covariance: Covariance) -> Algorithm[Any]:
    """The algorithm object for a mixture with such covariances, of a name or an object.

    Raises
    ------
    ParameterError
        It is none for mixtures.
    """
    kind = ALGORITHMS[MIXTURES]
    if isinstance(algorithm, kind):
        made: Algorithm[Any] = replace(algorithm, covariance=covariance)
        return made
    if algorithm not in ("auto", MIXTURES) and not isinstance(algorithm, Auto):
        raise ParameterError(
            f"algorithm must be 'auto', {MIXTURES!r} or a {kind.__name__}() for a mixture, "
            f"got {algorithm!r}."
        )
    made = kind(covariance=covariance)
    return made
