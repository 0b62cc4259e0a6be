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


def checks_of(*estimators):
    return parametrize_with_checks(
        list(estimators),
        expected_failed_checks=lambda one: {} if draws_nothing(one) else EXPECTED_TO_FAIL,
    )


@pytest.mark.filterwarnings("default")
@checks_of(KMeans())
def test_sklearn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@checks_of(MiniBatchKMeans(), SphericalKMeans(), Mixture(2, covariance="diag"))
def test_sklearn_checks_of_estimators_that_share_its_code(estimator, check):
    check(estimator)
