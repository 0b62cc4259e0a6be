"""Names of the algorithms in the Python interface, on command lines and in job documents."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from largek_dask.algorithms.auto import Auto
from largek_dask.algorithms.base import Algorithm
from largek_dask.algorithms.choices import DEFAULT_EFFORT, Covariance, Effort
from largek_dask.algorithms.incremental import IncrementalLloyd
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.algorithms.minibatch import MiniBatch
from largek_dask.algorithms.nmbatch import NMBatch
from largek_dask.algorithms.partition_path import PartitionPath
from largek_dask.algorithms.published.dcd_bundle import DCDBundle
from largek_dask.algorithms.published.nmbatch import NMBatchPaper
from largek_dask.algorithms.published.vcgmm import VCGMMPaper
from largek_dask.algorithms.published.vrkm import VRKM
from largek_dask.algorithms.truncated import Truncated
from largek_dask.algorithms.vcgmm import VCGMM
from largek_dask.errors import ParameterError

ALGORITHMS: dict[str, type[Any]] = {
    "auto": Auto,
    "dcd-bundle": DCDBundle,
    "incremental": IncrementalLloyd,
    "lloyd": Lloyd,
    "minibatch": MiniBatch,
    "nmbatch": NMBatch,
    "nmbatch-paper": NMBatchPaper,
    "partition-path": PartitionPath,
    "truncated": Truncated,
    "vc-gmm": VCGMM,
    "vc-gmm-paper": VCGMMPaper,
    "vrkm": VRKM,
}
OTHER_ALGORITHMS = {"elkan": "lloyd", "full": "lloyd"}
"""Names in other libraries (scikit-learn, dask-ml) for exact k-means, with the equivalent name
here."""
MIXTURES = "vc-gmm"


def algorithm_of(algorithm: Any, effort: Effort = DEFAULT_EFFORT) -> Algorithm[Any, Any] | Auto:
    """Return the algorithm with this name and effort; an algorithm object is returned unchanged.

    Raises ``ParameterError`` for an unknown name, an object that is not an algorithm, or a
    non-default effort with an object or with an algorithm that has no effort.
    """
    names = ", ".join(map(repr, ALGORITHMS))
    if isinstance(algorithm, str):
        name = OTHER_ALGORITHMS.get(algorithm, algorithm)
        if name not in ALGORITHMS:
            raise ParameterError(f"algorithm must be one of {names}, got {algorithm!r}.")
        kind = ALGORITHMS[name]
        if not has_effort(kind):
            check_effort(kind, effort)
        made: Algorithm[Any, Any] | Auto = kind(effort=effort) if has_effort(kind) else kind()
        return made
    if not isinstance(algorithm, Algorithm | Auto):
        raise ParameterError(
            f"algorithm must be one of {names} or an object such as Lloyd(), got {algorithm!r}."
        )
    check_effort(algorithm, effort)
    return algorithm


def algorithm_of_mixture(
    algorithm: Any, covariance: Covariance, effort: Effort = DEFAULT_EFFORT
) -> Algorithm[Any, Any]:
    """Return an algorithm object for mixtures with this type of covariance.

    Raises ``ParameterError`` for algorithms that fit no mixtures, and for a non-default effort.
    """
    kind = ALGORITHMS[MIXTURES]
    made: Algorithm[Any, Any]
    if isinstance(algorithm, VCGMMPaper) and covariance == "iso":
        return algorithm
    if isinstance(algorithm, kind):
        check_effort(algorithm, effort)
        made = replace(algorithm, covariance=covariance)
        return made
    if algorithm not in ("auto", MIXTURES) and not isinstance(algorithm, Auto):
        raise ParameterError(
            f"algorithm must be 'auto', {MIXTURES!r} or a {kind.__name__}() for a mixture, "
            f"got {algorithm!r}."
        )
    check_effort(kind, effort)
    made = kind(covariance=covariance)
    return made


def has_effort(kind: type[Any]) -> bool:
    return any(f.name == "effort" for f in fields(kind))


def check_effort(algorithm: Any, effort: Effort) -> None:
    """Raise ``ParameterError`` if a non-default effort cannot be applied to this algorithm."""
    if effort == DEFAULT_EFFORT:
        return
    if not isinstance(algorithm, type) and has_effort(type(algorithm)):
        raise ParameterError(
            f"effort={effort!r} applies only to an algorithm given by name, not to {algorithm!r}: "
            f"use {type(algorithm).__name__}(effort={effort!r})."
        )
    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    takers = " and ".join(repr(name) for name, own in ALGORITHMS.items() if has_effort(own))
    raise ParameterError(
        f"effort={effort!r} applies only to {takers}, and {kind.__name__} has no effort: leave out "
        "effort, or use one of these algorithms."
    )
