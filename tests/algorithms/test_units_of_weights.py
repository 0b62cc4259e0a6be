"""Weights have no unit: all of them multiplied by a power of two change no bit of a fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

import largek_dask as lk
from tests.helpers.covering import in_turns, slow

N, D, K = 600, 6, 12
ALGORITHMS = {
    "lloyd": lk.Lloyd(),
    "nmbatch": lk.NMBatch(b0=3 * K),
    "paper": lk.NMBatch.paper(b0=3 * K),
    "minibatch": lk.MiniBatch(batch_rows=100),
    "truncated": lk.Truncated(),
    "incremental": lk.IncrementalLloyd(),
    "vrkm": lk.VRKM(round_rows=50),
    "vrkm-paper": lk.VRKM.paper(),
}


def rows_and_weights(kind: str) -> tuple[np.ndarray, np.ndarray]:
    r = np.random.default_rng(3)
    x = (r.normal(size=(N, D)) + 3 * r.integers(0, 4, (N, 1))).astype("f4")
    weights = {
        "fractions": 3 * r.random(N),
        "integers": r.integers(1, 5, N).astype("f8"),
        "equal": np.ones(N),
        "some": np.where(r.random(N) < 0.5, 0.0, r.random(N)),
    }
    return x, weights[kind]


@pytest.mark.parametrize(
    ("algorithm", "kind", "layout"),
    [
        ("lloyd", "fractions", "dense"),
        ("nmbatch", "integers", "sparse"),
        ("truncated", "equal", "dense"),
        ("vrkm", "some", "sparse"),
        *slow(*in_turns(list(ALGORITHMS), ["some", "fractions"], ["dense", "dense", "sparse"])),
    ],
)
def test_a_power_of_two_changes_nothing(algorithm: str, kind: str, layout: str) -> None:
    x, weight = rows_and_weights(kind)
    given: Any = scipy.sparse.csr_matrix(np.where(np.abs(x) < 1, 0, x)) if layout[0] == "s" else x
    fits = [
        lk.KMeans(
            K, algorithm=ALGORITHMS[algorithm], init="random", random_state=2, n_threads=1
        ).fit(given, sample_weight=weight * 2.0**exponent)
        for exponent in (0, -10, 10)
    ]
    one, *others = fits
    if algorithm in ("nmbatch", "paper"):
        told = [record["extra"] for record in one.history_]
        assert len({extra["batch_rows"] for extra in told}) > 3, "the batch has grown several times"
        assert any("growth_ratio" in extra for extra in told)
    for other in others:
        assert other.cluster_centers_.tobytes() == one.cluster_centers_.tobytes()
        assert other.labels_.tobytes() == one.labels_.tobytes()
        assert other.n_iter_ == one.n_iter_
    assert [fit.inertia_ for fit in others] == [one.inertia_ * 2.0**-10, one.inertia_ * 2.0**10]
