"""What does not fit a disk is refused before anything is computed, with the figures."""

from __future__ import annotations

import itertools
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from scipy.sparse import random

import largek_dask as lk
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.data.storage_errors import trouble
from largek_dask.driver.checkpoint import Checkpoints
from largek_dask.driver.options import FitOptions
from largek_dask.driver.plan import FILES, check_output_fits, footprint_of
from largek_dask.driver.plan import space_needed as space_of
from largek_dask.driver.storage import Folder
from largek_dask.errors import NotEnoughMemoryError, OutputError
from largek_dask.service.runner import fit_into
from tests.helpers.checks import fit_asked
from tests.helpers.covering import slow

K, N_INIT = 200, 2


def space_needed(rows: Any, k: int, algorithm: Any, *, n_init: int, labels: bool) -> int:
    """Bytes that a fit of k clusters by this algorithm writes."""
    asked = replace(algorithm, problem=KMeansProblem(k))
    return space_of(rows, k, footprint_of(rows, asked), n_init=n_init, labels=labels)


@pytest.fixture(scope="module")
def rows() -> Any:
    x = np.random.default_rng(0).standard_normal((12_000, 32)).astype(np.float32)
    return lk.open_rows(x)


class Disk:
    """Has as much space as a test says."""

    def __init__(self) -> None:
        self.free = 0
        self.asked: list[str] = []

    def usage(self, path: str) -> Any:
        self.asked.append(path)
        return self


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(shutil, "disk_usage", disk.usage)
    return disk


@pytest.fixture(params=[6])
def few_checkpoints(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is due at few steps only: those of a search consist of very many files."""
    steps = itertools.count(1)
    monkeypatch.setattr(Checkpoints, "due", lambda self: next(steps) % request.param == 0)


def most_written(path: Path) -> int:
    """Bytes of all files; what is written beside may remove some that were just seen."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


@pytest.mark.usefixtures("few_checkpoints")
@pytest.mark.parametrize(
    "algorithm",
    [
        lk.Lloyd(),
        *slow(lk.Truncated(), lk.VRKM(table="snapshot")),
        *slow(lk.MiniBatch(), lk.NMBatch(), lk.VRKM()),
    ],
)
def test_space_needed__is_about_what_is_written(tmp_path: Path, rows: Any, algorithm: Any) -> None:
    needed = space_needed(rows, K, algorithm, n_init=N_INIT, labels=True)
    # Models are kept of up to 53 passes of the search.
    steps, most = 60 if isinstance(algorithm, lk.Truncated) else 18, 0

    def look(snapshot: Any) -> None:
        nonlocal most
        most = max(most, most_written(tmp_path))

    options = FitOptions(algorithm=algorithm, n_clusters=K, n_init=N_INIT, max_iter=steps, tol=0.0)
    fit_into(Folder(str(tmp_path)), rows, options, labels=True, callbacks=[look])
    most = max(most, most_written(tmp_path))
    assert len(list((tmp_path / "starts/01/checkpoints").glob("*.json"))) == 3
    assert most <= needed <= 3 * most + FILES


@pytest.mark.usefixtures("few_checkpoints")
@pytest.mark.parametrize("few_checkpoints", [2], indirect=True)
@pytest.mark.parametrize("kind", ["dense", *slow("sparse")])
def test_space_needed__is_less_where_rows_meet_all_centres(
    tmp_path: Path, rows: Any, kind: str
) -> None:
    """Such a search keeps few models: a disk with room for these is not refused."""
    k, algorithm = (60 if kind == "dense" else K), lk.Truncated()
    if kind == "sparse":
        rows = lk.open_rows(random(30_000, 300, 0.03, format="csr", dtype="f4", random_state=0))
    needed = space_needed(rows, k, algorithm, n_init=1, labels=True)
    most = 0

    def look(snapshot: Any) -> None:
        nonlocal most
        most = max(most, most_written(tmp_path))

    options = FitOptions(algorithm=algorithm, n_clusters=k, max_iter=60, tol=0.0)
    fit_into(Folder(str(tmp_path)), rows, options, labels=True, callbacks=[look])
    assert most <= needed < 4 * most + FILES
    lists = replace(algorithm, neighbours=32)
    if kind == "dense":
        assert space_needed(rows, k, lists, n_init=1, labels=True) > 2 * needed


def test_space_needed__grows_with_what_is_asked(rows: Any) -> None:
    def needed(k: int = 1000, algorithm: Any = None, **changes: Any) -> int:
        options = {"n_init": 1, "labels": True, **changes}
        return space_needed(rows, k, algorithm or lk.Lloyd(), **options)

    assert needed() - needed(labels=False) == 4 * rows.n_rows
    assert needed(k=2000) > 1.5 * needed()
    assert needed(n_init=3) > needed()
    assert needed(algorithm=lk.Truncated()) > needed()
    few = needed()
    with dask.config.set({"largek.checkpoints.keep": 9}):
        assert needed() > 1.5 * few


def test_fit__refuses_a_disk_that_is_too_full(tmp_path: Path, rows: Any, disk: Disk) -> None:
    needed = space_needed(rows, K, lk.Lloyd(), n_init=1, labels=False)
    place = tmp_path / "not" / "yet" / "there"
    options: Any = {
        "algorithm": lk.Lloyd(), "n_clusters": K, "seed": 0, "max_iter": 2, "tol": 0.0,
        "checkpoint": str(place),
    }  # fmt: skip
    disk.free = needed - 1
    with pytest.raises(OutputError, match=r"take about 1\.\d+ MiB, and .* has 1\.\d+ MiB") as error:
        fit_asked(rows, **options)
    assert trouble(error.value) == "lacking"
    disk.free = needed
    fit_asked(rows, **options)
    # What has begun goes on: most of it is there already.
    disk.free = 0
    assert fit_asked(rows, **{**options, "max_iter": 3}).n_iter == 3


def test_labels__are_refused_where_they_do_not_fit(tmp_path: Path, rows: Any, disk: Disk) -> None:
    out = str(tmp_path / "labels.zarr")
    options: Any = {"algorithm": lk.Lloyd(), "n_clusters": K, "seed": 0, "max_iter": 2, "tol": 0.0}
    disk.free = 4 * rows.n_rows - 1
    with pytest.raises(OutputError, match=r"labels of 12,000 rows take about 46\.88 kiB"):
        fit_asked(rows, labels=out, **options)
    assert not list(tmp_path.iterdir())
    disk.free = 4 * rows.n_rows
    fit_asked(rows, labels=out, **options)


def test_check_space__asks_the_nearest_folder_there_is_and_claims_nothing_of_others(
    tmp_path: Path, disk: Disk
) -> None:
    (tmp_path / "file").write_text("")
    for name in ("", "a/b/c", "file/under"):
        with pytest.raises(OutputError):
            Folder(str(tmp_path / name)).check_space(1, "it")
    assert disk.asked == [str(tmp_path)] * 3
    Folder("memory://elsewhere").check_space(1 << 60, "it")
    assert len(disk.asked) == 3


def test_check_space__of_a_real_disk(tmp_path: Path) -> None:
    total = shutil.disk_usage(tmp_path).total
    Folder(str(tmp_path)).check_space(1, "it")
    with pytest.raises(OutputError, match="free"):
        Folder(str(tmp_path)).check_space(total + 1, "it")


@pytest.mark.parametrize("shape", [(10**13, 1), (1, 10**13)])
def test_check_output_fits__all_rows_and_all_columns_count(shape: tuple[int, int]) -> None:
    check_output_fits((100, 100), 8)
    with pytest.raises(NotEnoughMemoryError, match=r"needs 72\.8 TiB"):
        check_output_fits(shape, 8)
