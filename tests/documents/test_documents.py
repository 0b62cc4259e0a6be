"""Code in README and docstrings runs, and links in documents resolve."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest

import largek_dask
from tests.documents import folders

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(path for path in (ROOT / "docs").rglob("*.md") if "made" not in path.parts),
    *(ROOT / page for page in ("deploy/README.md", "largek_dask/DESIGN.md")),
]
PACKAGE = Path(largek_dask.__file__).parent
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text()
)


def blocks(language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_examples_in_docstrings():
    for name in WITH_EXAMPLES:
        failed, tried = doctest.testmod(importlib.import_module(name))
        assert (failed, tried > 0) == (0, True), name


def members(name: str) -> Iterator[tuple[str, object]]:
    """Yield a public name and, of a class of this package, its public methods and properties."""
    value = getattr(largek_dask, name)
    yield name, value
    for attribute in dir(value) if isinstance(value, type) else ():
        kind = inspect.getattr_static(value, attribute)
        if not attribute.startswith("_") and (
            inspect.isroutine(kind) or isinstance(kind, property)
        ):
            yield f"{name}.{attribute}", getattr(value, attribute)


def test_everything_public_is_described():
    found = dict(pair for name in largek_dask.__all__ for pair in members(name))
    assert len(found) > 2 * len(largek_dask.__all__)
    assert not [
        name for name, value in found.items() if callable(value) and not inspect.getdoc(value)
    ]


RUN_ALL = """
import runpy, sys

if __name__ == "__main__":
    for block in sys.argv[1:]:
        runpy.run_path(block, run_name="__main__")
"""


SLOW_DISK = "ignore:Creating scratch directories"
"""Dask's warning on a busy machine, which says nothing about the code of a page."""


def run_python(codes: Iterable[str], folder: Path) -> None:
    """Run blocks of a page one after the other, in one process."""
    names = []
    for number, code in enumerate(codes):
        names.append(f"block{number}.py")
        (folder / names[-1]).write_text(code.replace("/data/", f"{folder}/"))
    (folder / "run_all.py").write_text(RUN_ALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", SLOW_DISK, "run_all.py", *names],
        cwd=folder,
        capture_output=True,
        text=True,
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


@pytest.mark.slow
def test_readme_blocks_run(tmp_path):
    """In the order of the page, with fewer rows."""
    codes = [code for code in blocks("python") if "lk.connect" not in code]
    assert len(codes) == 3
    assert "(20_000, 16)" in codes[0]
    run_python([code.replace("20_000", "3_000") for code in codes], tmp_path)
    [reports] = [code for code in blocks("bash") if "largek report" in code]
    run_shell(reports, tmp_path)
    assert (tmp_path / "run1-report.html").exists()


@pytest.mark.slow
def test_cluster_section(tmp_path):
    """Start scheduler and worker as typed; submit and follow jobs from Python and the shell."""
    lk = largek_dask
    x = np.random.default_rng(0).normal(size=(5000, 4)).astype(np.float32)
    lk.ingest(x, str(tmp_path / "rows.zarr"), progress=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    [commands] = [code for code in blocks("bash") if "dask scheduler" in code]
    codes = [code for code in blocks("python") if "lk.connect" in code]
    [shell] = [c for c in blocks("shell", "docs/start/cluster.md") if "largek submit" in c]
    processes: list[psutil.Process] = []
    with ExitStack() as stack:
        for command in commands.replace("\\\n", "").splitlines():
            words = command.replace("/data/", f"{tmp_path}/").replace("8786", port).split()
            if words[1] == "scheduler":
                words += ["--port", port]
                words[words.index("127.0.0.1:8787")] = "127.0.0.1:0"
            log = stack.enter_context((tmp_path / "dask.log").open("a"))
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / words[0]), *words[1:]], stdout=log, stderr=log
            )
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            processes.append(psutil.Process(process.pid))
        assert len(codes) == 2
        run_python([code.replace("8786", port) for code in codes], tmp_path)
        assert_reached_from_here_only(processes)
        run_shell(shell.replace("8786", port), tmp_path)
    models = {lk.load_model(str(tmp_path / f"run{i}" / "model.zarr")).n_clusters for i in (1, 2)}
    assert models == {50, 60}


def assert_reached_from_here_only(processes):
    """Scheduler, worker, nanny and all dashboards listen on loopback."""
    all_of_them = [p for process in processes for p in (process, *process.children(recursive=True))]
    addresses = [
        found.laddr.ip
        for process in all_of_them
        for found in process.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN
    ]
    # Each of the three has an address for Dask, and the scheduler and the worker a dashboard.
    assert len(addresses) >= 5
    assert set(addresses) == {"127.0.0.1"}


def test_the_readme_says_which_python():
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert f"Python {asked.removeprefix('>=')} or later" in README


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_commands_at_a_glance_run(tmp_path):
    """All but the last, which takes minutes: tests of warmup run that command."""
    [block] = blocks("bash", "docs/reference/cli.md")
    code, last, compiles = block.partition("largek warmup ")
    assert last
    assert "\n" not in compiles.strip(), "nothing follows"
    np.savetxt(
        tmp_path / "rows.csv",
        np.random.default_rng(0).normal(size=(5000, 4)),
        delimiter=",",
        header="a,b,c,d",
        comments="",
    )
    run_shell(code, tmp_path)


def test_the_map_of_folders_is_the_tree():
    made = folders.folders()
    assert made in folders.PAGE.read_text(), (
        f"python -m tests.documents.folders writes this:\n{made}"
    )


def links(page: Path) -> list[str]:
    """Targets of the links of a page, except those of other sites."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    found += re.findall(r"^\[\w+\]: (\S+)$", text, re.MULTILINE)
    return [target for target in found if "://" not in target]


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(page: Path, target: str) -> bool:
    path, _, part = target.partition("#")
    there = page.parent / path if path else page
    if not there.exists():
        return False
    # What is made from the code has its headings on the site only, where Sphinx looks for them.
    return not part or part in anchors(there)


def test_links_lead_somewhere():
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in DOCUMENTS
        for target in links(page)
        if not leads_somewhere(page, target)
    ]
    for page in DOCUMENTS:
        text = page.read_text()
        used = set(re.findall(r"\]\[(\w+)\]", text))
        broken += [f"{page.name}: [{name}]" for name in used if f"\n[{name}]: " not in text]
    assert not broken


def test_named_files_exist():
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in DOCUMENTS
        for name in re.findall(r"`([\w/]+(?:\.py|\.md|/))`", page.read_text())
        if not any(
            (folder / name).exists()
            for folder in (ROOT, ROOT / "largek_dask", ROOT / "tests", page.parent)
        )
    ]
    assert not missing
