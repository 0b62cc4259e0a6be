"""What a fit leaves in a job's folder, and what becomes of what an earlier one has left."""

import json

import numpy as np
import pytest
import zarr

import largek_dask as lk
from largek_dask import fault_injection
from largek_dask.driver.options import FitOptions
from largek_dask.driver.storage import Folder
from largek_dask.errors import OutputError
from largek_dask.model import load_model
from largek_dask.service.runner import fit_into, model_in
from largek_dask.service.store import LABELS, MODEL, UNFINISHED_LABELS, labels_in

X = np.random.default_rng(0).standard_normal((200, 3))


def fitted(folder, max_iter, labels=True):
    options = FitOptions(algorithm=lk.Lloyd(), n_clusters=5, max_iter=max_iter, tol=0.0)
    return fit_into(folder, lk.open_rows(X), options, labels=labels, n_threads=1)


@pytest.fixture
def folder(tmp_path):
    return Folder(str(tmp_path / "out"))


def test_model__half_of_one_is_replaced(folder, tmp_path):
    """A scheduler was killed while it wrote the model."""
    half = tmp_path / "out" / MODEL / "counts"
    half.mkdir(parents=True)
    (half / "zarr.json").write_text("{}")
    assert model_in(folder) is None
    model, _ = fitted(folder, 2)
    assert load_model(folder.sub(MODEL)).digest() == model.digest()


@pytest.mark.parametrize("labels", [True, False])
def test_labels__are_never_those_of_another_model(folder, tmp_path, labels):
    before, _ = fitted(folder, 1)
    assert labels_in(folder)
    model, _ = fitted(folder, 3, labels=labels)
    assert model.digest() != before.digest()
    assert load_model(folder.sub(MODEL)).digest() == model.digest()
    assert labels_in(folder) is labels
    if labels:
        stored = zarr.open_array(str(tmp_path / "out" / LABELS), mode="r")[...]
        np.testing.assert_array_equal(stored, model.predict(X))
        assert (stored != before.predict(X)).any()


def test_labels__that_a_model_was_writing_when_it_was_cut_off_are_written_again(folder, tmp_path):
    fitted(folder, 1)

    def cut_off(when, point):
        if point == "labels":
            raise OSError("the disk is gone")

    fault_injection.watch(cut_off)
    try:
        with pytest.raises(OutputError, match="the disk is gone"):
            fitted(folder, 3)
    finally:
        fault_injection.watch(None)
    owner = json.loads((tmp_path / "out" / UNFINISHED_LABELS).read_text())["owner"]
    assert "model" in owner, "the fit's own pass wrote them"
    model, result = fitted(folder, 3)
    assert result.n_iter == 3
    assert load_model(folder.sub(MODEL)).digest() == model.digest()
    assert labels_in(folder)
    stored = zarr.open_array(str(tmp_path / "out" / LABELS), mode="r")[...]
    np.testing.assert_array_equal(stored, model.predict(X))


def test_model__is_written_again_only_if_something_is_new(folder):
    fitted(folder, 50)
    first = model_in(folder).provenance
    assert first["stop_reason"] == "converged"
    fitted(folder, 50)
    assert model_in(folder).provenance == first
    assert labels_in(folder)
