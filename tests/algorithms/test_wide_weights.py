"""Light rows beside heavy ones: their centres are as right as any, or the fit is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.errors import DataError
from largek_dask.passes.local import LocalPasses
from tests.helpers.covering import in_turns
from tests.passes.toys import rows_of

N, D = 300, 6
ALGORITHMS = {
    "lloyd": lk.Lloyd(),
    "nmbatch": lk.NMBatch(b0=60),
    "minibatch": lk.MiniBatch(batch_rows=2 * N),
    "latest": lk.MiniBatch(batch_rows=N, votes="latest"),
    "truncated": lk.Truncated(),
    "incremental": lk.IncrementalLloyd(),
    "vrkm": lk.VRKM(round_rows=60),
}


def two_groups(dtype: str, light: float) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Groups 20 apart; the rows of the second weigh ``light`` times what the others do."""
    r = np.random.default_rng(0)
    x = np.concatenate([r.normal(size=(N, D)), r.normal(size=(N, D)) + 20])
    weight = r.uniform(0.5, 1, 2 * N)
    weight[N:] *= light
    order = np.random.default_rng(1).permutation(2 * N)
    x = x * 100 if dtype == "i2" else x
    return x.astype(dtype)[order], weight[order]


def means_of(x: NDArray[Any], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    second = x[:, 0] > x[:, 0].astype("f8").mean()
    return np.array([np.average(x[at].astype("f8"), axis=0, weights=weight[at])
                     for at in (~second, second)])  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "dtype", "light"),
    in_turns(list(ALGORITHMS), ["f4", "f8", "i2"], [1e-15, 1e-9, 1e-3, 1.0]),
)
def test_the_centre_of_light_rows_is_right(algorithm: str, dtype: str, light: float) -> None:
    x, weight = two_groups(dtype, light)
    init = np.array([x[x[:, 0].argmin()], x[x[:, 0].argmax()]], "f8")
    options = {"init": init, "tol": 0, "max_iter": 40, "n_threads": 1, "random_state": 0}
    model = lk.KMeans(2, algorithm=ALGORITHMS[algorithm], **options).fit(x, sample_weight=weight)
    extent = float(np.abs(x.astype("f8")).max())
    tolerance = {"f8": 2e-9, "f4": 2e-7, "i2": 2e-7}[dtype] * extent
    np.testing.assert_allclose(model.cluster_centers_, means_of(x, weight), rtol=0, atol=tolerance)
    if algorithm not in ("minibatch", "latest"):
        assert model.stop_reason_ == "converged"
    assert set(model.labels_) == {0, 1}


@pytest.mark.parametrize("light", [1e-9, 1e-15])
def test_sparse_rows_and_sums_that_are_integers(light: float) -> None:
    x, weight = two_groups("f8", light)
    x = np.where(np.abs(x) > 0.5, x, 0)
    init = np.array([x[x[:, 0].argmin()], x[x[:, 0].argmax()]])
    options = {"algorithm": "lloyd", "init": init, "tol": 0, "n_threads": 1}
    for scale in (1.0, 2.0**60):
        weights = np.ceil(weight * scale) if scale > 1 else weight
        model = lk.KMeans(2, **options).fit(scipy.sparse.csr_matrix(x), sample_weight=weights)
        expected = means_of(x, weights)
        np.testing.assert_allclose(model.cluster_centers_, expected, rtol=0, atol=1e-7)
        assert model.stop_reason_ == "converged"


def test_retained_sums_are_those_of_one_pass() -> None:
    """Ten chunks on two threads, over many steps in which rows change their cluster."""
    x, weight = two_groups("f4", 1e-13)
    algorithm = Lloyd().bind(KMeansProblem(9, x[:9].astype("f8")))
    found = []
    for sizes, n_threads in (([600], 1), ([60] * 10, 2)):
        rows = rows_of(x, sizes, weight)
        assert rows.n_chunks == len(sizes)
        with LocalPasses(rows, n_threads=n_threads) as passes:
            state = algorithm.init(passes, Rng(0))
            for step in range(6):
                state, info = algorithm.step(passes, Rng(0), state)
                assert step == 0 or 0 < info.n_changed < 300
            found.append((state.centers.tobytes(), state.counts.tobytes(), info.cost))
    assert found[0] == found[1]


@pytest.mark.parametrize(("low", "high"), [(1e-30, 1.0), (3.0e-20, 7.5e9)])
def test_what_cannot_be_right_is_refused_with_figures(low: float, high: float) -> None:
    x, weight = two_groups("f8", 1.0)
    weight[7], weight[9] = low, high
    with pytest.raises(DataError) as caught:
        lk.KMeans(2, algorithm="lloyd").fit(x, sample_weight=weight)
    told = str(caught.value)
    assert f"range from {low:.3g} to {high:.3g}, a factor of {high / low:.3g}" in told
    assert "Leave such rows out (weight 0)" in told
    least = float(told.split("lighter than ")[1].split()[0])
    weight[7] = least * 1.01
    lk.KMeans(2, algorithm="lloyd", random_state=0).fit(x, sample_weight=weight)
    weight[7] = least * 0.5
    with pytest.raises(DataError, match="lighter than"):
        lk.KMeans(2, algorithm="lloyd").fit(x, sample_weight=weight)


def test_weights_that_are_all_too_small() -> None:
    x, weight = two_groups("f8", 1.0)
    with pytest.raises(DataError, match="too small: multiply them by a constant"):
        lk.KMeans(2, algorithm="lloyd").fit(x, sample_weight=weight * 1e-310)
