"""What does not fit a disk is refused before anything is computed, with the figures."""

from __future__ import annotations

import itertools
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.data.storage_errors import trouble
from largek_dask.driver.checkpoint import Checkpoints
from largek_dask.driver.options import FitOptions
from largek_dask.driver.plan import FILES, footprint_of
from largek_dask.driver.plan import space_needed as space_of
from largek_dask.driver.storage import Folder
from largek_dask.errors import OutputError
from largek_dask.service.runner import fit_into
from tests.helpers.checks import fit_asked
from tests.helpers.covering import slow

K, N_INIT = 200, 2


def space_needed(rows: Any, k: int, algorithm: Any, *, n_init: int, labels: bool) -> int:
    """Bytes that a fit of k clusters by this algorithm writes."""
    asked = algorithm.bind(KMeansProblem(k))
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
        *slow(lk.Truncated(), lk.VRKM()),
        *slow(lk.MiniBatch(), lk.NMBatch(), lk.IncrementalLloyd()),
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


def test_fit__refuses_a_disk_that_is_too_full(tmp_path: Path, rows: Any, disk: Disk) -> None:
    needed = space_needed(rows, K, lk.Lloyd(), n_init=1, labels=False)
    place = tmp_path / "not" / "yet" / "there"
    options: Any = {
        "algorithm": lk.Lloyd(), "n_clusters": K, "seed": 0, "max_iter": 2, "tol": 0.0,
        "checkpoint": str(place),
    }  # fmt: skip
    disk.free = needed - 1
    with pytest.raises(
        OutputError, match=r"take about 1\.\d+ MiB, but .* has only 1\.\d+ MiB"
    ) as error:
        fit_asked(rows, **options)
    assert trouble(error.value) == "lacking"
    disk.free = needed
    fit_asked(rows, **options)
    # What has begun goes on: most of it is there already.
    disk.free = 0
    assert fit_asked(rows, **{**options, "max_iter": 3}).n_iter == 3


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
