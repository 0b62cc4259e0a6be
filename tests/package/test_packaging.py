"""The wheel: what lies in it, and its page, whose addresses hold outside the repository."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

from largek_dask.cli.slurm import FILES
from largek_dask.version import __version__
from tests.helpers import needs

needs.module("hatchling")
needs.module("build")
from hatch_build import links, standalone  # noqa: E402  (needs hatchling)

ROOT = Path(__file__).parents[2]
HOST = "https://host.example/owner/largek_dask"
SOURCES = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE")

pytestmark = pytest.mark.slow


def build(folder: Path, repository: str) -> ZipFile:
    """The wheel of a copy of the project that says where its repository is."""
    shutil.copytree(
        ROOT / "largek_dask", folder / "largek_dask", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    project = folder / "pyproject.toml"
    told = re.sub(r'^repository = ".*"$', f'repository = "{repository}"', project.read_text(),
                  count=1, flags=re.MULTILINE)  # fmt: skip
    project.write_text(told)
    assert tomllib.loads(told)["tool"]["hatch"]["metadata"]["hooks"]["custom"] == {
        "repository": repository
    }
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
    return build(tmp_path_factory.mktemp("wheel"), HOST)


def test_the_wheel_is_the_package_and_nothing_else(wheel: ZipFile) -> None:
    assert (ROOT / "largek_dask" / "DESIGN.md").exists()
    names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in names} == {"largek_dask"}
    templates = {f"largek_dask/cli/templates/{name}" for name in (*FILES, "make.sh", "tls.yaml")}
    assert templates <= set(names)
    others = {Path(name).suffix for name in set(names) - templates}
    assert others == {".py", ".typed", ".css", ".js"}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "largek_dask").rglob("*.py")}
    assert modules <= set(names)


def test_addresses_of_the_project(wheel: ZipFile) -> None:
    told = dict(entry.split(", ", 1) for entry in metadata(wheel).get_all("Project-URL", []))
    assert told == links(HOST, f"v{__version__}")
    assert told["Source"] == HOST
    assert told["Changelog"] == f"{HOST}/blob/v{__version__}/CHANGELOG.md"
    # What is named is there, but for the host's own pages.
    for address in told.values():
        if "/blob/" in address:
            assert (ROOT / address.split(f"/v{__version__}/")[1]).exists()


def test_the_page_has_absolute_addresses(wheel: ZipFile) -> None:
    page = metadata(wheel).get_payload()
    assert isinstance(page, str)
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    begin = f"{HOST}/blob/v{__version__}/", f"{HOST}/raw/v{__version__}/"
    relative = [t for t in targets if not t.startswith(("#", *begin))]
    assert relative == []
    pictures = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", page)
    assert len(pictures) >= 3
    for picture in pictures:
        assert picture.startswith(begin[1])
        assert (ROOT / picture.removeprefix(begin[1])).suffix == ".png"
        assert (ROOT / picture.removeprefix(begin[1])).exists()


def test_without_a_repository_the_page_leads_nowhere_wrong(tmp_path: Path) -> None:
    told = metadata(build(tmp_path, ""))
    assert "Project-URL" not in told
    page = told.get_payload()
    assert isinstance(page, str)
    assert re.findall(r"\]\((?!#)", page) == []
    assert "*256 codewords ordered by size; a photograph beside its reconstruction" in page
    assert "- CONTRIBUTING.md: a map of the folders" in page


def test_links_pictures_and_code() -> None:
    page = """
A [link
over lines](docs/a.md#part), ![a picture](b.png), [here](#below), [there](https://x.example/y).
```python
table[0](rows)
```
"""
    assert (
        standalone(page, HOST, "v1")
        == f"""
A [link
over lines]({HOST}/blob/v1/docs/a.md#part), ![a picture]({HOST}/raw/v1/b.png), [here](#below), \
[there](https://x.example/y).
```python
table[0](rows)
```
"""
    )
    assert (
        standalone(page, "", "v1")
        == """
A link
over lines, *a picture*, [here](#below), [there](https://x.example/y).
```python
table[0](rows)
```
"""
    )
