"""What the matrix says of environments: found, installed, told; the suite itself, of this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.matrix import __main__ as matrix
from tests.matrix import environments, suite
from tests.matrix.environments import InstallError, interpreter, run_suite, version_of, versions

THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
EXPECTED = {"auto": "a1", "lloyd": "b2"}
GOOD = (
    {"check": "import", "seconds": 1.0, "versions": {"numpy": "2.0.2"}},
    {"check": "fits", "seconds": 1.0, "digests": EXPECTED},
)
OTHER_BITS = (*GOOD[:1], GOOD[1] | {"digests": EXPECTED | {"lloyd": "b3"}})
FAILED = (*GOOD[:1], {"check": "fits", "seconds": 0.0, "error": "ValueError: none"})


def command(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_versions_are_those_of_the_project() -> None:
    assert versions()[0] == "3.11"
    assert "3.13" in versions()


def test_an_interpreter_is_one_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert interpreter(THIS) == Path(sys.executable)
    broken = command(tmp_path / "python3.99", "exit 127")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert version_of(broken) is None
    assert interpreter("3.99") is None
    bin_folder = tmp_path / "pyenv" / "versions" / "3.99.1" / "bin"
    bin_folder.mkdir(parents=True)
    own = command(bin_folder / "python3.99", "echo 3.99")
    assert interpreter("3.99") == own
    given = command(tmp_path / "mine", "echo 3.99")
    assert interpreter("3.99", [broken, given]) == given


def test_what_cannot_be_installed_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uv = command(tmp_path / "uv", "echo no numpy for this Python >&2; exit 1")
    monkeypatch.setattr(environments, "UV", (str(uv),))
    with pytest.raises(InstallError, match=r"^no numpy for this Python$"):
        environments.make(tmp_path / "env", Path(sys.executable), "lowest", tmp_path / "x.whl")
    found = matrix.tried("3.99", Path(sys.executable), "lowest", tmp_path / "x.whl", ["fits"])
    assert found.faults({}) == {"install": "no numpy for this Python"}


def test_dependencies_are_asked_for_as_they_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    uv = command(tmp_path / "uv", f'echo "$@" >> {said}')
    monkeypatch.setattr(environments, "UV", (str(uv),))
    for resolution in ("newest", "lowest"):
        own = environments.make(tmp_path / "env", Path("python3.99"), resolution, Path("x.whl"))
        assert own == tmp_path / "env" / "bin" / "python"
    lines = said.read_text().splitlines()
    assert ["--resolution highest" in lines[1], "--resolution lowest-direct" in lines[5]] == [1, 1]
    for extra in environments.EXTRAS:
        assert f"--extra {extra}" in lines[1]
    assert lines[3].endswith("x.whl")


def test_a_process_that_ends_is_a_fault_of_the_check(tmp_path: Path) -> None:
    python = command(tmp_path / "python", "echo '{\"check\": \"fits\", \"seconds\": 1}'; "
                     "echo warned >&2; echo Segmentation fault >&2; exit 139")  # fmt: skip
    fits, job = run_suite(python, ["fits", "job"], tmp_path)
    assert "error" not in fits
    assert job["error"] == "the process ended with 139 and said: Segmentation fault"


def test_the_table() -> None:
    found = [
        matrix.Tried("3.11", "newest", 61.4, GOOD),
        matrix.Tried("3.11", "lowest", 5.0, OTHER_BITS),
        matrix.Tried("3.12", "newest", 5.0, FAILED),
        matrix.Tried("3.12", "lowest", 5.0, (), "no numpy"),
    ]
    assert matrix.table(found, ["3.13"], ["import", "fits"], EXPECTED).splitlines() == [
        "Python  versions  import  fits  seconds",
        "3.11    newest    ok      ok    61",
        "3.11    lowest    ok      no    5",
        "3.12    newest    ok      no    5",
        "3.12    lowest    -       -     5",
        "3.11, newest: numpy 2.0.2",
        "3.11, lowest: numpy 2.0.2",
        "3.11, lowest: fits does not hold: other bits: lloyd",
        "3.12, newest: numpy 2.0.2",
        "3.12, newest: fits does not hold: ValueError: none",
        "3.12, lowest: install does not hold: no numpy",
        "3.13: not tried, as this machine does not have it",
    ]


@pytest.mark.parametrize(("records", "code"), [(GOOD, 0), (OTHER_BITS, 1), (FAILED, 1)])
def test_the_exit_code(
    records: tuple[environments.Record, ...], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def told(version: str, python: Path, resolution: str, *_: object) -> matrix.Tried:
        asked.append((version, resolution))
        return matrix.Tried(version, resolution, 1.0, records)

    monkeypatch.setattr(matrix, "run_suite", lambda *_: list(GOOD))
    monkeypatch.setattr(matrix, "build_wheel", lambda folder: folder / "x.whl")
    monkeypatch.setattr(matrix, "tried", told)
    done = CliRunner().invoke(matrix.main, ["--short"])
    assert done.exit_code == code, done.output
    assert asked == [(THIS, "lowest")]
    done = CliRunner().invoke(matrix.main, ["--only", THIS, "--only", "3.99"])
    assert done.exit_code == code
    assert asked[1:] == [(THIS, "newest"), (THIS, "lowest")]
    assert "3.99: not tried" in done.output
    assert CliRunner().invoke(matrix.main, ["--only", "3.99"]).exit_code == 1


def test_the_suite_of_this_environment(tmp_path: Path) -> None:
    """The checks that are quick, and that one that fails is told as such."""
    python = Path(sys.executable)
    fits, files = run_suite(python, ["fits", "files"], tmp_path, environments.ROOT)
    assert set(fits["digests"]) == {"auto", "lloyd"}
    assert files["steps"] > 1
    done = subprocess.run(
        [python, environments.SUITE, "import"], cwd=tmp_path, capture_output=True, text=True,
        env={"PYTHONPATH": str(environments.ROOT)},
    )  # fmt: skip
    # It lies in the sources here, and is not the one that is installed.
    assert "AssertionError" in json.loads(done.stdout)["error"]
    assert set(matrix.SHORT) < set(suite.CHECKS)
