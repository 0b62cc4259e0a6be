"""Masked rows and weights are refused everywhere: the mask may hide numbers such as 1e6."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.errors import DataError, ParameterError

HIDDEN = 1e6
ROWS = r"the data must not be a masked array; fill .*, e\.g\. with x\.filled\(np\.nan\) and on_bad"
WEIGHTS = r"sample_weight must not be a masked array; fill .* with sample_weight\.filled\(0\)"


@pytest.fixture
def x() -> Any:
    """Rows near 0; one masked number is far out."""
    x = np.ma.masked_array(np.random.default_rng(0).normal(size=(60, 3)))
    x[7, 1] = HIDDEN
    x[7, 1] = np.ma.masked
    # Whoever drops the mask meets it.
    assert np.asarray(x).max() == HIDDEN
    return x


@pytest.fixture
def weight() -> Any:
    return np.ma.masked_greater(np.array([HIDDEN, *[1.0] * 59]), 10)


KMEANS = ("fit", "fit_predict", "fit_transform", "partial_fit", "predict", "transform", "score")


@pytest.mark.parametrize("name", KMEANS)
def test_kmeans(x: Any, name: str) -> None:
    km = lk.KMeans(3, random_state=0, max_iter=2)
    with pytest.raises(DataError, match=ROWS):
        getattr(km if "fit" in name else km.fit(x.filled(0)), name)(x)
    assert np.abs(km.fit(x.filled(0)).cluster_centers_).max() < 10


@pytest.mark.parametrize("name", ["fit", "fit_predict", "partial_fit"])
def test_weights_of_kmeans(x: Any, weight: Any, name: str) -> None:
    with pytest.raises(DataError, match=WEIGHTS):
        getattr(lk.KMeans(3, random_state=0), name)(x.filled(0), sample_weight=weight)


def test_first_centers(x: Any) -> None:
    with pytest.raises(ParameterError, match=r"init is a masked array; fill it first, with init"):
        lk.KMeans(3, init=x[6:9]).fit(x.filled(0))


def test_models_and_ingest(x: Any, tmp_path: Path) -> None:
    model = lk.KMeans(3, random_state=0, max_iter=2).fit(x.filled(0)).model_
    calls: list[Callable[[], Any]] = [
        lambda: model.predict(x),
        lambda: model.transform(x),
        lambda: model.score(x),
        lambda: lk.open_rows(x),
        lambda: lk.ingest(x, tmp_path / "out.zarr", progress=False),
    ]
    for call in calls:
        with pytest.raises(DataError, match=ROWS):
            call()
    assert not (tmp_path / "out.zarr").exists()


def test_dask(x: Any, weight: Any) -> None:
    with pytest.raises(DataError, match=ROWS):
        lk.open_rows(da.from_array(x, chunks=(30, 3)))
    # A graph may give what its description does not say.
    plain = da.from_array(x.filled(0), chunks=(30, 3))
    hidden = plain.map_blocks(lambda block: np.ma.masked_less(block, 0), meta=np.empty((0, 0)))
    assert not isinstance(hidden._meta, np.ma.MaskedArray)
    rows = lk.open_rows(hidden)
    with pytest.raises(DataError, match=ROWS):
        rows.read(0)
    with pytest.raises(DataError, match=WEIGHTS):
        lk.open_rows(plain, sample_weight=da.from_array(weight, chunks=30))
