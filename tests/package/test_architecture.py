"""The layers of the design hold, and functions stay short enough to read."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import largek_dask
from tests.helpers import needs

PACKAGE = Path(largek_dask.__file__).parent
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_layers_hold():
    """Every contract of pyproject.toml's import-linter section is kept."""
    needs.module("importlinter")
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    contracts = (ROOT / "pyproject.toml").read_text().count("[[tool.importlinter.contracts]]")
    assert contracts >= 5
    assert f"{contracts} kept, 0 broken" in done.stdout


EXTENDING = {"numba", "numba.extending", "numba.core", "numba.core.imputils"}
"""What numba documents for those who extend it: of ``numba.core`` only `DOCUMENTED`."""
DOCUMENTED = {"cgutils", "event"}


def test_private_parts_of_numba_are_used_in_one_module():
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").partition(".")[0] == "numba"
        and (
            node.module not in EXTENDING
            or any(name.name.startswith("_") for name in node.names)
            or (node.module == "numba.core" and {n.name for n in node.names} - DOCUMENTED)
        )
    }
    assert users == {"kernels/inlining.py"}


def test_functions_are_short():
    found = {
        f"{path.relative_to(PACKAGE)} {node.name}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= 80
    }
    assert not found, f"split them, none has more than 80 lines: {found}"


def test_public_names_resolve():
    for name in largek_dask.__all__:
        assert getattr(largek_dask, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Kmeans'"):
        largek_dask.Kmeans  # noqa: B018


def test_the_package_shows_what_is_public_and_no_more():
    """As a notebook completes it, also before anything is loaded."""
    code = "import largek_dask as lk; print(*dir(lk)); print(lk.errors.ParameterError.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shown, error = done.stdout.splitlines()
    public = [name for name in shown.split() if not name.startswith("__")]
    assert public == sorted(name for name in largek_dask.__all__ if name != "__version__")
    assert {"KMeans", "MiniBatchKMeans", "SphericalKMeans", "errors", "scores"} <= set(public)
    assert error == "ParameterError"
    assert set(dir(largek_dask)) >= {*public, "__version__", "__doc__"}
