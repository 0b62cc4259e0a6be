"""``algorithm="auto"``: its choices, and that fits equal those of the chosen algorithm."""

from __future__ import annotations

from dataclasses import dataclass

import dask
import numpy as np
import pytest
import scipy.sparse
import zarr

import largek_dask as lk
from largek_dask.algorithms.auto import FEW_CLUSTERS, FEW_ROWS, MANY_ROWS, RESTARTS, SEARCHES, Auto
from largek_dask.algorithms.choices import EFFORTS
from largek_dask.errors import ParameterError
from tests.helpers.checks import watched_passes
from tests.helpers.covering import in_turns


@dataclass
class Table:
    """The shape of one."""

    n_rows: int
    n_features: int = 16
    is_sparse: bool = False


MANY = MANY_ROWS
MORE = FEW_CLUSTERS + 1


def test_rules_at_their_borders():
    for table, k, kind in [
        (Table(2), 2, lk.Truncated),
        (Table(FEW_ROWS), FEW_CLUSTERS, lk.Truncated),
        (Table(MANY + 1), MORE, lk.Truncated),
        (Table(10**8), 100_000, lk.Truncated),
        (Table(1), 1, lk.Lloyd),
        (Table(10**8), 1, lk.Lloyd),
        (Table(FEW_ROWS, is_sparse=True), MORE, lk.Lloyd),
        (Table(MANY, is_sparse=True), FEW_CLUSTERS, lk.Lloyd),
        (Table(MANY + 1, is_sparse=True), FEW_CLUSTERS, lk.NMBatch),
        (Table(FEW_ROWS + 1, is_sparse=True), MORE, lk.Truncated),
        (Table(10**7, is_sparse=True), 1_000, lk.Truncated),
    ]:
        assert type(Auto().choose(table, k).algorithm) is kind, table


def test_effort_is_more_starts_or_longer_search():
    sparse = Table(1_000, is_sparse=True)
    few = [Auto(effort).choose(sparse, 8).n_init for effort in EFFORTS]
    assert few == [RESTARTS[effort] for effort in EFFORTS]
    batches = [Auto(effort).choose(Table(MANY + 1, is_sparse=True), MORE - 1) for effort in EFFORTS]
    assert [choice.n_init for choice in batches] == few, "as long as there are few clusters"
    assert Auto().choose(Table(MANY + 1, is_sparse=True), MORE).n_init == 1
    many = [Auto(effort).choose(Table(10**6), 1_000) for effort in EFFORTS]
    assert [choice.n_init for choice in many] == [SEARCHES[effort] for effort in EFFORTS]
    assert many[0].algorithm != many[1].algorithm


@pytest.fixture(scope="module")
def blobs() -> np.ndarray:
    r = np.random.default_rng(0)
    centers = 3 * r.standard_normal((60, 8))
    rows = centers[r.integers(60, size=8_000)] + r.standard_normal((8_000, 8))
    return rows.astype(np.float32)


def test_the_choice_is_recorded(blobs, tmp_path):
    events = []
    result = lk.KMeans(40, random_state=0, checkpoint=tmp_path / "job").fit(blobs)
    from largek_dask.driver.event_log import JsonLines
    from largek_dask.driver.storage import Folder

    events = JsonLines.read(Folder.of(str(tmp_path / "job")))
    [chosen] = [event for event in events if event["event"] == "chosen"]
    assert chosen["name"] == "Truncated"
    assert chosen["reason"]
    provenance = result.model_.provenance
    assert provenance["engine"]["name"] == "Truncated"
    assert provenance["parameters"]["algorithm"] == {"name": "Auto", "effort": "balanced"}


def test_a_fit_equals_that_of_the_chosen_algorithm(blobs):
    auto = lk.KMeans(40, random_state=3).fit(blobs)
    own = lk.KMeans(40, algorithm=lk.Truncated(), random_state=3).fit(blobs)
    assert auto.model_.digest() == own.model_.digest()
    few = scipy.sparse.csr_matrix(blobs[:500])
    small = lk.KMeans(3, random_state=3).fit(few)
    lloyd = lk.KMeans(3, algorithm="lloyd", n_init=RESTARTS["balanced"], random_state=3)
    assert small.model_.digest() == lloyd.fit(few).model_.digest()


def test_n_init_is_a_minimum(blobs):
    few = scipy.sparse.csr_matrix(blobs[:500])
    ten = lk.KMeans(3, n_init=10, random_state=3).fit(few)
    lloyd = lk.KMeans(3, algorithm="lloyd", n_init=10, random_state=3).fit(few)
    assert ten.model_.digest() == lloyd.model_.digest()


def test_sparse_rows():
    x = scipy.sparse.random(2_000, 100, 0.05, format="csr", dtype=np.float32, random_state=0)
    km = lk.KMeans(20, random_state=0).fit(x)
    assert km.model_.provenance["engine"]["name"] == "Truncated"
    assert max(step["extra"]["moves"] for step in km.history_) > 0
    fast = lk.KMeans(20, effort="fast", random_state=0).fit(x)
    assert fast.model_.provenance["engine"]["name"] == "NMBatch"
    assert km.inertia_ < fast.inertia_


def test_from_given_centres_one_start_is_enough(blobs):
    events = []
    lk.KMeans(3, init=blobs[:3], n_init=1, callbacks=[events.append]).fit(blobs[:500])
    steps = [event.record["step"] for event in events]
    assert steps == list(range(1, len(steps) + 1))


def test_unknown_effort(blobs):
    with pytest.raises(ParameterError, match="effort must be one of 'fast'"):
        Auto("heroic")
    with pytest.raises(ParameterError, match="effort"):
        lk.KMeans(3, effort="heroic").fit(blobs)


def test_in_a_job_document():
    from largek_dask.service.spec import AlgorithmSpec

    for algorithm in ("auto", Auto("best"), lk.Truncated(moves=False)):
        spec = AlgorithmSpec.of(algorithm)
        again = AlgorithmSpec.model_validate_json(spec.model_dump_json()).make()
        assert again == (Auto() if algorithm == "auto" else algorithm)


def test_no_time_for_the_last_pass(blobs, monkeypatch):
    """At whatever step time is over, labels are of the centres that come back, or nearly so."""
    monkeypatch.setattr("largek_dask.driver.starts.seconds_of_last_pass", lambda *_: 1e6)
    late = lk.KMeans(60, random_state=0, max_time=3600).fit(blobs)
    assert late.stop_reason_ == "max_time_without_last_pass"
    assert_near(blobs, late.labels_, late.cluster_centers_, late.inertia_)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_labels_of_an_unfinished_search(blobs, n_threads):

    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    algorithm, rng = lk.Truncated().bind(KMeansProblem(60)), Rng(0)
    with LocalPasses(open_rows(blobs), n_threads=n_threads) as passes:
        state = algorithm.init(passes, rng)
        for _ in range(30):
            labels, cost, counts = algorithm.labels(passes, rng, state)
            most = 1.02 if state.everywhere else 1.1
            assert_near(blobs, labels, algorithm.model(state).centers, cost, most)
            if state.moves is not None:
                # They have not been tried: nobody is missing where they would take rows from.
                assert (counts > 0).all()
            assert counts.tolist() == np.bincount(labels, minlength=60).tolist()
            state, info = algorithm.step(passes, rng, state)
            if info.converged:
                break


def assert_near(x, labels, centers, cost, most=1.1):
    distances = ((x[:, None].astype(float) - centers[None]) ** 2).sum(axis=2)
    own = distances[np.arange(len(x)), labels].sum()
    assert cost == pytest.approx(own, rel=1e-5)
    assert own < most * distances.min(axis=1).sum()


def test_a_pass_can_be_cancelled(blobs):
    """A search on rows in memory hears of the limit between the shares of a pass."""

    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.data.sources import open_rows
    from largek_dask.errors import CancelledFit
    from largek_dask.passes.local import LocalPasses

    algorithm, rng = lk.Truncated().bind(KMeansProblem(60)), Rng(0)
    asked = 0

    def is_over():
        nonlocal asked
        asked += 1
        return asked > 1

    with LocalPasses(open_rows(blobs), n_threads=1) as passes:
        state = algorithm.init(passes, rng)
        while not state.schedule.everywhere:
            state, _ = algorithm.step(passes, rng, state)
        whole, _ = algorithm.step(passes, rng, state)
        passes.cancelled = is_over
        with pytest.raises(CancelledFit):
            algorithm.step(passes, rng, state)
        assert asked == 2
        passes.cancelled = None
        again, _ = algorithm.step(passes, rng, state)
    assert again.centers.tobytes() == whole.centers.tobytes()


@pytest.mark.parametrize(("weighted", "k"), in_turns([False, True], [8, 40, 130]))
def test_chunks_do_not_change_a_bit(k, weighted, tmp_path):
    """Samples are drawn by the rows' indices: neither stored chunks nor their groups matter."""
    r = np.random.default_rng(0)
    n = 20_000  # so many that samples are drawn
    x = (4 * r.normal(size=(30, 6))[r.integers(30, size=n)] + r.normal(size=(n, 6))).astype("f4")
    weight = r.uniform(0.5, 2, len(x)) if weighted else None

    def fitted(data, n_chunks):
        with watched_passes() as seen:
            km = lk.KMeans(k, random_state=1, n_threads=1).fit(data, sample_weight=weight)
        assert seen[0].n_chunks == n_chunks
        assert km.history_[0]["rows"] < n, "the first step was on all rows"
        return km.model_.digest(), km.labels_.tobytes()

    expected = fitted(x, 1)
    for chunk_rows, budget, n_chunks in (
        (4_000, 1, 5),
        (4_000, 2 * 4_000 * 24, 3),
        (999, 1 << 24, 1),
    ):
        url = str(tmp_path / f"{chunk_rows}.zarr")
        array = zarr.create_array(
            url, shape=x.shape, dtype=x.dtype, chunks=(chunk_rows, 6), overwrite=True
        )
        array[:] = x
        with dask.config.set({"largek.data.read-chunk-bytes": budget}):
            assert fitted(url, n_chunks) == expected
