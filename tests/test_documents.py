"""What the documents say is true: code blocks run, tables are those of the committed results."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import pkgutil
import re
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
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
    "service": (DESIGN, "service", "table"),
    "faults": (DESIGN, "faults", "table"),
    "auto": (DESIGN, "auto", "table"),
    "auto_scale": (DESIGN, "auto_scale", "table"),
    "auto_parts": (DESIGN, "auto_parts", "table"),
    "far": (DESIGN, "far", "table"),
    "labels": (DESIGN, "labels", "table"),
    "outlier": (DESIGN, "outlier", "table"),
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


def run_python(code: str, folder: Path) -> None:
    """Run a block of the page in a process of its own."""
    script = folder / "block.py"
    script.write_text(code.replace("/data/", f"{folder}/"))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def run_shell(code: str, folder: Path) -> None:
    """Run a block of the page where `largek` and `dask` are installed."""
    scripts = Path(sys.executable).parent
    assert shutil.which("largek", path=str(scripts)), "the console script is not installed"
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", code.replace("/data/", f"{folder}/")],
        cwd=folder,
        env=os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_python_blocks_run(tmp_path):
    """In the order of the page, each in a process of its own, in one folder."""
    codes = [code for code in blocks("python") if "lk.connect" not in code]
    assert len(codes) == 2
    for code in codes:
        run_python(code, tmp_path)
    assert (tmp_path / "labels.zarr").exists()


def test_cluster_section(tmp_path):
    """Scheduler and workers as they are typed, a job submitted, come back to, and from a shell."""
    lk = largek_dask
    x = np.random.default_rng(0).normal(size=(5000, 4)).astype(np.float32)
    lk.ingest(x, str(tmp_path / "rows.zarr"), progress=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    [commands] = [code for code in blocks("bash") if "dask scheduler" in code]
    codes = [code for code in blocks("python") if "lk.connect" in code]
    [shell] = [code for code in blocks("bash") if "largek submit" in code]
    processes: list[psutil.Process] = []
    with ExitStack() as stack:
        # One worker does here: the second terminal's command is the third's.
        for command in dict.fromkeys(commands.splitlines()):
            words = command.replace("/data/", f"{tmp_path}/").replace("8786", port).split()
            if words[1] == "scheduler":
                words += ["--port", port]
                words[words.index("127.0.0.1:8787")] = "127.0.0.1:0"
            log = stack.enter_context((tmp_path / "dask.log").open("a"))
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / words[0]), *words[1:]],
                stdout=log,
                stderr=log,
            )
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            processes.append(psutil.Process(process.pid))
        assert len(codes) == 2
        for code in codes:
            run_python(code.replace("8786", port), tmp_path)
        assert_reached_from_here_only(processes)
        run_shell(shell.replace("8786", port), tmp_path)
    models = {lk.load_model(str(tmp_path / f"run{i}" / "model.zarr")).n_clusters for i in (1, 2)}
    assert models == {50, 60}
    assert lk.load_model(str(tmp_path / "model.zarr")).n_clusters == 60


def assert_reached_from_here_only(processes):
    """Scheduler, worker, nanny and all dashboards listen on loopback."""
    all_of_them = [p for process in processes for p in (process, *process.children(recursive=True))]
    heard = [
        found.laddr.ip
        for process in all_of_them
        for found in process.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN
    ]
    # Each of the three has an address for Dask, and the scheduler and the worker a dashboard.
    assert len(heard) >= 5
    assert set(heard) == {"127.0.0.1"}


def test_the_readme_says_what_is_not_safe():
    assert "(SECURITY.md)" in README


def test_shell_block_runs(tmp_path):
    [code] = [block for block in blocks("bash") if "largek ingest" in block]
    np.savetxt(
        tmp_path / "rows.csv",
        np.random.default_rng(0).normal(size=(5000, 4)),
        delimiter=",",
        header="a,b,c,d",
        comments="",
    )
    run_shell(code, tmp_path)


def test_the_two_commands_are_those_of_ci():
    """CI runs what the README tells a newcomer to run."""
    ci = (ROOT / ".ci" / "run").read_text()
    assert "-e '.[dev]'" in README
    assert "-e '.[dev]'" in ci
    assert ".venv/bin/python -m pytest -n logical --dist loadfile\n" in README
    assert 'bin/python" -m pytest -n logical --dist loadfile\n' in ci


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
