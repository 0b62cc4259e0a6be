"""Every algorithm on one or two rows, of one feature or some, of every type."""

from __future__ import annotations

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.kernels.rows import compute_dtype
from tests.helpers.covering import in_turns

ALGORITHMS = {
    **{
        name: name for name in ("auto", "truncated", "lloyd", "nmbatch", "minibatch", "incremental")
    },
    "vrkm": lk.VRKM(),
    "vrkm-paper": lk.VRKM.paper(),
}


@pytest.mark.parametrize(
    ("algorithm", "dtype", "shape"),
    in_turns(
        list(ALGORITHMS), ["f2", "f4", "f8", "?", "u1", "i8"], [(1, 9), (1, 1), (2, 1), (2, 9)]
    ),
)
def test_every_row_a_centre(algorithm, dtype, shape):
    x = np.zeros(shape, dtype)
    x[-1] = 1
    for seed in range(3):
        km = lk.KMeans(len(x), algorithm=ALGORITHMS[algorithm], random_state=seed).fit(x)
        assert km.cluster_centers_.dtype == compute_dtype(x.dtype)
        assert km.inertia_ == 0
        np.testing.assert_array_equal(km.cluster_centers_[km.labels_], x)
