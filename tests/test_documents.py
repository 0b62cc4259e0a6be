"""What the documents say is true: code blocks run, tables are those of the committed results."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import largek_dask

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DESIGN = "largek_dask/DESIGN.md"
TABLES = {
    "lloyd": ("README.md", "lloyd", "table"),
    "overhead": ("README.md", "overhead", "table"),
    "start": ("README.md", "start", "table"),
    "nmbatch": ("README.md", "nmbatch", "table"),
    "bounds": (DESIGN, "nmbatch", "bounds_table"),
    "rivals": (DESIGN, "nmbatch", "rivals_table"),
    "figures": (DESIGN, "figures", "table"),
    "workers": (DESIGN, "workers", "table"),
    "kernels": (DESIGN, "kernels", "table"),
    "balance": (DESIGN, "balance", "table"),
    "sparse": (DESIGN, "sparse", "table"),
}
"""Name of the markers: the page, the benchmark, and its function that makes the table."""

MODULES = [
    module.name
    for module in pkgutil.walk_packages(largek_dask.__path__, "largek_dask.")
    if not module.name.endswith("__main__")
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_python_blocks_run(tmp_path):
    """In the order of the page, each in a process of its own, in one folder."""
    assert len(blocks("python")) == 2
    for code in blocks("python"):
        script = tmp_path / "block.py"
        script.write_text(code.replace("/data/", f"{tmp_path}/"))
        done = subprocess.run(
            [sys.executable, "-W", "error", str(script)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "labels.zarr").exists()


def test_shell_block_runs(tmp_path):
    [code] = [block for block in blocks("bash") if "largek ingest" in block]
    np.savetxt(
        tmp_path / "rows.csv",
        np.random.default_rng(0).normal(size=(5000, 4)),
        delimiter=",",
        header="a,b,c,d",
        comments="",
    )
    folder = Path(sys.executable).parent
    assert shutil.which("largek", path=str(folder)), "the console script is not installed"
    done = subprocess.run(
        ["bash", "-e", "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_two_commands_are_those_of_ci():
    """CI runs what the README tells a newcomer to run."""
    ci = (ROOT / ".ci" / "run").read_text()
    assert "-e '.[dev]'" in README
    assert "-e '.[dev]'" in ci
    assert ".venv/bin/python -m pytest\n" in README
    assert 'bin/python" -m pytest\n' in ci


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_those_of_the_results(name):
    page, module, make = TABLES[name]
    tables = importlib.import_module("benchmarks.tables")
    benchmark = importlib.import_module(f"benchmarks.{module}")
    shown = tables.read_table(ROOT / page, name).strip()
    file = ROOT / "benchmarks" / "results" / f"{module}.json"
    if shown.startswith("Not measured yet"):
        # Never said where there is something to show.
        assert name == "rivals" or not file.exists()
        assert shown == f"Not measured yet: `python -m benchmarks.{module} --write`."
        return
    assert shown == getattr(benchmark, make)(json.loads(file.read_text())).strip()


def test_every_marker_is_a_table_that_is_compared():
    for page in ("README.md", DESIGN):
        marked = re.findall(r"<!-- (\S+):begin -->", (ROOT / page).read_text())
        assert sorted(marked) == sorted(name for name, about in TABLES.items() if about[0] == page)


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
