"""The wheel: what lies in it, and its page, without links that lead nowhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

from largek_dask.cli.slurm import FILES
from tests.helpers import needs

needs.module("hatchling")
needs.module("hatch_fancy_pypi_readme")
needs.module("build")

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE")

pytestmark = pytest.mark.slow


def build(folder: Path) -> ZipFile:
    """The wheel of a copy of the project."""
    shutil.copytree(
        ROOT / "largek_dask", folder / "largek_dask", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    (wheel,) = (folder / "dist").iterdir()
    return ZipFile(wheel)


def metadata(wheel: ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    return build(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_is_the_package_and_nothing_else(wheel: ZipFile) -> None:
    assert (ROOT / "largek_dask" / "DESIGN.md").exists()
    names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in names} == {"largek_dask"}
    templates = {f"largek_dask/cli/templates/{name}" for name in (*FILES, "start.sh")}
    assert templates <= set(names)
    others = {Path(name).suffix for name in set(names) - templates}
    assert others == {".py", ".typed", ".css", ".js", ".html", ".yaml"}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "largek_dask").rglob("*.py")}
    assert modules <= set(names)


def test_the_page_leads_nowhere_wrong(wheel: ZipFile) -> None:
    told = metadata(wheel)
    assert told["Description-Content-Type"] == "text/markdown"
    page = told.get_payload()
    assert isinstance(page, str)
    assert re.findall(r"\]\((?!#|https://)", page) == []
    assert "*256 codewords ordered by size; a photograph beside its reconstruction" in page
    assert "- CONTRIBUTING.md, CHANGELOG.md, SECURITY.md." in page
    # Only links have changed: the lines of code are those of README.md.
    code = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    assert code.findall(page) == code.findall((ROOT / "README.md").read_text())
