"""A time limit that comes before there is any model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.base import Rng
from largek_dask.driver.run import Run
from largek_dask.driver.starts import sample_stored_rows
from largek_dask.driver.stopping import StopRules
from largek_dask.errors import NoModelError
from largek_dask.kernels.jit import njit
from largek_dask.passes.local import LocalPasses
from tests.driver.toy import Toy, ToyPasses, toy_rows

X = np.random.default_rng(3).normal(size=(900, 10)).astype(np.float32)


def brute(x: Any, centers: Any) -> Any:
    return ((x[:, None].astype(np.float64) - centers.astype(np.float64)) ** 2).sum(-1)


def check(km: lk.KMeans, x: Any, weight: Any = 1.0) -> None:
    """A whole model, of rows that were not looked for."""
    assert (km.stop_reason_, km.n_iter_) == ("max_time_without_search", 0)
    found = brute(x, km.cluster_centers_)
    np.testing.assert_array_equal(km.labels_, found.argmin(1))
    assert km.inertia_ == pytest.approx((found.min(1) * weight).sum(), rel=1e-6)
    assert km.model_.counts.sum() == pytest.approx(np.broadcast_to(weight, len(x)).sum())


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit has come before the first centres, however fast they would have been found."""

    def cut(*given: Any, **options: Any) -> Any:
        raise NoModelError("no time", "max_time")

    monkeypatch.setattr(Run, "result", cut)


@pytest.mark.parametrize(
    "algorithm", ["auto", "lloyd", "nmbatch", "minibatch", "incremental", "vc-gmm"]
)
@pytest.mark.usefixtures("no_time")
def test_there_is_a_model_by_every_algorithm(algorithm: str) -> None:
    km = lk.KMeans(20, algorithm=algorithm, max_time=0, random_state=0).fit(X)
    check(km, X)
    rows = {row.tobytes() for row in X}
    centers = {center.tobytes() for center in km.cluster_centers_}
    assert len(centers) == 20
    assert centers <= rows
    np.testing.assert_array_equal(km.predict(X), km.labels_)
    again = lk.KMeans(20, algorithm=algorithm, max_time=0, random_state=0).fit(X)
    assert again.model_.digest() == km.model_.digest()


@pytest.mark.usefixtures("chunks_as_stored", "no_time")
def test_few_chunks_of_a_store_are_read_for_it(tmp_path: Path) -> None:
    url = str(tmp_path / "rows.zarr")
    lk.ingest(np.repeat(X, 30, axis=0), url, chunk_rows=900, progress=False)
    with LocalPasses(lk.open_rows(url)) as passes:
        assert passes.n_chunks == 30
        assert passes.statistics.n_rows == 27_000
        before = passes.total.chunks
        rows = sample_stored_rows(passes, 20, np.random.default_rng(0))
        assert passes.total.chunks - before == 4
        assert len(rows.x) == 2_048
        assert len(np.unique(rows.rows // 900)) == 4
        before = passes.total.chunks
        assert len(sample_stored_rows(passes, 5_000, np.random.default_rng(0)).x) >= 5_000
        assert 4 < passes.total.chunks - before < 30
    check(lk.KMeans(20, max_time=0, random_state=0).fit(url), np.repeat(X, 30, axis=0))


# --- kernels


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
def test_what_does_not_fit_before_the_limit_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A function takes at least some milliseconds, and there is one left."""
    import dask.config

    now = [100.0]
    monkeypatch.setattr("largek_dask.driver.run.time", SimpleNamespace(monotonic=lambda: now[0]))
    fresh = njit(lambda x: x + 1)
    original = Toy.step

    def step(self: Any, passes: Any, rng: Any, state: Any) -> Any:
        if state.step == 2:
            now[0] = 109.999999
            fresh(1.0)
        return original(self, passes, rng, state)

    monkeypatch.setattr(Toy, "step", step)
    with dask.config.set({"largek.kernels.cache-dir": str(tmp_path)}):
        stop = StopRules(max_iter=9, tol=0, max_time=10)
        result = Run(Toy(), ToyPasses(toy_rows()), rng=Rng(3), stop=stop).result()
        assert (result.stop_reason, result.n_iter) == ("max_time", 2)
        assert not fresh.signatures
        now[0] = 100.0
        stop = StopRules(max_iter=9, tol=0, max_time=1e6)
        result = Run(Toy(), ToyPasses(toy_rows()), rng=Rng(3), stop=stop).result()
        assert (result.stop_reason, result.n_iter) == ("max_iter", 9)
        assert fresh.signatures


def test_seconds_of_compiling_are_in_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    now = [0.0]
    from largek_dask.driver import compile_watch
    from largek_dask.driver.events import Events
    from largek_dask.kernels.compiling import Compiled

    monkeypatch.setattr("largek_dask.driver.run.time", SimpleNamespace(monotonic=lambda: now[0]))
    compiling = [0.0]
    monkeypatch.setattr(compile_watch, "compiled", lambda: Compiled(3, compiling[0]))
    passes = ToyPasses(toy_rows())

    def tick(n: int) -> None:
        # The first pass of a step waits for a kernel.
        now[0] += 1.0
        if n in (5, 9):
            now[0] += 50.0
            compiling[0] += 50.0

    passes.after_chunk = tick
    stop = StopRules(max_iter=5, tol=0)
    events = Events([told.append])
    result = Run(Toy(), passes, rng=Rng(3), stop=stop, events=events).result()
    steps = [e for e in told if e["event"] == "step"]
    assert [e["seconds"]["total"] for e in steps] == [58.0, 54.0, 4.0, 4.0, 4.0], (
        "that of the first centres is in the first"
    )
    assert [e["seconds"]["compile"] for e in steps] == [50.0, 50.0, 0.0, 0.0, 0.0]
    assert [e["rows_per_second"] for e in steps] == [7.5, *[15.0] * 4]
    assert [e["eta_s"] for e in steps] == [32.0, 18.0, 10.6667, 5.0, 0.0]
    assert result.seconds == 124.0, "what max_time is compared with"
