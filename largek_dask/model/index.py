"""Export the centres of a model to a vector index, such as a faiss index."""

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
    """Return (k, d) centres in float32, the dtype of vector indexes.

    Raises ParameterError if the clusters of the model cannot be the inverted lists of an index.
    """
    centers = model._cluster_centers() if model._labels_by_nearest else None
    if centers is None:
        raise ParameterError(
            f"An index assigns each row to the nearest centre, but a model of kind "
            f"{model.kind!r} labels rows differently; fit KMeans instead."
        )
    if model.scaling is not None:
        raise ParameterError(
            "A model with scale='standard' has standardised centres, but an index compares rows "
            "in the original units; fit the model without scale on the rows of the index."
        )
    largest = float(np.abs(centers).max())
    if largest > float(np.finfo(np.float32).max):
        raise ParameterError(
            f"A centre has the coordinate {largest:.3g}, but the maximum in float32 is 3.4e38; "
            "divide the rows by a constant and fit again."
        )
    return np.ascontiguousarray(centers, np.float32)


def faiss_index(model: Model, metric: str | None) -> Any:
    """Create the empty faiss index that :meth:`Model.to_faiss` returns."""
    metric = metric or ("l2" if model.normalize is None else "ip")
    if metric not in METRICS:
        raise ParameterError(
            f"metric={metric!r} is not a metric of an index; use 'l2' or 'ip' (inner product)."
        )
    centers = index_centers(model)
    faiss = require("faiss", "faiss", "faiss indexes")
    k, d = centers.shape
    if metric == "ip":
        # Without normalisation, inner products favour long centres.
        lengths = np.sqrt(np.square(centers, dtype=np.float64).sum(axis=1, keepdims=True))
        centers = (centers / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    quantizer = faiss.IndexFlatL2(d) if metric == "l2" else faiss.IndexFlatIP(d)
    quantizer.add(centers)
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    return faiss.IndexIVFFlat(quantizer, d, k, kind)
