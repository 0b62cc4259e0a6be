"""The layers of the design hold, and modules stay small enough to read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import largek_dask

PACKAGE = Path(largek_dask.__file__).parent
ROOT = Path(__file__).parent.parent


def test_layers_hold():
    """Every contract of pyproject.toml's import-linter section is kept."""
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    contracts = (ROOT / "pyproject.toml").read_text().count("[[tool.importlinter.contracts]]")
    assert contracts >= 5
    assert f"{contracts} kept, 0 broken" in done.stdout


def test_njit_comes_from_one_module():
    """Only `kernels/jit.py` decides how code is compiled and cached."""
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(
            line.startswith(("import numba", "from numba import")) and "njit" in line
            for line in path.read_text().splitlines()
        )
    }
    assert users <= {"kernels/jit.py"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.name)
def test_modules_are_small(path):
    assert len(path.read_text().splitlines()) <= 450, "split it: modules stay around 400 lines"


def test_public_names_resolve():
    for name in largek_dask.__all__:
        assert getattr(largek_dask, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Kmeans'"):
        largek_dask.Kmeans  # noqa: B018
