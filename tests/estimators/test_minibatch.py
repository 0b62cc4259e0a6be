"""MiniBatchKMeans: mini-batch k-means by scikit-learn's name, with its meaning of ``max_iter``."""

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.errors import ParameterError
from tests.helpers.checks import faults_of_fit

K = 6
X = np.repeat(np.eye(K), 150, axis=0) * 9 + np.random.default_rng(0).normal(size=(900, K))
X = X[np.random.default_rng(1).permutation(900)]


@pytest.mark.parametrize(("size", "batches"), [("auto", 1), (64, 15), (900, 1), (1, 1)])
def test_it_is_k_means_by_batches_and_counts_passes(size, batches):
    km = lk.MiniBatchKMeans(K, batch_size=size, max_iter=4, random_state=0).fit(X)
    algorithm = lk.MiniBatch(batch_rows=size)
    wanted = lk.KMeans(K, algorithm=algorithm, max_iter=4 * batches, random_state=0).fit(X)
    assert km.model_.digest() == wanted.model_.digest()
    assert (km.n_iter_, len(km.history_)) == (4, 4 * batches)
    assert sum(step["rows"] for step in km.history_) == 4 * len(X)
    assert faults_of_fit(km, X) == []


def test_a_pass_that_a_callback_ends_is_counted():
    def stop(snapshot):
        return snapshot.record["step"] == 20

    km = lk.MiniBatchKMeans(K, batch_size=64, random_state=0, callbacks=[stop]).fit(X)
    assert (km.n_iter_, km.stop_reason_) == (2, "callback")


def test_it_goes_on_from_a_checkpoint(tmp_path):
    asked = {"batch_size": 64, "random_state": 0}
    whole = lk.MiniBatchKMeans(K, max_iter=5, **asked).fit(X)
    lk.MiniBatchKMeans(K, max_iter=2, checkpoint=tmp_path / "run", **asked).fit(X)
    again = lk.MiniBatchKMeans(K, max_iter=5, checkpoint=tmp_path / "run", **asked).fit(X)
    assert again.model_.digest() == whole.model_.digest()
    assert again.n_iter_ == whole.n_iter_


def test_wrong_sizes_are_named_as_they_were_given():
    for wrong in (0, 1.5, "large", True):
        with pytest.raises(
            ParameterError, match="batch_size must be an integer of at least 1, got"
        ):
            lk.MiniBatchKMeans(batch_size=wrong).fit(X)
    # Also where one is set after the estimator was made.
    km = lk.MiniBatchKMeans(K, max_iter=1, random_state=0).set_params(batch_size=300)
    assert len(km.fit(X).history_) == 3
    with pytest.raises(TypeError, match="unexpected keyword"):
        lk.MiniBatchKMeans(algorithm="lloyd")
