"""Scripts of other libraries, as docs/migrating.md translates them, run."""

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import largek_dask as lk

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "migrating.md").read_text()
LIBRARIES = ["scikit-learn", "dask-ml", "cuML", "faiss"]


def scripts(library):
    """The script before, and the one after."""
    section = PAGE.split(f"\n## {library}\n")[1].split("\n## ")[0]
    [before] = re.findall(r"```py\n(.*?)```", section, re.DOTALL)
    [after] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return before, after


@pytest.fixture
def folder(tmp_path):
    """Rows about twenty directions, as a file and as a store of several chunks."""
    rng = np.random.default_rng(0)
    x = 5 * rng.normal(size=(20, 6))[rng.integers(20, size=3_000)] + rng.normal(size=(3_000, 6))
    np.save(tmp_path / "rows.npy", x)
    lk.ingest(x, str(tmp_path / "rows.zarr"), chunk_rows=500, progress=False)
    return tmp_path


def run(code, folder, ending=""):
    script = folder / "script.py"
    script.write_text(code + ending)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SAVED = "\nnp.save('labels.npy', labels), np.save('centers.npy', km.cluster_centers_)\n"


@pytest.mark.slow
def test_after_scikit_learn(folder):
    before, after = scripts("scikit-learn")
    assert before.replace("from sklearn.cluster", "from largek_dask") == after
    inertia = [
        float(run(code, folder).split("\n")[-2].split()[0]) for code in scripts("scikit-learn")
    ]
    assert inertia[1] == pytest.approx(inertia[0], rel=0.2)


@pytest.mark.slow
def test_after_dask_ml(folder):
    code = scripts("dask-ml")[1].replace('"rows.zarr"', f'"{folder}/rows.zarr"')
    run(code.replace('"labels.zarr"', f'"{folder}/labels.zarr"'), folder)
    found = zarr.open_array(str(folder / "labels.zarr"), mode="r")[:]
    assert found.shape == (3_000,)
    assert len(np.unique(found)) == 20


@pytest.mark.slow
def test_after_cuml(folder):
    run(scripts("cuML")[1], folder, SAVED)
    assert len(np.unique(np.load(folder / "labels.npy"))) == 20


@pytest.mark.slow
def test_after_faiss(folder):
    run(scripts("faiss")[1], folder, SAVED)
    centers = np.load(folder / "centers.npy")
    np.testing.assert_allclose(np.linalg.norm(centers, axis=1), 1, rtol=1e-6)
    x = np.load(folder / "rows.npy")
    cosines = (x / np.linalg.norm(x, axis=1, keepdims=True)) @ centers.T
    own = cosines[np.arange(len(x)), np.load(folder / "labels.npy")]
    np.testing.assert_allclose(own, cosines.max(1), rtol=1e-5)


def keywords(code):
    """Names of the parameters that a script gives to ``KMeans``."""
    return {
        keyword.arg
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("KMeans", "Kmeans"))
        for keyword in node.keywords
    }


def test_what_was_before_is_said_here_too():
    """Every name of a parameter in a script is taken, or in the table."""
    there = {name for row in table_rows() for name in re.findall(r"`(\w+)`", row[0])}
    taken = set(inspect.signature(lk.KMeans).parameters)
    for library in LIBRARIES:
        before, after = map(keywords, scripts(library))
        assert len(before) > 3
        assert before <= taken | there
        assert before & taken <= after


def table_rows():
    section = PAGE.split("\n## Names of parameters\n")[1].replace(r"\|", "")
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [line.split("|")[1:-1] for line in lines[2:]]


def test_the_table_names_what_there_is():
    kinds = (lk.KMeans, lk.MiniBatchKMeans)
    parameters = {name for kind in kinds for name in inspect.signature(kind).parameters}
    for row in table_rows():
        assert set(re.findall(r"(\w+)=", row[2])) <= parameters
        for name in re.findall(r"`([A-Z]\w+)", row[2]):
            assert hasattr(lk, name)
