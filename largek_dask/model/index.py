"""Centres of a model as vector indexes take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.stores import require
from largek_dask.errors import ParameterError

if TYPE_CHECKING:
    from largek_dask.model.base import Model

METRICS = ("l2", "ip")


def index_centers(model: Model) -> NDArray[np.float32]:
    """Return the (k, d) centres in float32, the type of vector indexes.

    Raises ParameterError if the lists of an index cannot be the clusters of the model.
    """
    centers = model._cluster_centers() if model._labels_by_nearest else None
    if centers is None:
        raise ParameterError(
            f"An index puts each row into the list of its nearest centre, but a model of kind "
            f"{model.kind!r} labels rows otherwise: fit KMeans."
        )
    if model.scaling is not None:
        raise ParameterError(
            "An index compares rows in their own units, but the centres of a model with "
            "scale='standard' are standardised: fit without scale, on the rows of the index."
        )
    largest = float(np.abs(centers).max())
    if largest > float(np.finfo(np.float32).max):
        raise ParameterError(
            f"A centre has the coordinate {largest:.3g}, but indexes hold float32, at most 3.4e38: "
            "divide the rows by a constant and fit again."
        )
    return np.ascontiguousarray(centers, np.float32)


def faiss_index(model: Model, metric: str | None) -> Any:
    """Return the index of :meth:`Model.to_faiss`."""
    metric = metric or ("l2" if model.normalize is None else "ip")
    if metric not in METRICS:
        raise ParameterError(
            f"metric={metric!r} is not a metric of an index; use 'l2' or 'ip' (inner product)."
        )
    centers = index_centers(model)
    faiss = require("faiss", "faiss", "faiss indexes")
    k, d = centers.shape
    if metric == "ip":
        # Otherwise long centres would attract rows of other directions.
        lengths = np.sqrt(np.square(centers, dtype=np.float64).sum(axis=1, keepdims=True))
        centers = (centers / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    quantizer = faiss.IndexFlatL2(d) if metric == "l2" else faiss.IndexFlatIP(d)
    quantizer.add(centers)
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    return faiss.IndexIVFFlat(quantizer, d, k, kind)
