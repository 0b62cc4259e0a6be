"""scikit-learn's own checks of an estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from largek_dask import KMeans, MiniBatchKMeans, Mixture, SphericalKMeans

DRAWN_BY_INDEX = (
    "First centres (and batches) are drawn by row index, so that repeated rows give other draws; "
    "with given first centres weights are repeats, bit for bit (test_kmeans.py)."
)
EXPECTED_TO_FAIL = {
    "check_sample_weight_equivalence_on_dense_data": DRAWN_BY_INDEX,
    "check_sample_weight_equivalence_on_sparse_data": DRAWN_BY_INDEX,
}


def draws_nothing(estimator):
    """The first component of one is the mean of all rows."""
    return isinstance(estimator, Mixture) and estimator.n_components == 1


@pytest.mark.filterwarnings("default")
@parametrize_with_checks(
    [
        KMeans(),
        KMeans(n_init="auto", verbose=False, init="scalable-k-means++", algorithm="elkan"),
        MiniBatchKMeans(),
        SphericalKMeans(),
        Mixture(),
        Mixture(2, covariance="diag"),
    ],
    expected_failed_checks=lambda estimator: {} if draws_nothing(estimator) else EXPECTED_TO_FAIL,
)
def test_sklearn_checks(estimator, check):
    check(estimator)
