"""What a cancelled fit gives can be read from its folder alone."""

from __future__ import annotations

import dask
import numpy as np
import pytest
import scipy.sparse

import largek_dask as lk
from largek_dask.algorithms.auto import Auto
from largek_dask.driver.starts import best_saved
from largek_dask.driver.storage import Folder
from largek_dask.errors import RecoveryWarning
from tests.helpers.checks import fit_asked

ALGORITHMS = {
    "lloyd": lk.Lloyd(),
    "nmbatch": lk.NMBatch(b0=60),
    "minibatch": lk.MiniBatch(batch_rows=100),
    "truncated": lk.Truncated(),
    "incremental": lk.IncrementalLloyd(rounds=3),
    "vrkm": lk.VRKM(round_rows=100),
    "auto": Auto(),
    "sparse auto": Auto(),
}


@pytest.fixture(autouse=True)
def checkpoint_after_every_step():
    with dask.config.set({"largek.checkpoints.seconds": 0}):
        yield


def rows(layout="dense"):
    x = np.random.default_rng(4).standard_normal((600, 5)).astype("f4")
    return lk.open_rows(scipy.sparse.csr_matrix(x * (x > 0)) if layout == "sparse" else x)


def cancelled_fit(folder, algorithm, n_steps, *, n_init=1, layout="dense"):
    """A fit that is cancelled after some steps of all its starts together."""
    taken = []
    return fit_asked(
        rows(layout),
        algorithm=algorithm,
        n_clusters=12,
        seed=5,
        init="random",
        n_init=n_init,
        max_iter=300,
        tol=0.0,
        checkpoint=folder,
        callbacks=[lambda snapshot: taken.append(snapshot.record)],
        cancelled=lambda: len(taken) >= n_steps,
        n_threads=1,
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_saved__is_what_the_fit_gave(name, tmp_path):
    folder = Folder(str(tmp_path))
    assert best_saved(folder) is None
    layout = "sparse" if "sparse" in name else "dense"
    result = cancelled_fit(folder, ALGORITHMS[name], 3, layout=layout)
    assert result.stop_reason == "cancelled"
    assert result.n_iter in (3, 4), "a step that reads no chunk is not cut"
    saved = best_saved(folder)
    assert saved.arrays.centers.tobytes() == result.arrays.centers.tobytes()
    assert saved.arrays.counts.tobytes() == result.arrays.counts.tobytes()
    assert (saved.stream, saved.n_iter, saved.value) == (0, result.n_iter, None)
    assert list(saved.history) == list(result.history)


@pytest.mark.parametrize("n_steps", [1, 40])
def test_saved__of_a_mixture_is_one(n_steps, tmp_path):
    """Also while means are still searched, where its covariances are those that were asked for."""
    folder, taken = Folder(str(tmp_path)), []
    result = fit_asked(
        rows(), n_clusters=12, seed=5, mixture="isoflex", max_iter=300, tol=0.0, checkpoint=folder,
        callbacks=[lambda snapshot: taken.append(snapshot.record)],
        cancelled=lambda: len(taken) >= n_steps, n_threads=1,
    )  # fmt: skip
    assert (taken[-1]["extra"]["iteration"] == 0) == (n_steps == 1)
    saved = best_saved(folder)
    assert saved.objective.name == "log_likelihood"
    for name in ("means", "variances", "log_weights", "counts"):
        assert getattr(saved.arrays, name).tobytes() == getattr(result.arrays, name).tobytes()


def test_saved__of_several_starts_is_the_best_that_is_known(tmp_path):
    """The first ones to their ends, the last one not: that is no better until it is known to be."""
    folder = Folder(str(tmp_path))
    whole = [
        fit_asked(rows(), algorithm=lk.Lloyd(), n_clusters=12, seed=5, init="random", n_init=n,
            max_iter=300, tol=0.0, n_threads=1)
        for n in (1, 3)
    ]  # fmt: skip
    assert whole[1].value < whole[0].value, "it is not the first one"
    alone = cancelled_fit(folder, lk.Lloyd(), 2, n_init=3)
    assert best_saved(folder).arrays.centers.tobytes() == alone.arrays.centers.tobytes()
    steps = 0
    while len(folder.sub("starts").names()) < 2:
        steps += 5
        result = cancelled_fit(folder, lk.Lloyd(), steps, n_init=3)
        assert result.stop_reason == "cancelled", "it is cut within a start"
    saved = best_saved(folder)
    assert saved.stream == result.provenance["start"] == whole[1].provenance["start"]
    assert saved.value == result.value == whole[1].value
    assert saved.arrays.centers.tobytes() == result.arrays.centers.tobytes()


def test_saved__falls_back_from_a_damaged_checkpoint(tmp_path):
    folder = Folder(str(tmp_path))
    cancelled_fit(folder, lk.Lloyd(), 3)
    (tmp_path / "checkpoints" / "000003.json").write_text("{}")
    with pytest.warns(RecoveryWarning, match="000003"):
        assert best_saved(folder).n_iter == 2
