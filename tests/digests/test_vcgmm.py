"""vc-GMM gives the digests that it gave, of hard clusters and of mixtures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from largek_dask.algorithms.vcgmm import algorithm as vcgmm
from tests.digests.conftest import Fits, check, fits_of, stops

pytestmark = pytest.mark.slow


@contextmanager
def noted(kinds: set[str]) -> Iterator[None]:
    """Note which kinds of pass there are."""
    pass_over = vcgmm.pass_over

    def noting(rows, history, pass_, *arguments, **options):
        kinds.add(pass_.kind)
        return pass_over(rows, history, pass_, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vcgmm, "pass_over", noting)
        yield


@pytest.fixture(scope="module")
def kinds() -> set[str]:
    return set()


@pytest.fixture(scope="module")
def clusters(shelf, kinds) -> Fits:
    with noted(kinds):
        return fits_of("vc-gmm", shelf)


@pytest.fixture(scope="module")
def mixtures(shelf, kinds) -> Fits:
    with noted(kinds):
        return fits_of("mixture", shelf)


def test_digests_of_clusters(clusters):
    check(clusters)


def test_digests_of_mixtures(mixtures):
    check(mixtures)


def test_everything_happened(clusters, mixtures, kinds):
    """Every kind of search, in every kind of mixture; variances of their own, or of all."""
    assert kinds == {"lists", "nearest", "cells", "all"}
    assert stops(clusters) == {"converged", "tol", "max_iter"}
    assert stops(mixtures) >= {"tol", "max_iter"}
    shapes = {
        (dict(case.options)["covariance"], mixture.model_.arrays.variances.shape[1] > 1)
        for case, (mixture, _) in mixtures.items()
    }
    assert shapes == {("iso", False), ("isoflex", False), ("diag", True)}
    own = [
        len(np.unique(mixture.covariances_)) > 1
        for case, (mixture, _) in mixtures.items()
        if case.k > 1 and dict(case.options)["covariance"] != "iso"
    ]
    assert sum(own) > 30
