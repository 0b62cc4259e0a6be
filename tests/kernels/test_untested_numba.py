"""With an untested version of numba, kernels are compiled by its own pipeline."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from largek_dask.kernels.jit import TESTED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled"),
]

ROOT = Path(__file__).parent.parent.parent
UNKNOWN = "import sys, numba; numba.__version__ = '99.0.0'\n"
DIGESTS = (
    "import pytest\n"
    "options = '-q -n 0 -p no:randomly tests/digests/test_few.py'.split()\n"
    "status = pytest.main(options + sys.argv[1:])\n"
    "assert 'largek_dask.kernels.inlining' not in sys.modules\n"
    "sys.exit(status)"
)


def run(code: str, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DASK_LARGEK__KERNELS__CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", UNKNOWN + code, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_this_version_is_one_of_those_tested() -> None:
    version = tuple(map(int, numba.__version__.split(".")[:2]))
    assert TESTED[0] <= version <= TESTED[1]


def test_digests_are_the_same(tmp_path: Path) -> None:
    # Every family takes nine minutes: .ci/weekly runs them all.
    done = run(DIGESTS, tmp_path, "-k", "lloyd")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert not list(tmp_path.rglob("*.bin"))


def test_a_warmup_says_that_nothing_can_be_saved(tmp_path: Path) -> None:
    done = run("import largek_dask as lk; print(lk.warmup()[0].words())", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "99.0.0" in done.stdout
