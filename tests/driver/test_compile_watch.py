"""One line on standard error says that kernels are compiled, whatever else a process shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from largek_dask import KMeans
from largek_dask.driver import compile_watch
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


def test_a_process_says_once_that_it_compiles(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    monkeypatch.setattr(compile_watch, "NOTICE_SECONDS", 2.0)
    notice = compile_watch._Notice()
    for seconds in (0.9, 1.8, 2.7, 30.0, 60.0):
        monkeypatch.setattr(compile_watch, "compiled", lambda found=seconds: Compiled(1, found))
        notice()
        said.append("largek_dask: compiling kernels" in capsys.readouterr().err)
    assert said == [False, False, True, False, False]


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
