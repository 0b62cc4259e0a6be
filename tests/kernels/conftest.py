import os

import dask.config
import numba
import pytest
from hypothesis import settings

from largek_dask.kernels import distances
from largek_dask.kernels.code_cache import cache_folder

# No deadline: the first example of a test may compile. Without compilation the lines that run are
# counted, which must not depend on the day's examples.
IS_PLAIN = bool(numba.config.DISABLE_JIT)
settings.register_profile(
    "kernels",
    deadline=None,
    max_examples=50 if IS_PLAIN or os.environ.get("CI") == "true" else 25,
    derandomize=IS_PLAIN,
)
settings.load_profile("kernels")


@pytest.fixture(autouse=True)
def every_search_by_its_own_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of few rows, for which a fit takes what is there."""
    monkeypatch.setattr(distances, "PAIRS_WITHOUT", -1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache; kernels are compiled even with NUMBA_DISABLE_JIT=1."""
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 0)
    with dask.config.set({"largek.kernels.cache-dir": str(tmp_path)}):
        yield cache_folder()
