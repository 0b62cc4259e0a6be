"""`Dockerfile`: what hadolint says of it, and that it names what is there. It is not built here."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numcodecs.zstd
import pytest

from deploy import lean
from tests.deploy.running import ROOT
from tests.helpers.needs import program

TEXT = (ROOT / "Dockerfile").read_text()


@pytest.mark.slow
def test_hadolint_finds_nothing():
    command = [program("hadolint", "the extra deploy"), str(ROOT / "Dockerfile")]
    assert subprocess.run(command, capture_output=True, text=True).stdout == ""


def test_what_is_copied_is_there_and_not_ignored():
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", TEXT, re.M)
    names = {name for line in copied for name in line.split()}
    assert names >= {"pyproject.toml", "largek_dask"}
    for name in names:
        assert (ROOT / name).exists()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert {line[1:] for line in ignored if line.startswith("!")} == names


def stages():
    """What is in each stage, with what it begins from."""
    found = {}
    for base, name, text in re.findall(
        r"^FROM (\S+) AS (\S+)$(.*?)(?=^FROM |\Z)", TEXT, re.M | re.S
    ):
        found[name] = found.get(base, "") + text
    assert len(found) == len(re.findall("^FROM ", TEXT, re.M))
    return found


def test_the_last_stage_is_no_root_and_has_no_compiler():
    found = stages()
    assert list(found)[-1] == "last"
    assert found["last"].strip() == found["largek"].strip()
    for name in ("largek", "notebook"):
        assert re.findall(r"^USER (.*)$", found[name], re.M)[-1] == "1000:1000"
        assert "HEALTHCHECK" in found[name]
    # A notebook's pip is of another stage, and so is what it leaves behind.
    assert "pip" not in found["largek"] + found["notebook"]
    assert "jupyter" not in found["largek"]
    assert "apt-get" not in TEXT
    assert not re.search(r"(?i)secret|password|token", TEXT)


LOAD = """
import ctypes, sys
assert ctypes.PyDLL(sys.argv[1]).PyInit_zstd
"""
"""Load an extension of Python with all that it refers to, and find its entry."""


def test_a_library_is_smaller_without_what_debuggers_read__and_works(tmp_path):
    whole = Path(numcodecs.zstd.__file__)
    if not whole.read_bytes().startswith(lean.ELF64):
        pytest.skip("libraries of this machine are not those of an image")
    small = tmp_path / whole.name
    shutil.copy(whole, small)
    (tmp_path / "text.so").write_text("no library")
    command = [sys.executable, "-I", ROOT / "deploy" / "lean.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert re.fullmatch(r"libraries: \d+ MB, now \d+ MB\n", done.stdout), done.stderr
    assert small.stat().st_size == lean.needed(whole.read_bytes()) < whole.stat().st_size
    assert small.stat().st_mode == whole.stat().st_mode
    assert (tmp_path / "text.so").read_text() == "no library"
    subprocess.run([sys.executable, "-c", LOAD, small], check=True)
