"""``largek demo``, with fewer patches and codewords."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numba
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from sklearn.datasets import load_sample_images

from largek_dask import load_model, open_rows
from largek_dask.cli import demo as module
from largek_dask.cli import main
from largek_dask.errors import ParameterWarning
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
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert compiled_later
    assert set(compiled_later) == {0}
    told = json.loads(done.stdout)
    assert told["n_rows"] == 8480
    model = load_model(out / "model.zarr")
    assert model.digest() == told["digest"]
    assert model.centers.shape == (12, 192)
    images = load_sample_images().images
    table = np.concatenate([module.patches(image, 8) for image in images])
    rows = open_rows(out / "patches.zarr")
    np.testing.assert_array_equal(rows.read(0), table[: rows.chunk_table[1]])
    labels = zarr.open_array(out / "labels.zarr", mode="r")[...]
    np.testing.assert_array_equal(labels, model.predict(table))
    assert 10 < told["psnr"][0] < told["psnr"][1] < 40
    assert (out / "codebook.png").read_bytes().startswith(b"\x89PNG")
    assert "already exists" in CliRunner().invoke(main, arguments).stderr


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
    lines = [line.split() for line in written.read_text().splitlines()]
    kernels = [kernel for _, kernel in lines]
    assert len(kernels) > 60
    # Both processes may begin a few at the same time.
    assert len(set(kernels)) > 0.75 * len(kernels)
    processes = {process for process, _ in lines}
    assert len(processes) <= 2, "the process that starts the cluster, and its helper"


def photograph(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.filterwarnings("default")
def test_demo__without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    image = photograph(24, 24)
    table = module.patches(image, 8)
    model = SimpleNamespace(centers=table.astype(np.float32), counts=np.ones(len(table)))
    labels = np.arange(len(table), dtype=np.int32)
    with pytest.warns(ParameterWarning, match=r"largek_dask\[plots\]"):
        decibels = module.draw(model, [image], labels, 8, str(tmp_path / "x.png"))
    assert decibels == [np.inf]


def test_patches__are_windows_of_the_image():
    image = photograph(20, 27)
    table = module.patches(image, 3)
    assert table.shape == (5 * 7, 192)
    np.testing.assert_array_equal(table[7 * 2 + 4].reshape(8, 8, 3), image[6:14, 12:20])


@pytest.mark.parametrize(("height", "width", "stride"), [(8, 8, 1), (20, 27, 3), (30, 17, 8)])
def test_rebuild__from_every_patch_as_its_own_codeword_is_the_image(height, width, stride):
    image = photograph(height, width)
    table = module.patches(image, stride)
    again, psnr = module.rebuild(table.astype(float), np.arange(len(table)), image, stride)
    assert psnr == np.inf
    assert again.shape[0] > height - stride
    assert again.shape[1] > width - stride
    np.testing.assert_array_equal(again, image[: again.shape[0], : again.shape[1]])


def test_rebuild__overlapping_codewords_are_averaged():
    codewords = np.stack([np.full(192, 0.0), np.full(192, 100.0)])
    # Two patches, 4 pixels apart.
    dark = np.zeros((8, 12, 3), np.uint8)
    again, psnr = module.rebuild(codewords, np.array([0, 1]), dark, 4)
    np.testing.assert_array_equal(again[0, :, 0], [0] * 4 + [50] * 4 + [100] * 4)
    assert psnr == pytest.approx(10 * np.log10(255**2 / (12500 / 3)))


def test_mosaic__most_used_first_and_ties_by_index():
    codewords = np.repeat([[10.0], [20.0], [30.0], [300.0]], 192, axis=1)
    sheet = module.mosaic(codewords, np.array([1.0, 5.0, 1.0, 7.0]))
    cell = module.PATCH + 1
    assert sheet.shape == (2 * cell + 1, 2 * cell + 1, 3)
    corners = sheet[1::cell, 1::cell, 0]
    np.testing.assert_array_equal(corners, [[255, 20], [10, 30]])
