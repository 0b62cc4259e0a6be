"""Mini-batch k-means with batches that the caller provides, for ``partial_fit``."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import CenterArrays
from largek_dask.algorithms.minibatch import BatchTotal, batch_chunk, running_means
from largek_dask.algorithms.parts.totals import AssignmentTotal
from largek_dask.algorithms.starts.seeding import initial_centers
from largek_dask.data.columns import without_equal_names
from largek_dask.driver.plan import check_reach, check_scale
from largek_dask.driver.provenance import describe, versions
from largek_dask.errors import ParameterError
from largek_dask.model import CentersModel
from largek_dask.passes.local import LocalPasses


def initial_model(
    passes: LocalPasses, n_clusters: int, init: str | NDArray[Any], seed: int
) -> CentersModel:
    """Return a model with centres of weight 0, chosen among the rows of the first batch.

    Raises
    ------
    ParameterError
        The batch has fewer rows than clusters.
    DataError
        Squared distances of its rows underflow.
    """
    n_rows = passes.statistics.n_rows
    if n_rows < n_clusters:
        raise ParameterError(
            f"n_samples={n_rows} should be >= n_clusters={n_clusters} in the first call of "
            "partial_fit, which chooses the initial centres: start with a larger batch, or use "
            "fewer clusters."
        )
    check_scale(passes.statistics)
    centers = initial_centers(passes, Rng(seed), n_clusters, init)
    arrays = CenterArrays(centers, np.zeros(n_clusters), passes.statistics.shift)
    provenance = {
        "parameters": {
            "algorithm": {"name": "MiniBatch", "fed_by": "partial_fit"},
            "n_clusters": n_clusters,
            "init": describe(init),
            "seed": seed,
            "normalize": passes.normalize,
            "on_bad_rows": passes.on_bad_rows,
        },
        "versions": versions(),
        "n_iter": 0,
    }
    names = without_equal_names(passes.rows).feature_names
    return CentersModel(arrays, passes.normalize, passes.on_bad_rows, (), provenance, names)


def update(passes: LocalPasses, model: CentersModel) -> CentersModel:
    """Assign each row of a batch to its nearest centre, and return the updated model.

    Sums are exact, so the result does not depend on chunks or threads. If rows have a wider dtype
    than the centres, the centres are converted to the dtype of the rows. The partitions of a path
    are dropped, because they do not include the new rows.

    Raises
    ------
    DataError
        A row is so far from a centre that squared distances overflow.
    """
    arrays = model.arrays
    packed = arrays.packed_for(passes.statistics.dtype)
    k, d = packed.centers.shape
    check_reach(passes, packed.centers)
    total: BatchTotal = passes.reduce(
        batch_chunk,
        packed,
        start=partial(AssignmentTotal, k, d, passes.statistics.grid),
        combine=AssignmentTotal.combine,
    )
    means, votes = running_means(arrays.centers.astype(np.float64), arrays.counts, total)
    updated = CenterArrays(means.astype(packed.dtype), votes, packed.shift)
    provenance = {**model.provenance, "n_iter": model.provenance.get("n_iter", 0) + 1}
    return CentersModel(
        updated, model.normalize, model.on_bad_rows, model.history, provenance, model.feature_names
    )
