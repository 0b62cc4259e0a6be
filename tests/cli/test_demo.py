"""``largek demo``, with fewer patches and codewords."""

import builtins
import json
import os
import subprocess
import sys

import numba
import numpy as np
import pytest
import zarr
from click.testing import CliRunner

from largek_dask import load_model, open_rows
from largek_dask.cli import demo as module
from largek_dask.cli import main
from largek_dask.cli.photographs import patches, sample_photographs
from largek_dask.errors import OutputError
from largek_dask.kernels.compiling import compiled

MAIN = "from largek_dask.cli import main; main()"
WRITTEN = """
import os, sys

def log(event, given):
    if event == "os.rename" and str(given[1]).endswith(".bin"):
        with open({path!r}, "a") as file:
            file.write(f"{{os.getpid()}} {{os.path.basename(given[1])}}\\n")

sys.addaudithook(log)
"""
"""A ``sitecustomize`` module: each process logs the kernels that it writes to the cache."""


@pytest.fixture
def compiled_later(monkeypatch):
    """Functions compiled since the cluster started, by its workers and this process."""
    found, real = [], module.local_client

    def client():
        client, before = real(), compiled().functions
        close = client.close

        def count_and_close():
            client.close = close
            found.extend(client.run(lambda: compiled().functions).values())
            found.append(compiled().functions - before)
            close()

        client.close = count_and_close
        return client

    monkeypatch.setattr(module, "local_client", client)
    return found


def test_demo__from_photographs_to_picture(tmp_path, compiled_later):
    out = tmp_path / "demo"
    arguments = ["demo", "--out", str(out), "--stride", "8", "-k", "12", "--json"]
    before = compiled().seconds
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert compiled_later
    assert set(compiled_later) == {0}
    told = json.loads(done.stdout)
    assert told["seconds_compiling"] == pytest.approx(compiled().seconds - before)
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


@pytest.mark.slow
@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
def test_demo__kernels_are_compiled_before_the_cluster_and_that_is_said_once(tmp_path):
    written = tmp_path / "written.txt"
    (tmp_path / "sitecustomize.py").write_text(WRITTEN.format(path=str(written)))
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "demo", "--out", str(tmp_path / "demo")],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
            "DASK_LARGEK__KERNELS__CACHE_DIR": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("compiling kernels") == 1
    assert "time compiling" in done.stdout
    lines = [line.split() for line in written.read_text().splitlines()]
    kernels = [kernel for _, kernel in lines]
    assert len(kernels) > 60
    # Both processes may begin a few at the same time.
    assert len(set(kernels)) > 0.75 * len(kernels)
    processes = {process for process, _ in lines}
    assert len(processes) <= 2, "the process that starts the cluster, and its helper"


def test_codebook_figure__names_photographs():
    image = np.zeros((16, 24, 3), np.uint8)
    names = ["codewords", "one", "one rebuilt", "two", "two rebuilt"]
    figure = module.codebook_figure([(name, image) for name in names], "a title")
    assert [axes.get_title() for axes in figure.axes] == names


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
