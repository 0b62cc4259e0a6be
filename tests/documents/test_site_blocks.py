"""Code of the site's first steps and how-to guides runs as written."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import largek_dask as lk
from tests.documents.test_documents import README, run_python, run_shell
from tests.helpers import needs

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for pattern in ("index.md", "start/*.md", "howto/*.md", "reference/configuration.md")
    for path in DOCS.glob(pattern)
)


def blocks(page):
    """Language and code of every block that is run, those of one language in a row as one."""
    text = (DOCS / page).read_text()
    found = re.findall(r"^```(python|bash)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [
        (language, "\n".join(code for _, code in group))
        for language, group in groupby(found, key=lambda block: block[0])
    ]


@pytest.fixture
def folder(tmp_path):
    """What pages suppose to be there: rows as files of all kinds."""
    import h5py
    import pandas as pd

    rng = np.random.default_rng(0)
    x = 4 * rng.normal(size=(7, 6))[rng.integers(7, size=1_500)] + rng.normal(size=(1_500, 6))
    x = x.astype(np.float32)
    names = list("abcdef")
    np.save(tmp_path / "rows.npy", x)
    frame = pd.DataFrame(x, columns=names)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "parts").mkdir()
    for number, part in enumerate((frame[:700], frame[700:])):
        part.assign(id=7).to_parquet(tmp_path / "parts" / f"{number}.parquet", index=False)
    with h5py.File(tmp_path / "table.h5", "w") as file:
        file["group/rows"] = x
    write_cells(tmp_path / "cells.zarr", rng)
    return tmp_path


def write_cells(path, rng):
    """Counts of cells, in AnnData's layout."""
    counts = sp.csr_matrix(rng.poisson(0.3, size=(400, 60)).astype(np.float32))
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    rows = group.create_group("X")
    rows.attrs.update({"encoding-type": "csr_matrix", "shape": list(counts.shape)})
    for name in ("data", "indices", "indptr"):
        rows[name] = getattr(counts, name)
    variables = group.create_group("var")
    variables.attrs["_index"] = "_index"
    variables["_index"] = np.array([f"gene{i}" for i in range(60)])


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_code_of_a_page_runs(folder, page, monkeypatch):
    if page != "start/data.md":  # which makes it
        lk.ingest(np.load(folder / "rows.npy"), str(folder / "rows.zarr"), progress=False)
    if page == "start/hpc.md":
        pretend_slurm(folder, monkeypatch)
    if page in ("howto/embeddings.md", "howto/indexes.md"):
        needs.module("faiss", "faiss")
    if page == "howto/indexes.md":
        needs.module("lance")
    for language, code in blocks(page):
        run_python([code], folder) if language == "python" else run_shell(code, folder)
    if page == "start/hpc.md":
        assert "nworkers 1" in (folder / "srun.log").read_text()
        assert lk.load_model(str(folder / "run3" / "model.zarr")).n_clusters == 60


def pretend_slurm(folder, monkeypatch):
    """A command ``srun`` that runs what it is given here."""
    (folder / "bin").mkdir()
    srun = folder / "bin" / "srun"
    srun.write_text(f'#!/bin/bash\necho "$@" > {folder}/srun.log\nexec "$@"\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=":")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")


def test_every_page_for_beginners_has_code():
    assert {"start/install.md", "start/demo.md", "start/data.md", "start/cluster.md"} <= set(PAGES)
    for page in PAGES:
        if page.startswith("start/") and page != "start/index.md":
            assert blocks(page), page


def test_commands_that_are_not_run_are_those_of_the_readme():
    """README's own test starts the scheduler and the worker."""
    pattern = re.compile(r"^ *(dask (?:scheduler|worker) .*) \\\n *(--host .*)$", re.MULTILINE)
    for page in ("start/cluster.md", "howto/secure.md"):
        commands = pattern.findall((DOCS / page).read_text())
        assert commands
        assert set(commands) <= set(pattern.findall(README))
