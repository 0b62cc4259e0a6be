"""The kind of model that holds every partition up to its own."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import product
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.path_arrays import FIGURES, PathArrays, rows_of_path
from largek_dask.driver.checkpoint import decode, encode
from largek_dask.driver.provenance import named_arrays
from largek_dask.errors import ModelFormatError, ParameterError
from largek_dask.model import KINDS, CentersModel, Model, PathModel, load_model
from largek_dask.model.suggest_k import Curve, suggest_from
from largek_dask.service.serialization import message_of_model, model_of
from tests.helpers.paths import centers_of, path_arrays, path_model, squares

K = 6
X = np.random.default_rng(2).normal(size=(200, 3)).astype(np.float32)
X[:, 0] += 8 * (np.arange(200) % 3)


def test_its_arrays_are_of_this_kind_and_those_of_centers_are_not() -> None:
    model = path_model(X, K)
    assert KINDS["path"] is PathModel
    assert type(Model(model.arrays)) is PathModel
    assert type(Model(centers_of(model))) is CentersModel


def test_it_does_what_a_model_of_centers_does() -> None:
    model = path_model(X, K)
    alone = CentersModel(centers_of(model))
    found = squares(X, model.centers)
    np.testing.assert_array_equal(model.predict(X), found.argmin(1))
    np.testing.assert_array_equal(model.predict(X), alone.predict(X))
    np.testing.assert_array_equal(model.transform(X), alone.transform(X))
    assert model.score(X) == alone.score(X) == pytest.approx(-found.min(1).sum(), rel=1e-6)
    assert model.n_clusters == K
    assert "partitions: into 1 to 6 clusters" in repr(model)


def test_every_partition_is_a_model() -> None:
    model = path_model(X, K)
    path = model.path_
    assert len(path) == K
    for n_clusters in range(1, K + 1):
        one = path.model(n_clusters)
        assert type(one) is CentersModel
        assert one.n_clusters == n_clusters
        np.testing.assert_array_equal(one.centers, path.centers(n_clusters))
        labels = one.predict(X)
        np.testing.assert_array_equal(one.counts, np.bincount(labels, minlength=n_clusters))
        assert -one.score(X) == pytest.approx(path.inertia[n_clusters - 1], rel=1e-6)
        assert one.provenance["inertia"] == path.inertia[n_clusters - 1]
        assert one.provenance["partition"] == {"n_clusters": n_clusters, "of": model.digest()}
    assert path.model(K).digest() == CentersModel(centers_of(model)).digest()
    assert len({path.model(n).digest() for n in range(1, K + 1)}) == K


def test_no_other_partition_is_there() -> None:
    path = path_model(X, K).path_
    wrong: list[Any] = [0, -1, K + 1, 2.0, "3", None, True]
    for ask, n_clusters in product((path.centers, path.model), wrong):
        with pytest.raises(ParameterError, match="use an integer from 1 to 6"):
            ask(n_clusters)


def test_what_is_not_known_is_none() -> None:
    figures = np.array([0.5, 3.0, np.nan, -2.25])
    arrays = path_arrays(X, K)
    stationarity, stability = arrays.stationarity.copy(), arrays.stability.copy()
    stationarity[2], stability[3] = figures, np.nan
    path = Model(replace(arrays, stationarity=stationarity, stability=stability)).path_
    records = path.records()
    assert [record["n_clusters"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert {name: records[2][name] for name in FIGURES} == {
        "movement": 0.5, "ties": 3, "moves": None, "swap": -2.25,
    }  # fmt: skip
    assert records[3]["stability"] is None
    assert records[2]["stability"] == path.stability[2]


def test_the_gap_is_what_could_be_saved() -> None:
    inertia = np.array([8.0, 4.0, 2.0, 0.0])
    bound = np.array([8.0, 1.0, 2.5, 0.0])
    arrays = replace(path_arrays(X, 4), inertia=inertia, lower_bound=bound)
    path = Model(arrays).path_
    np.testing.assert_array_equal(path.gap, [0.0, 0.75, 0.0, 0.0])
    np.testing.assert_array_equal(path.lower_bound, bound)


def test_the_number_of_clusters_is_suggested_by_all_that_is_known() -> None:
    bound = np.array([400.0, 100.0, 10.0, 0.0, 0.0, 0.0])
    stability = np.array([1, 0.4, 0.95, 0.99, 0.2, np.nan])
    arrays = replace(path_arrays(X, K), lower_bound=bound, stability=stability)
    found = Model(arrays).path_.suggest_k()
    curve = Curve(np.arange(1, K + 1), arrays.inertia, 200.0, 3, np.array([300.0, 90.0, 10.0]))
    expected = suggest_from(curve, stability)
    assert (found.k, found.words) == (expected.k, expected.words)
    np.testing.assert_array_equal(found.gaussian, expected.gaussian)
    alike = suggest_from(curve._replace(spectrum=None), stability)
    assert not np.array_equal(found.gaussian[1:], alike.gaussian[1:]), "the spectrum counts"


def test_equal_rows_have_one_partition_and_no_number_is_suggested() -> None:
    path = path_model(np.ones((7, 2)), 1).path_
    assert path.suggest_k().k is None
    assert path.gap.tolist() == [0.0]
    assert path.records()[0]["inertia"] == 0
    assert "into 1 to 1 clusters" in repr(path)


def test_its_repr() -> None:
    few = path_model(X, K).path_
    assert repr(few).startswith("<Path of the partitions into 1 to 6 clusters, inertia ")


# --- where it goes


def test_saved_and_read(tmp_path: FilePath) -> None:
    model = path_model(X, K)
    model.save(str(tmp_path / "m.zarr"))
    found = load_model(str(tmp_path / "m.zarr"))
    assert type(found) is PathModel
    assert found.digest() == model.digest()
    assert found.provenance == model.provenance
    for name, array in named_arrays(model.arrays).items():
        np.testing.assert_array_equal(getattr(found.arrays, name), array)
    assert np.isnan(found.arrays.stationarity).any(), "else what is not known has not been tried"
    assert found.path_.model(3).digest() == model.path_.model(3).digest()


def test_sent_pickled_and_kept_in_checkpoints() -> None:
    model = path_model(X, K)
    message = message_of_model(model)
    arrived = {**message, "arrays": {name: s.data for name, s in message["arrays"].items()}}
    for found in (model_of(arrived), pickle.loads(pickle.dumps(model))):
        assert type(found) is PathModel
        assert found.digest() == model.digest()
    arrays: dict[str, Any] = {}
    again = decode(encode(model.arrays, arrays), arrays, PathArrays)
    assert Model(again).digest() == model.digest()


def test_every_array_is_in_the_digest() -> None:
    model = path_model(X, K)
    for name in PathArrays.__dataclass_fields__:
        array = getattr(model.arrays, name).copy()
        array.flat[0] += 1
        changed = Model(replace(model.arrays, **{name: array}))
        assert (changed.digest() == model.digest()) == (name == "shift")


def wrong(arrays: PathArrays) -> dict[str, tuple[dict[str, Any], str]]:
    other = arrays.path.copy()
    other[-1] += 1
    bad = arrays.path.copy()
    bad[0] = np.nan
    counts = arrays.counts_of_path.copy()
    counts[-1] += 1
    lost = arrays.counts_of_path.copy()
    lost[0] = -200
    return {
        "short": ({"path": arrays.path[:-1]}, r"path has an invalid shape \(20, 3\)"),
        "type": ({"path": arrays.path.astype(np.float64)}, "path has an invalid .* type float64"),
        "finite": ({"path": bad}, "path contains NaN or infinity"),
        "last": ({"path": other}, "centers differ from the last rows of path"),
        "counts": ({"counts_of_path": counts}, "counts differ from the last rows of counts_of"),
        "n_counts": ({"counts_of_path": counts[1:]}, r"path has an invalid shape \(20,\)"),
        "inertia": ({"inertia": arrays.inertia[1:]}, r"inertia has an invalid shape \(5,\)"),
        "bound": ({"lower_bound": arrays.lower_bound[:, None]}, r"an invalid shape \(6, 1\)"),
        "still": ({"stationarity": arrays.stationarity[:, 1:]}, r"has an invalid shape \(6, 3\)"),
        "stable": ({"stability": arrays.stability.astype(np.float32)}, "stability .* float32"),
        "negative": ({"counts_of_path": lost}, r"counts_of_path at \[0\] is -200"),
        "unknown": ({"inertia": arrays.inertia * np.nan}, r"inertia at \[0\] is nan"),
        "below": ({"inertia": -arrays.inertia}, r"inertia at \[0\] is -.* at least 0"),
        "no bound": ({"lower_bound": np.full(K, np.inf)}, r"lower_bound at \[0\] is inf"),
        "far": ({"stationarity": np.full((K, 4), np.inf)}, r"stationarity at \[0, 0\] is inf"),
        "empty": ({name: getattr(arrays, name)[:0] for name in PathArrays.__dataclass_fields__
                   if name != "shift"}, r"path has an invalid shape \(0, 3\)"),
    }  # fmt: skip


def test_arrays_that_do_not_belong_together_are_refused(tmp_path: FilePath) -> None:
    model, place = path_model(X, K), str(tmp_path / "m.zarr")
    for changes, message in wrong(model.arrays).values():
        replace(model, arrays=replace(model.arrays, **changes)).save(place, overwrite=True)
        with pytest.raises(ModelFormatError, match=f"is damaged: .*{message}"):
            load_model(place)


def test_what_the_last_pass_has_found_is_part_of_the_path() -> None:
    arrays = path_arrays(X, K)
    n = rows_of_path(K - 1)
    counts = arrays.counts + 1
    assert arrays.inertia[-2] > 5
    same = arrays.after_last_pass(arrays.centers, counts, 5.0)
    np.testing.assert_array_equal(same.counts_of_path[n:], counts)
    np.testing.assert_array_equal(same.counts_of_path[:n], arrays.counts_of_path[:n])
    np.testing.assert_array_equal(same.inertia, [*arrays.inertia[:-1], 5.0])
    above = arrays.after_last_pass(arrays.centers, counts, arrays.inertia[2])
    np.testing.assert_array_equal(above.inertia[:2], arrays.inertia[:2])
    assert (above.inertia[2:] == arrays.inertia[2]).all(), "no estimate is below what is known"
    np.testing.assert_array_equal(same.path, arrays.path)
    np.testing.assert_array_equal(same.stationarity, arrays.stationarity)
    assert not np.isnan(same.stationarity[-1, :3]).any()
    centers = arrays.centers.copy()
    centers[0] += 1
    moved = arrays.after_last_pass(centers, counts, 5.0)
    np.testing.assert_array_equal(moved.path[n:], centers)
    np.testing.assert_array_equal(moved.path[:n], arrays.path[:n])
    assert np.isnan(moved.stationarity[-1]).all()
    np.testing.assert_array_equal(moved.stationarity[:-1], arrays.stationarity[:-1])
    Model(moved)._check()


def test_models_of_other_kinds_have_no_path() -> None:
    model = lk.KMeans(3, random_state=0).fit(X).model_
    with pytest.raises(AttributeError, match="path_"):
        model.path_  # noqa: B018
