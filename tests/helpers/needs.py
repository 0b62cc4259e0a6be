"""Skip tests that need what a machine may lack; with ``CI=true`` they fail instead."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skip the test for this reason, or fail it in CI, where ``.ci/run`` installs what it needs."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason} (CI=true)")
    # Some tests need it to be collected at all.
    pytest.skip(reason, allow_module_level=True)


def module(name: str, extra: str = "dev") -> ModuleType:
    """Import a module that an extra installs."""
    try:
        return importlib.import_module(name)
    except ImportError:
        missing(f"{name} is not installed: pip install 'largek_dask[{extra}]'")


def program(name: str, package: str) -> str:
    """Return the path of a program, of this environment or of the machine."""
    found = shutil.which(name, path=Path(sys.prefix) / "bin") or shutil.which(name)
    if found is None:
        missing(f"{name} is not installed: {package} has it")
    return found


def root(what: str) -> None:
    """Need the rights of root."""
    if os.geteuid() != 0:
        missing(f"{what} by root only")
