"""What the documents say is true: code blocks run, tables are those of the committed results."""

from __future__ import annotations

import ast
import doctest
import importlib
import itertools
import json
import os
import pkgutil
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest

import largek_dask
from benchmarks import tables
from benchmarks.common import RESULTS
from benchmarks.quotes import QUOTES
from tests import folders

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = [
    ROOT / name
    for name in (
        *("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "deploy/README.md"),
        *tables.PAGES[1:],
    )
] + sorted(path for path in (ROOT / "docs").rglob("*.md") if "made" not in path.parts)

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
    assert len(codes) == 5
    for code in codes:
        run_python(code, tmp_path)
    assert (tmp_path / "labels.zarr").exists()
    assert (tmp_path / "density.zarr").exists()


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


def test_the_readme_says_which_python():
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert f"Python {asked.removeprefix('>=')} or later" in README


@pytest.mark.timeout(900)
def test_shell_block_runs(tmp_path):
    """But for its end, which takes minutes: tests of warmup run that command, and its processes."""
    [block] = [block for block in blocks("bash") if "largek ingest" in block]
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


def test_the_two_commands_are_those_of_ci():
    """CI runs what the README tells a newcomer to run."""
    ci = (ROOT / ".ci" / "run").read_text()
    assert "-e '.[dev]'" in README
    assert "-e '.[dev]'" in ci
    assert ".venv/bin/python -m pytest -n logical --dist loadfile\n" in README
    assert 'bin/python" -m pytest -n logical --dist loadfile\n' in ci


@pytest.mark.parametrize("name", tables.TABLES)
def test_tables_are_those_of_the_results(name):
    table = tables.TABLES[name]
    shown = tables.read_table(ROOT / table.page, name)
    assert shown == table.made(), "python -m benchmarks.tables writes all of them anew"
    # The command that makes it stands beneath it, and runs.
    commands = set(re.findall(r"`python -m ([\w.]+)", shown))
    assert commands == {"tests.faults" if name == "faults" else f"benchmarks.{table.result}"}


@pytest.mark.parametrize("name", QUOTES)
def test_quoted_figures_are_those_of_the_results(name):
    source, make = QUOTES[name]
    told = make(json.loads((RESULTS / f"{source}.json").read_text()))
    shown = [
        text for page in DOCUMENTS for quoted, text in tables.read_quotes(page) if quoted == name
    ]
    assert shown, f"nowhere is {name} quoted"
    assert set(shown) == {told}, "python -m benchmarks.tables writes all of them anew"


def test_every_marker_is_one_that_is_compared():
    for page in DOCUMENTS:
        text = page.read_text()
        marked = re.findall(r"<!-- (\S+):begin -->", text)
        here = [name for name, table in tables.TABLES.items() if ROOT / table.page == page]
        here += [folders.NAME] if page == folders.PAGE else []
        assert sorted(marked) == sorted(here)
        quoted = [name for name, _ in tables.read_quotes(page)]
        assert len(re.findall(r"<!-- quote", text)) == len(quoted)
        assert set(quoted) <= set(QUOTES)


def test_the_map_of_folders_is_the_tree():
    made = folders.folders()
    shown = tables.read_table(folders.PAGE, folders.NAME)
    assert shown == made, f"python -m tests.folders writes this:\n{made}"
    for kind in ("kernels/emit", "kernels/bounds", "model", "algorithms"):
        assert f"| `largek_dask/{kind}/` |" in made
    nameless = {p.parent for p in folders.PACKAGE.rglob("*.py")} - {
        folders.PACKAGE,
        *folders.below(folders.PACKAGE),
    }
    assert not nameless, "folders without an __init__.py"


def test_a_folder_says_what_it_is_for(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "ROOT", tmp_path)
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "__init__.py").write_text('"""Rows, ``as`` they\nare. More."""')
    assert folders.purpose(tmp_path / "part") == "Rows, `as` they are"
    (tmp_path / "part" / "__init__.py").write_text("import math")
    with pytest.raises(ValueError, match=r"part/__init__\.py does not say what it is for"):
        folders.purpose(tmp_path / "part")


def headings(page: Path) -> list[str]:
    """The headings of a page, outside code."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return re.findall(r"^#+ (.*)$", text, re.MULTILINE)


def anchor(heading: str) -> str:
    """What a heading is called in a link, as GitHub does."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links(page: Path) -> list[str]:
    """Where the links of a page lead, but for other sites."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(
        r"^\[\w+\]: (\S+)$", text, re.MULTILINE
    )
    return [target for target in found if "://" not in target]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in links(page):
        path, _, part = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), f"{page.name} links to {target}"
        # What is made from the code has its headings on the site only, where Sphinx looks for them.
        if part and "<!-- made: " not in there.read_text():
            assert part in [anchor(heading) for heading in headings(there)], (
                f"{page.name}: {target}"
            )
    text = page.read_text()
    for name in re.findall(r"\]\[(\w+)\]", text):
        assert f"\n[{name}]: " in text, f"{page.name} does not say where [{name}] leads"


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page):
    for name in re.findall(r"`([\w/]+(?:\.py|\.md|/))`", page.read_text()):
        places = (ROOT, ROOT / "largek_dask", ROOT / "tests", page.parent)
        assert any((place / name).exists() for place in places), f"{page.name}: {name}"


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_no_line_of_text_begins_with_a_comment(page):
    """Markdown takes it for HTML: links in the rest of the line are not made, a paragraph ends."""
    lines = page.read_text().splitlines()
    assert not [line for line in lines if re.match(r"\s*<!-- (quote|end)", line)]


def test_contents_of_the_results_are_their_headings():
    page = ROOT / tables.PAGES[2]
    title, contents, *parts = headings(page)
    assert (title, contents) == ("Results", "Contents")
    listed = page.read_text().split("## Contents")[1].split("\n## ")[0].strip().splitlines()
    assert listed == [f"- [{part}](#{anchor(part)})" for part in parts]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_lines_can_be_read(page):
    """Tables and code apart, which have no lines to break."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    long = [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long


NO_ENGLISH = re.compile(r"manie" r"th|so much or so " r"many|every so " r"many", re.IGNORECASE)


def field_docs(source: str) -> list[str]:
    """What stands beneath fields and constants."""
    found = []
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", [])
        for field, told in itertools.pairwise(body if isinstance(body, list) else []):
            match field, told:
                case ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str(text))):
                    found.append(text)
    return found


@pytest.mark.parametrize("folder", ["largek_dask", "benchmarks", "tests"])
def test_words_can_be_read_once(folder):
    for path in (ROOT / folder).rglob("*.py"):
        text = path.read_text()
        assert not NO_ENGLISH.search(text), path
        for told in field_docs(text):
            assert not told.startswith(("Of ", "Whose ")), f"{path}: {told!r} has no noun"
            assert not re.search("so (many|much)", told, re.IGNORECASE), f"{path}: {told!r}"


def test_documents_can_be_read_once():
    for page in DOCUMENTS:
        assert not NO_ENGLISH.search(page.read_text()), page


def test_a_field_without_a_noun_is_found():
    text = (
        'class A:\n    size: int = 3\n    """Of the file."""\n    """More."""\nN = 1\n"""Of all."""'
    )
    assert field_docs(text) == ["Of all.", "Of the file."]


def test_design_is_a_record_of_decisions():
    """Tables are in the results, and how to use a thing is in its docstring."""
    lines = (ROOT / tables.PAGES[1]).read_text().splitlines()
    assert len(lines) <= 350
    assert not [line for line in lines if line.startswith("|")]


def test_text_of_a_table_is_wrapped_but_not_into_a_list():
    words = "word " * 19
    told = tables.wrapped(f"| {'x' * 150} |\n\n{words}* marked, {words}`python -m made --write`.")
    row, _, *text = told.splitlines()
    assert len(row) > 120
    assert len(text) > 1
    assert all(len(line) <= 100 for line in text)
    assert not any(line.startswith("*") for line in text)
    assert "`python -m made --write`" in told
    assert " ".join(text) == f"{words}* marked, {words}`python -m made --write`."


def test_a_document_without_the_markers_is_an_error(tmp_path):
    (tmp_path / "page.md").write_text("No markers.")
    with pytest.raises(ValueError, match="no markers for a table 'auto'"):
        tables.read_table(tmp_path / "page.md", "auto")


def test_a_new_result_is_written_into_every_document(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    for path in tables.PAGES:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    before = {path: (ROOT / path).read_text() for path in tables.PAGES}
    result = json.loads((RESULTS / "overhead.json").read_text())
    tables.write_tables("overhead", result)
    assert {path: (tmp_path / path).read_text() for path in tables.PAGES} == before
    result["found"]["empty_cluster_64"] = 77.7
    tables.write_tables("overhead", result)
    assert "| 77.70 ms |" in (tmp_path / "benchmarks/RESULTS.md").read_text()
    assert "<!-- quote empty-pass -->78 ms<!-- end -->" in (tmp_path / tables.PAGES[1]).read_text()
