"""CONTRIBUTING's way to add an algorithm, followed to the letter in a copy of the project.

What is run there are the tests that take every registered algorithm, for the new one alone.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.algorithms import test_contract as contract

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
NAIVE, REGISTRY = "largek_dask/algorithms/naive.py", "largek_dask/algorithms/names.py"
CONTRACT = "tests/algorithms/test_contract.py"
OTHERS = [
    "tests/surface/test_every_algorithm.py",
    "tests/driver/test_other_objective.py",
    "tests/driver/test_options.py",
]
BOTH_TIERS = ("-m", "slow or not slow")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]


def blocks() -> dict[str, str]:
    """The code of the page, by the file that it says it is."""
    return {
        path: f"# {path}\n{code}"
        for path, code in re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    }


def copy_with_naive(folder: Path) -> Path:
    """A copy of the project with the page's algorithm."""
    for name in ("largek_dask", "tests"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / NAIVE).write_text(blocks()[NAIVE])
    _, imported, _, entry = blocks()[REGISTRY].splitlines()
    registry = (folder / REGISTRY).read_text()
    before = "from largek_dask.algorithms.nmbatch import"
    assert registry.count(before) == registry.count("\n}\n") == 1
    registry = registry.replace(before, f"{imported}\n{before}")
    (folder / REGISTRY).write_text(registry.replace("\n}\n", f"\n{entry}\n}}\n"))
    return folder


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a module of Python in the copy, where the copy is the project."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=clean | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def run_tests_of_naive(folder: Path, *words: str) -> tuple[set[str], set[str]]:
    """The names of the tests that have passed for the new algorithm, and of those that have not."""
    done = run(folder, "pytest", "-n", "0", "-v", "-p", "no:cacheprovider", *words)
    found = re.findall(r"^tests/\S+::(\w+)\[\S*naive\S*\] (\w+)", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    failed = {name for name, outcome in found if outcome != "PASSED"}
    assert done.returncode == bool(failed), done.stdout + done.stderr
    return {name for name, _ in found} - failed, failed


def contracts_tests() -> set[str]:
    """The tests of the contract that take any algorithm."""
    tests = {name: test for name, test in vars(contract).items() if name.startswith("test_")}
    takes = {
        name
        for name, test in tests.items()
        if {"name", "names"} & {*inspect.signature(test).parameters}
    }
    # Only those that are listed promise the same bits for other chunks.
    return takes - {"test_chunking"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_with_naive(tmp_path_factory.mktemp("project"))


def test_the_page_has_a_file_and_an_entry() -> None:
    assert list(blocks()) == [NAIVE, REGISTRY]
    assert len([line for line in blocks()[NAIVE].splitlines() if line.strip()]) <= 60
    assert not (ROOT / NAIVE).exists()


def test_its_style_is_that_of_the_project(project: Path) -> None:
    for check in (["check"], ["format", "--check"]):
        done = run(project, "ruff", *check, NAIVE, REGISTRY)
        assert done.returncode == 0, done.stdout


def test_it_is_had_in_every_way(project: Path) -> None:
    passed, failed = run_tests_of_naive(project, *BOTH_TIERS, "-k", "naive", *OTHERS)
    assert passed == {
        "test_a_problem_is_no_parameter",
        "test_it_is_the_same_wherever_it_is_asked_for",
    }
    assert not failed


def test_it_keeps_the_contract(project: Path) -> None:
    expected = contracts_tests()
    assert len(expected) > 9
    passed, failed = run_tests_of_naive(project, *BOTH_TIERS, "-k", "naive", CONTRACT)
    assert not failed
    assert passed == expected
