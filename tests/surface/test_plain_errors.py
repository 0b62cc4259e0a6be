"""A user's mistake ends in one error, without the errors of other packages that led to it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import largek_dask as lk
from largek_dask.errors import LargekError, OutputError, handle_warnings

ROWS = np.random.default_rng(0).normal(size=(60, 2))
CHAINS = ("direct cause", "During handling")


def model_in(folder: Path) -> str:
    place = str(folder / "model.zarr")
    lk.KMeans(2, algorithm="lloyd", random_state=0).fit(ROWS).model_.save(place)
    return place


def damaged(folder: Path) -> None:
    place = model_in(folder)
    Path(place, "zarr.json").write_text("{")
    lk.load_model(place)


def text_rows(folder: Path) -> None:
    Path(folder, "x.csv").write_text("a,b\n1,2\n3,high\n")
    lk.ingest(str(folder / "x.csv"), str(folder / "x.zarr"), progress=False)


def no_chunk(folder: Path) -> None:
    np.save(folder / "x.npy", ROWS)
    with (folder / "x.npy").open("r+b") as file:
        file.truncate(200)
    lk.KMeans(2).fit(str(folder / "x.npy"))


MISTAKES: dict[str, Callable[[Path], Any]] = {
    "no such file": lambda folder: lk.KMeans(2).fit(str(folder / "none.zarr")),
    "no such protocol": lambda folder: lk.open_rows("nowhere://bucket/x.zarr"),
    "ragged lists": lambda folder: lk.KMeans(2).fit([[1.0, 2.0], [3.0]]),
    "text": lambda folder: lk.Mixture(2).fit(pd.DataFrame({"a": ["x", "y"]})),
    "text in a file": text_rows,
    "a file cut off": no_chunk,
    "no model": lambda folder: lk.load_model(str(folder / "none.zarr")),
    "a damaged model": damaged,
    "a model that exists": lambda folder: lk.load_model(model_in(folder)).save(
        str(folder / "model.zarr")
    ),
    "an unknown algorithm": lambda folder: lk.KMeans(2, algorithm="kmeans").fit(ROWS),
    "other columns": lambda folder: lk.load_model(model_in(folder)).predict(ROWS[:, :1]),
    "no scheduler": lambda folder: lk.connect("tcp://127.0.0.1:9", timeout="1s"),
    "no scheduler file": lambda folder: lk.connect(str(folder / "scheduler.json"), timeout="1s"),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_one_error_is_shown(mistake: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises((LargekError, FileNotFoundError)) as caught:
        mistake(tmp_path)
    shown = "".join(traceback.format_exception(caught.value))
    assert not any(chain in shown for chain in CHAINS), shown
    assert str(caught.value) in shown


def test_causes_are_kept_where_somebody_looks_at_them(tmp_path: Path) -> None:
    Path(tmp_path, "model.zarr").write_text("a file")
    model = lk.KMeans(2, algorithm="lloyd", random_state=0).fit(ROWS).model_
    place = str(tmp_path / "model.zarr" / "inside")
    with handle_warnings(lambda *_: None), pytest.raises(OutputError) as caught:
        model.save(place)
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(OutputError) as caught:
        model.save(place)
    assert caught.value.__cause__ is None
