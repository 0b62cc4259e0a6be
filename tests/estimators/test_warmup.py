"""After it no usual fit compiles anything; here and on workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask.config
import numba
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.errors import ClusterError
from largek_dask.estimators import warmup as warmup_module
from largek_dask.kernels.bounds.boxes import WIDTHS, Boxes
from largek_dask.kernels.bounds.pruned import BOXED_FEATURES, FEWEST_DIRECT
from largek_dask.kernels.code_cache import cache_folder
from largek_dask.kernels.distances import pack_centers
from largek_dask.kernels.tile import DIRECT_FEATURES
from tests.helpers.commands import run_json

pytestmark = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")

LISTENS = """
import json
from largek_dask.kernels import code_cache
used = set()
load, save = code_cache.load, code_cache.save
def loads(path, key, rebuild):
    found = load(path, key, rebuild)
    if found is not None:
        used.add(path.name)
    return found
def saves(path, content):
    used.add(path.name)
    return save(path, content)
code_cache.load, code_cache.save = loads, saves
"""
WARMS = """
from largek_dask.estimators.warmup import main
main({kind!r}, narrow={narrow!r})
print(json.dumps(sorted(used)))
"""
FITS = """
import numpy as np, scipy.sparse, sys
import largek_dask as lk
draws = np.random.default_rng(5)
{fits}
print(json.dumps(sorted(used)))
"""
DENSE = """
for n, d, k in ((2_000, {few}, 5), (3_000, 17, 40), (20_000, {narrow}, 300), (9_000, 100, 200)):
    x = (draws.normal(size=(n, d)) + 5 * draws.integers(4, size=(n, 1))).astype({dtype!r})
    for options in ({{}}, {{"algorithm": "lloyd"}}, {{"algorithm": "nmbatch"}}):
        km = lk.KMeans(k, random_state=1, **options).fit(x)
    km.predict(x[:77]), km.transform(x[:77]), km.score(x)
    lk.KMeans(k, random_state=1).fit(x, sample_weight=draws.uniform(1, 2, n))
few = draws.normal(size=(28_000, 40)) @ draws.normal(size=(40, 150))
few += 0.1 * draws.normal(size=few.shape)
km = lk.KMeans(200, random_state=1, max_iter=2).fit(few.astype({dtype!r}))
assert km.history_[0]["extra"]["features"] < 150
lk.ingest(x, sys.argv[1], chunk_rows=2_000, progress=False)
km = lk.KMeans(150, random_state=1).fit(sys.argv[1])
km.model_.predict(sys.argv[1], out=sys.argv[1] + ".labels.zarr")
"""
SPARSE = """
x = scipy.sparse.random(4_000, 90, density=0.1, format="csr", random_state=1).astype({dtype!r})
for k in (6, 250):
    for options in ({{}}, {{"algorithm": "lloyd"}}):
        km = lk.KMeans(k, random_state=1, **options).fit(x)
    km.predict(x), km.transform(x[:77]), km.score(x)
"""


def names_used(program: str, *given: str) -> set[str]:
    """The files of kernels that a process has loaded or made."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LISTENS + program, *given],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(json.loads(ran.stdout.splitlines()[-1]))


def test_every_number_of_features_with_kernels_of_its_own_is_warmed(tmp_path: Path) -> None:
    names = {name for name, _ in warmup_module.fits_of("float32", tmp_path)}
    for d in (*range(1, DIRECT_FEATURES + 1), 70):
        for how in ("", ", lloyd", ", nmbatch"):
            assert f"float32, {d} features, 300 clusters{how}" in names


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["float32", "sparse float64"])
def test_a_fit_needs_nothing_that_is_not_there_afterwards(kind: str, tmp_path: Path) -> None:
    """Whatever has been compiled before: the files that a fit uses are among the warmed."""
    warms = WARMS.format(kind=kind, narrow=(3, 8))
    warmed = names_used(warms)
    fits = SPARSE if kind.startswith("sparse") else DENSE
    program = fits.format(dtype=kind.rpartition(" ")[2], few=3, narrow=8)
    used = names_used(FITS.format(fits=program), str(tmp_path / "x.zarr"))
    assert len(used) > 20
    if not used <= warmed:
        # Where a kernel is not there, one that is may stand in for it; tests that run beside may
        # have compiled it between the two. Then those that warm take it as well.
        warmed |= names_used(warms)
    assert used <= warmed


PRUNED = """
from largek_dask.kernels.bounds import pruned
pruned.FEWEST_CENTERS = pruned.FEWEST_DIRECT = 200
pruned.LEAST_WORK = pruned.LEAST_PASS = 0
pruned.WORTH = np.inf
places = 100 * draws.normal(size=(300, {d})).astype({dtype!r})
x = places[draws.integers(300, size=2_000)] + draws.normal(size=(2_000, {d})).astype({dtype!r})
lk.KMeans(300, init=places, algorithm="lloyd", max_iter=1).fit(x).predict(x[:500])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("d", "module"), [(30, "box_search."), (40, "prefix_search.")])
def test_the_last_pass_over_many_clusters_needs_nothing_else(d: int, module: str) -> None:
    """As the test before: of the files that a fit uses, those of searches are among the warmed."""
    warms = WARMS.replace(", narrow={narrow!r}", "").format(kind=warmup_module.MANY[0])
    warmed = names_used(warms)
    program = PRUNED.format(d=d, dtype="float32")
    used = names_used(FITS.format(fits=program))
    used = {name for name in used if name.startswith(module)}
    assert used
    if not used <= warmed:
        warmed |= names_used(warms)
    assert used <= warmed


def test_boxes_of_every_width_and_a_prefix_are_warmed() -> None:
    draws, found = np.random.default_rng(0), set()
    for d in warmup_module.PRUNED:
        if d <= BOXED_FEATURES:
            packed = pack_centers(draws.normal(size=(300, d)), np.zeros(d))
            found.add((Boxes(packed).width, packed.direct > 0))
    assert found == {(WIDTHS[0], True), *((width, False) for width in WIDTHS)}
    assert max(warmup_module.PRUNED) > BOXED_FEATURES


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """An empty cache, and a file of each kind that is made; the kinds are collected."""
    made: list[str] = []

    def in_process(kind: str) -> None:
        cache_folder().mkdir(parents=True, exist_ok=True)
        (cache_folder() / f"{kind}.bin").touch()
        made.append(kind)

    monkeypatch.setattr(warmup_module, "_in_process", in_process)
    with dask.config.set({"largek.kernels.cache-dir": str(tmp_path)}):
        yield made


def test_the_second_time_there_is_nothing_to_do(quick: list[str]) -> None:
    (first,) = lk.warmup()
    assert sorted(quick) == sorted(warmup_module.KINDS)
    assert (first.kernels, first.there, first.folder) == (4, 4, str(cache_folder()))
    (second,) = lk.warmup()
    assert (second.kernels, second.there, len(quick)) == (0, 4, 4)
    assert "nothing to do" in second.words()
    next(cache_folder().glob("*.bin")).unlink()
    (third,) = lk.warmup()
    assert (third.kernels, third.there) == (1, 4), "what was removed is made again"


def test_many_clusters_are_warmed_where_there_are_going_to_be_many(
    quick: list[str], fresh_cluster: Any
) -> None:
    assert [machine.kernels for machine in lk.warmup(n_clusters=FEWEST_DIRECT - 1)] == [4]
    (more,) = lk.warmup(n_clusters=FEWEST_DIRECT)
    assert sorted(quick[4:]) == sorted(warmup_module.MANY)
    assert (more.kernels, more.there) == (2, 6)
    assert run_json("warmup", "--clusters", "32000")["kernels"] == 0
    (again,) = lk.warmup()
    assert (again.kernels, again.there) == (0, 6)
    (cache_folder() / f"{warmup_module.MANY[0]}.bin").unlink()
    # Nobody knows whose it was: all are looked through once more.
    assert [machine.kernels for machine in lk.warmup()] == [0]
    assert len(quick) == 10
    (machine,) = lk.warmup(fresh_cluster(2, processes=False), n_clusters=5_000)
    assert (machine.kernels, machine.there) == (1, 6)


@pytest.mark.usefixtures("quick")
def test_command_and_workers(fresh_cluster: Any) -> None:
    told = run_json("warmup")
    assert told["kernels"] == 4
    client = fresh_cluster(3, processes=False)
    # Workers in threads of this process: one machine, one folder, warmed already.
    (machine,) = lk.warmup(client)
    assert (machine.kernels, machine.there) == (0, 4)
    told = run_json("warmup", "--scheduler", client.scheduler.address)
    assert (told["kernels"], told["machines"][0]["there"]) == (0, 4)


def test_a_kind_is_done_by_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernels that other tests have compiled; of what these have left nothing is noted."""
    noted: list[int] = []
    monkeypatch.setattr(warmup_module, "KINDS", ("sparse float32",))
    monkeypatch.setattr(warmup_module, "_done", lambda: ())
    monkeypatch.setattr(warmup_module, "_note", lambda kinds, there: noted.append(there))
    (machine,) = lk.warmup()
    assert noted == [machine.there]
    assert machine.there > 20


def test_a_process_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(warmup_module, "KINDS", ("float16",))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        dask.config.set({"largek.kernels.cache-dir": str(tmp_path)}),
        pytest.raises(ClusterError, match=r"float16 rows .*exit code 1"),
    ):
        lk.warmup()
