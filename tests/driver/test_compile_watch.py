"""One line on standard error says that kernels are compiled, whatever else a process shows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import pytest

from largek_dask import KMeans
from largek_dask.driver import compile_watch
from largek_dask.driver.compile_watch import AGAIN_SECONDS, QUIET_SECONDS
from largek_dask.kernels.compiling import Compiled

LABELS = """
import sys
import numpy as np
import largek_dask as lk
from largek_dask.kernels.compiling import compiled

model = lk.load_model(sys.argv[1])
rows = np.random.default_rng(0).normal(size=(500, 10)).astype(np.float32)
for _ in range(2):
    model.predict(rows)
print(compiled().functions)
"""


class Process:
    """A process with a clock of its own, that compiles."""

    def __init__(self) -> None:
        self.at = time.monotonic()
        self.seconds = 0.0
        self.notice = compile_watch._Notice()

    def compiles(self, *functions: float) -> None:
        """Begin a fit that compiles functions of so many seconds."""
        self.notice.begin(lambda now: None)
        for seconds in functions:
            self.at += seconds
            self.seconds += seconds
            self.notice()


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    process = Process()
    monkeypatch.setattr(compile_watch, "NOTICE_SECONDS", 2.0)
    monkeypatch.setattr(compile_watch, "time", SimpleNamespace(monotonic=lambda: process.at))
    monkeypatch.setattr(compile_watch, "compiled", lambda: Compiled(1, process.seconds))
    return process


def lines(capsys: pytest.CaptureFixture[str]) -> int:
    return capsys.readouterr().err.count("largek_dask: compiling kernels")


def test_many_fits_of_a_process_say_once_that_they_compile(
    process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    process.compiles(0.9, 0.9)
    assert lines(capsys) == 0
    process.compiles(0.9, 0.9)
    assert lines(capsys) == 1
    for _ in range(20):
        process.at += QUIET_SECONDS / 2
        process.compiles(30.0, 30.0)
    assert lines(capsys) == 0


def test_it_is_said_again_when_the_process_was_quiet_and_compiles_for_long(
    process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    process.compiles(3.0, 3.0)
    assert lines(capsys) == 1
    process.at += QUIET_SECONDS + 1
    process.compiles(*[1.0] * int(AGAIN_SECONDS - 1))
    assert lines(capsys) == 0
    process.compiles(1.0)
    assert lines(capsys) == 1
    process.compiles(*[1.0] * 100)
    assert lines(capsys) == 0


@pytest.mark.slow
@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
def test_a_first_predict_says_that_it_compiles_and_that_the_code_cannot_be_kept(
    tmp_path: Path,
) -> None:
    rows = np.random.default_rng(0).normal(size=(500, 10)).astype(np.float32)
    KMeans(5, random_state=0).fit(rows).model_.save(tmp_path / "m.zarr")
    (tmp_path / "file").write_text("not a folder")
    place = str(tmp_path / "file" / "kernels")
    done = subprocess.run(
        [sys.executable, "-c", LABELS, str(tmp_path / "m.zarr")],
        env={**os.environ, "DASK_LARGEK__KERNELS__CACHE_DIR": place},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) > 10
    (line,) = done.stderr.splitlines()
    assert "compiling kernels" in line
    assert "left" in line
    assert place in line
    assert "largek.kernels.cache-dir" in line
