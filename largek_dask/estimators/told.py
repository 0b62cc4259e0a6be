"""What a model tells of the fit that gave it, as parameters of an estimator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from largek_dask.algorithms.auto import Auto
from largek_dask.algorithms.base import Algorithm
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.errors import ParameterError
from largek_dask.model import Model

__all__ = ["algorithm_told", "check_kind", "parameters_told"]


def parameters_told(model: Model) -> dict[str, Any]:
    """What the fit was asked, by the names that an estimator has for it, as far as it is told.

    A model made of arrays by hand tells nothing, one of ``partial_fit`` no stop rules. Arrays that
    a fit began with are told by their hash only: it is not said then how to begin.
    """
    asked = model.provenance.get("parameters", {})
    stop = model.provenance.get("stop", {})
    told = {
        "n_clusters": model.n_clusters,
        "normalize": model.normalize,
        "on_bad_rows": model.on_bad_rows,
        **{name: asked[name] for name in ("n_init", "empty_clusters") if name in asked},
        **{name: stop[name] for name in ("max_iter", "tol", "max_time") if name in stop},
    }
    if isinstance(asked.get("init"), str):
        told["init"] = asked["init"]
    if "seed" in asked:
        told["random_state"] = asked["seed"]
    return told


def algorithm_told(model: Model) -> Algorithm[Any] | Auto | None:
    """The algorithm object that the fit was asked for; None where this version has none such."""
    described = model.provenance.get("parameters", {}).get("algorithm")
    if not isinstance(described, Mapping):
        return None
    for kind in ALGORITHMS.values():
        if kind.__name__ == described.get("name"):
            try:
                made: Algorithm[Any] | Auto = _made(kind(), described)
            except (TypeError, ValueError):
                return None  # another version's parameters
            return made
    return None


def _made(like: Any, described: Mapping[str, Any]) -> Any:
    """A dataclass of the same kind with the values that are described, also of those inside it."""
    values = {f.name: described[f.name] for f in fields(like) if f.name in described}
    for name, value in values.items():
        own = getattr(like, name)
        if is_dataclass(own) and isinstance(value, Mapping):
            values[name] = _made(own, value)
    return replace(like, **values)


def check_kind(estimator: str, model: Any, kind: type[Model], advice: str) -> None:
    """Refuse what is no model, or one of another kind.

    Raises
    ------
    ParameterError
        With what to do instead.
    """
    if not isinstance(model, Model):
        raise ParameterError(
            f"{estimator}.from_model takes a model, such as load_model(url) or job.result(), "
            f"got {type(model).__name__}."
        )
    if not isinstance(model, kind):
        raise ParameterError(f"{estimator} has no models of the kind {model.kind!r}: {advice}.")
