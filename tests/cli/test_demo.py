"""``largek demo``, with fewer patches and codewords."""

import builtins
import json

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

from largek_dask import load_model, open_rows
from largek_dask.cli import demo as module
from largek_dask.cli import main
from largek_dask.cli.photographs import patches, sample_photographs
from largek_dask.errors import OutputError


def test_demo__from_photographs_to_picture(tmp_path):
    out = tmp_path / "demo"
    arguments = ["demo", "--out", str(out), "--stride", "8", "-k", "12", "--json"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["n_rows"] == 8480
    assert set(told["files"]) == {"data", "model", "labels", "picture"}
    model = load_model(told["files"]["model"])
    assert model.digest() == told["digest"]
    assert model.centers.shape == (12, 192)
    table = np.concatenate([patches(image, 8) for image in sample_photographs().values()])
    rows = open_rows(told["files"]["data"])
    np.testing.assert_array_equal(rows.read(0), table[: rows.chunk_table[1]])
    labels = zarr.open_array(told["files"]["labels"], mode="r")[...]
    np.testing.assert_array_equal(labels, model.predict(table))
    assert 10 < told["psnr"]["china"] < told["psnr"]["flower"] < 40
    assert (out / "codebook.png").read_bytes().startswith(b"\x89PNG")


def test_demo__table_says_where_everything_is():
    told = {
        "out": "here",
        "n_rows": 1000,
        "n_features": 192,
        "n_clusters": 3,
        "n_iter": 7,
        "stop_reason": "tol",
        "inertia": 12.5,
        "psnr": {"china": 20.04},
        "seconds": 9.0,
        "seconds_fit": 3.0,
    }
    from rich.console import Console

    console = Console(width=120)
    with console.capture() as captured:
        console.print(module.summary(told, "here/codebook.png"))
    shown = captured.get()
    for text in ("here/model.zarr", "here/labels.zarr", "china 20.0 dB", "largek fit here/patches"):
        assert text in shown


def test_demo__without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    image = np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8)
    table = patches(image, 8)
    model = lambda: None  # noqa: E731
    model.centers, model.counts = table.astype(np.float32), np.ones(len(table))
    monkeypatch.setattr(builtins, "__import__", without)
    labels = np.arange(len(table), dtype=np.int32)
    decibels, told = module.draw(model, {"a": image}, [table], labels, 8, tmp_path / "x.png")
    assert decibels == {"a": np.inf}
    assert "largek_dask[plots]" in told
    assert not (tmp_path / "x.png").exists()


def test_prepare_folder__replaces_an_earlier_demo_and_nothing_else(tmp_path):
    out = tmp_path / "deep" / "demo"
    module.prepare_folder(out)
    (out / "model.zarr").mkdir()
    (out / "codebook.png").write_text("old")
    (out / "mine.txt").write_text("mine")
    module.prepare_folder(out)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    with pytest.raises(OutputError, match=r"holds other things \('mine.txt'\)"):
        module.prepare_folder(out)
