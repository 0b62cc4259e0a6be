from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import dask.config
import numba
import numpy as np
import pytest
from numba import types

from largek_dask.kernels import code_cache, jit
from largek_dask.kernels.code_cache import cache_folder, is_cache_empty, unsaved
from largek_dask.kernels.jit import njit, saves_code

# Runs two kernels of the package on fixed numbers; prints results and counts of loaded and compiled
# overloads. With an argument it forks that many processes, which start computing together.
PROCESS = """
import json, multiprocessing, sys
import numpy as np
from largek_dask.kernels import rows

def compute(barrier=None, results=None):
    if barrier is not None:
        barrier.wait()
    x = np.array([[3.0, 4.0], [np.nan, 0.0]], np.float32)
    finite = rows.finite_rows(x)
    unit = rows.normalize_rows(x[finite])
    kernels = [v for v in vars(rows).values() if hasattr(v, "stats")]
    hits = sum(sum(k.stats.cache_hits.values()) for k in kernels)
    misses = sum(sum(k.stats.cache_misses.values()) for k in kernels)
    answer = [finite.tolist(), unit.tolist(), hits, misses]
    if results is None:
        return answer
    results.put(answer)

if len(sys.argv) > 1:
    context = multiprocessing.get_context("fork")
    n = int(sys.argv[1])
    barrier, results = context.Barrier(n), context.Queue()
    children = [context.Process(target=compute, args=(barrier, results)) for _ in range(n)]
    for child in children:
        child.start()
    answers = [results.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    print(json.dumps(answers))
else:
    print(json.dumps([compute()]))
"""
EXPECTED = [[True, False], [[np.float32(0.6).item(), np.float32(0.8).item()]]]


def run(cache: Path, *arguments: str) -> list[list[object]]:
    env = {k: v for k, v in os.environ.items() if k != "NUMBA_DISABLE_JIT"}
    env["DASK_LARGEK__KERNELS__CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


processes_compile = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="its processes compile")


@processes_compile
def test_second_process_compiles_nothing(tmp_path):
    [first] = run(tmp_path)
    [second] = run(tmp_path)
    assert first[:2] == EXPECTED
    assert second[:2] == EXPECTED
    assert first[2] == 0
    assert first[3] > 0
    assert second[2] > 0
    assert second[3] == 0


@pytest.mark.slow
@processes_compile
def test_eight_processes_at_once_share_an_empty_cache(tmp_path):
    answers = run(tmp_path, "8")
    assert [a[:2] for a in answers] == [EXPECTED] * 8
    [ninth] = run(tmp_path)
    assert ninth[:2] == EXPECTED
    assert ninth[2] > 0
    assert ninth[3] == 0
    assert not list(tmp_path.rglob("*.tmp"))


def test_folder_depends_on_sources_settings_and_version(tmp_path, monkeypatch):
    here = cache_folder()
    sources = tmp_path / "kernels"
    shutil.copytree(code_cache.SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code_cache, "SOURCES", sources)
    assert cache_folder().name == here.name
    code_cache._version.cache_clear()
    for path in sorted(sources.rglob("*.py")):
        before = path.read_text()
        path.write_text(before + "\n# changed\n")
        code_cache._version.cache_clear()
        assert cache_folder().name != here.name, path
        path.write_text(before)
    for owner, name, value in (
        (numba.config, "OPT", 1),
        (numba.config, "CPU_NAME", "generic"),
        (code_cache, "__version__", "0.0.0"),
    ):
        code_cache._version.cache_clear()
        assert cache_folder().name == here.name
        with monkeypatch.context() as changed:
            changed.setattr(owner, name, value)
            code_cache._version.cache_clear()
            assert cache_folder().name != here.name, name
    code_cache._version.cache_clear()


def doubled(x):
    return x * 2


def misses(kernel):
    return sum(kernel.stats.cache_misses.values())


def test_saved_code_is_loaded_again(folder):
    first, second = njit(doubled), njit(doubled)
    assert is_cache_empty()
    assert first(3) == 6
    assert not is_cache_empty()
    assert misses(first) == 1
    assert second(3) == 6
    assert misses(second) == 0
    assert Path(first.stats.cache_path) == folder


@pytest.mark.parametrize("content", [b"", b"torn", None])
def test_damaged_file_is_compiled_and_saved_again(folder, content):
    assert njit(doubled)(3) == 6
    assert njit(doubled)(3.0) == 6.0
    one, other = sorted(folder.glob("*.bin"))
    for path, foreign in ((one, other.read_bytes()), (other, one.read_bytes())):
        path.write_bytes(foreign if content is None else content)
    for kernel, expected in ((njit(doubled), 1), (njit(doubled), 0)):
        assert kernel(3) == 6
        assert misses(kernel) == expected


@pytest.mark.parametrize("share", [1 / 16, 1 / 2, 15 / 16])
def test_a_file_with_a_hole_is_compiled_again(folder, share):
    """A power failure may leave a file of the right size with zeros where data were not written."""
    assert njit(doubled)(3) == 6
    (path,) = folder.glob("*.bin")
    content = bytearray(path.read_bytes())
    begin = int(share * len(content))
    assert any(content[begin : begin + 64])
    content[begin : begin + 64] = bytes(64)
    path.write_bytes(content)
    kernel = njit(doubled)
    assert kernel(3) == 6
    assert misses(kernel) == 1


def test_folder_that_cannot_be_written_is_no_error(tmp_path, folder):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with dask.config.set({"largek.kernels.cache-dir": str(blocked)}):
        kernel = njit(doubled)
        assert kernel(3) == 6
        assert misses(kernel) == 1
    assert blocked.read_text() == "not a folder"


def make(inner, constant):
    @njit
    def kernel(x):
        return inner(x) + constant

    return kernel


def test_closures_are_distinguished_by_content(folder):
    @njit
    def minus(x):
        return -x

    kernels = [make(njit(doubled), 1), make(njit(doubled), 2), make(minus, 1)]
    assert [k(5) for k in kernels] == [11, 12, -4]
    again = [make(njit(doubled), 1), make(njit(doubled), 2), make(minus, 1)]
    assert [k(5) for k in again] == [11, 12, -4]
    assert [misses(k) for k in kernels + again] == [1, 1, 1, 0, 0, 0]


def test_intrinsic_in_a_closure(folder):
    @numba.extending.intrinsic
    def one(typing_context):
        def emit(context, builder, signature, arguments):
            return context.get_constant(types.int64, 1)

        return types.int64(), emit

    def plus_one():
        @njit
        def kernel(x):
            return x + one()

        return kernel

    assert plus_one()(1) == 2
    again = plus_one()
    assert again(1) == 2
    assert misses(again) == 0


def test_function_that_calls_itself(folder):
    def make_down(least=0):
        @njit
        def down(n):
            return least if n <= least else down(n - 1)

        return down

    assert make_down()(5) == 0
    again = make_down()
    assert again(5) == 0
    assert misses(again) == 0


def test_oldest_versions_are_removed(folder):
    for age in range(6):
        old = folder.parent / f"v-{age:020d}"
        old.mkdir(parents=True)
        (old / "code.bin").touch()
        os.utime(old, ns=(1, (10 - age) * 10**9))
    (folder.parent / "not-ours").mkdir()
    njit(doubled)(3)
    left = sorted(p.name for p in folder.parent.iterdir())
    assert left == sorted([folder.name, *(f"v-{age:020d}" for age in range(3)), "not-ours"])


def test_reading_marks_a_version_as_used(folder):
    njit(doubled)(3)
    os.utime(folder, ns=(1, 1))
    code_cache._mark_used.cache_clear()
    njit(doubled)(3)
    assert folder.stat().st_mtime_ns > 1


def test_signatures_are_compiled_at_once_and_are_the_only_ones(folder):
    kernel = njit((types.float64,), "int64(int64)")(doubled)
    assert len(kernel.signatures) == 2
    assert kernel(2.5) == 5.0
    with pytest.raises(TypeError):
        kernel(1j)


def test_without_inlining_kernels_are_the_same_and_nothing_is_saved(folder, monkeypatch):
    """Untested versions of numba do so: see ``test_untested_numba.py``."""
    monkeypatch.setattr(jit, "_is_inlining", False)
    inner = njit(internal=True, refcounts=False)(doubled)
    assert make(inner, 1)(5) == 11
    assert not saves_code()
    assert not folder.exists()


def test_untested_versions_are_reported(monkeypatch):
    for version in ("0.60.0", "0.99.0", "1.0.0", "0+untagged"):
        monkeypatch.setattr(code_cache, "_unsaved", None)
        assert jit._is_tested(numba.__version__)
        assert unsaved() is None
        assert not jit._is_tested(version)
        assert version in str(unsaved())


def test_disabled_jit_gives_the_plain_function(monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert njit(doubled) is doubled
    assert njit()(doubled) is doubled


def test_arithmetic_is_neither_fused_nor_reordered(folder):
    @njit
    def fused(a, b, c):
        return a * b + c

    @njit
    def total(x):
        s = 0.0
        for value in x:
            s += value
        return s

    @njit
    def divided(a, b):
        return a / b

    a = 1.0 + 2.0**-30
    assert fused(a, a, -1.0) == a * a - 1.0 != 2.0**-29 + 2.0**-60
    x = np.random.default_rng(0).standard_normal(1000)
    assert total(x) == sum(x.tolist(), start=0.0)
    assert divided(1.0, 0.0) == np.inf


def test_functions_of_one_factory_have_symbols_of_their_own(folder):
    """Counters would not do: they start again in every process that fills the cache."""

    def make(width):
        @njit
        def work(x):
            return x * width

        return work

    names = [make(width).py_func.__qualname__ for width in (4, 24, 4)]
    assert names[0] == names[2] != names[1]
    assert make(24)(3) == 72
