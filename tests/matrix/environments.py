"""Interpreters of this machine, and new environments with the newest or the lowest dependencies."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
SUITE = Path(__file__).parent / "suite.py"
UV = (sys.executable, "-m", "uv")
RESOLUTIONS = {"newest": "highest", "lowest": "lowest-direct"}
"""What uv calls them."""
EXTRAS = ("s3", "parquet", "hdf5", "plots")

Record = dict[str, Any]


class InstallError(Exception):
    """An environment could not be made; the message is the installer's."""


def versions() -> list[str]:
    """The versions of Python that pyproject.toml says the package is for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    told = (
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", name)
        for name in project["classifiers"]
    )
    return [found[1] for found in told if found]


def version_of(python: Path) -> str | None:
    """The version of an interpreter, such as "3.11"; None if it does not run."""
    ask = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(ask, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def interpreter(version: str, given: Iterable[Path] = ()) -> Path | None:
    """An interpreter of this version: one that is given, this one, on the path, or of pyenv."""
    candidates = [*given, Path(sys.executable)]
    if found := shutil.which(f"python{version}"):
        candidates.append(Path(found))
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    candidates += sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    # A command of pyenv may be on the path and not run: its version is not chosen.
    return next((python for python in candidates if version_of(python) == version), None)


def build_wheel(folder: Path) -> Path:
    """The package's wheel, made in this folder."""
    _uv("build", "--wheel", "--quiet", "--out-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def make(folder: Path, python: Path, resolution: str, wheel: Path) -> Path:
    """Make an environment in a new folder.

    Parameters
    ----------
    folder : Path
    python : Path
        The interpreter.
    resolution : {"newest", "lowest"}
        Versions of the dependencies that pyproject.toml names: the newest, or the lowest that it
        allows and that are built for this Python. What these need in turn is the newest.
    wheel : Path
        The package.

    Returns
    -------
    Path
        The environment's interpreter.

    Raises
    ------
    InstallError
    """
    own, pinned = folder / "bin" / "python", folder / "requirements.txt"
    _uv("venv", "--quiet", "--python", python, folder)
    _uv(
        *("pip", "compile", "--quiet", "--resolution", RESOLUTIONS[resolution]),
        *("--only-binary", ":all:", "--python", own, "--output-file", pinned),
        *(option for extra in EXTRAS for option in ("--extra", extra)),
        ROOT / "pyproject.toml",
    )
    _uv("pip", "sync", "--quiet", "--python", own, pinned)
    _uv("pip", "install", "--quiet", "--no-deps", "--python", own, wheel)
    return own


def _uv(*arguments: object) -> None:
    done = subprocess.run([*UV, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise InstallError(" ".join(done.stderr.split()) or f"uv {arguments[0]} failed")


def run_suite(
    python: Path, checks: Sequence[str], folder: Path, sources: Path | None = None
) -> list[Record]:
    """What the checks told, run in an environment.

    Parameters
    ----------
    python : Path
        The environment's interpreter.
    checks : sequence of str
        Names in ``suite.CHECKS``.
    folder : Path
        Where it is run: away from the project, so that the installed package is found.
    sources : Path, optional
        Where the package lies if it is not installed there.

    Returns
    -------
    list of dict
        One for each check; one that ended the process, and those after it, have an error.
    """
    environment = {name: told for name, told in os.environ.items() if name != "PYTHONPATH"}
    if sources is None:
        # Of its own, as few versions are kept in a user's: and kernels are compiled once more.
        environment.setdefault("DASK_LARGEK__KERNELS__CACHE_DIR", str(folder / "kernels"))
    else:
        environment["PYTHONPATH"] = str(sources)
    done = subprocess.run(
        [python, SUITE, *checks], cwd=folder, env=environment, capture_output=True, text=True
    )
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    error = f"the process ended with {done.returncode} and said: {last}"
    told = {record["check"]: record for record in records}
    return [told.get(name, {"check": name, "seconds": 0.0, "error": error}) for name in checks]
