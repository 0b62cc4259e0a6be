"""One contract for every algorithm there is: same data, seed and versions, same bits.

Every k-means algorithm that is registered has to pass everything here: as it is by default, or with
the parameters that are listed.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import dask
import numpy as np
import pytest
import scipy.sparse
from distributed import Client

import largek_dask as lk
from largek_dask.algorithms import incremental
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.names import ALGORITHMS as REGISTERED
from largek_dask.algorithms.partition_path import algorithm as partition_path
from largek_dask.algorithms.partition_path.passes import CountTotal
from largek_dask.algorithms.parts import nested
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.passes import engine
from largek_dask.passes.base import BasePasses
from largek_dask.passes.engine import Engine
from largek_dask.passes.gather import CollectedRows
from largek_dask.passes.taken_rows import HeldRows
from largek_dask.passes.telemetry import nbytes
from tests.algorithms.conftest import bits, blobs
from tests.conftest import make_client
from tests.faults import Killer, WithBarrier
from tests.helpers.checks import computing_workers, join, watched_passes
from tests.helpers.covering import slow

N_ROWS, N_FEATURES, K = 12_000, 10, 24
CHUNK_ROWS, N_CHUNKS = 1_024, 12

LISTED = {
    "lloyd": lk.Lloyd(),
    "minibatch": lk.MiniBatch(batch_rows=1000),
    # Rows vote anew in the second round, from the fifth step on.
    "minibatch-latest": lk.MiniBatch(batch_rows=3000, votes="latest"),
    # One step on gathered rows, then one on each doubled batch.
    "nmbatch": lk.NMBatch(b0=750, rho=0.1, gather=750),
    "nmbatch-paper": lk.NMBatch.paper(b0=750, rho=0.1),
    # A sample, then all rows in a few rounds; rounds of 2000 rows; single rows.
    "incremental": lk.IncrementalLloyd(),
    "incremental-rounds": lk.IncrementalLloyd(rounds=3),
    "vrkm": lk.VRKM(round_rows=2000),
    "vrkm-paper": lk.VRKM.paper(),
    # All centres for so few clusters, and lists.
    "truncated": lk.Truncated(),
    "truncated-lists": lk.Truncated(neighbours=8),
    # Eleven steps in six directions, the others in all ten features.
    "truncated-directions": lk.Truncated(directions=6),
    "vc-gmm": lk.VCGMM(),
    "vcgmm-iso": lk.VCGMM(neighbours=8),
    "vcgmm-isoflex": lk.VCGMM(neighbours=8, covariance="isoflex"),
    "vcgmm-diag": lk.VCGMM(neighbours=8, candidates=3, explore=1, covariance="diag"),
    "vcgmm-coreset": lk.VCGMM(neighbours=8, coreset=3000),
    # On a coreset of 384 rows, and on all.
    "vc-gmm-paper": lk.VCGMM.paper(candidates=4),
    "var-gmm-s": lk.VCGMM.paper(candidates=4, coreset=None),
    # Every partition: of rows that are held, of a sample and then all rows, and as published.
    "partition-path": lk.PartitionPath(),
    "partition-path-best": lk.PartitionPath(effort="best"),
    "partition-path-sample": lk.PartitionPath(effort="fast"),
    "dcd-bundle": lk.DCDBundle.paper(),
    "dcd-bundle-plain": lk.DCDBundle(descent="plain"),
}
OTHERS = {
    name: kind()
    for name, kind in REGISTERED.items()
    if name not in ("auto", *LISTED) and issubclass(kind.solves, KMeansProblem)
}
ALGORITHMS = LISTED | OTHERS
SAME_PATH = {
    "incremental-rounds",
    "vcgmm-iso",
    "vcgmm-isoflex",
    "partition-path-best",
    "dcd-bundle",
}
"""Their totals, row state and passes are those of another one: the slow tier alone has them."""
OWN_TILES = {"lloyd", "truncated-lists", "vcgmm-diag", *OTHERS}
"""Between them, they have all searches whose kernels depend on the register tile."""
ANY_CHUNKING = {
    "lloyd",
    "truncated",
    "truncated-lists",
    "truncated-directions",
    "vc-gmm",
    *(name for name in LISTED if name.startswith(("vcgmm", "var", "dc"))),
}
"""Algorithms that promise the same bits for another chunking, given the same starting centres."""
MOVED_BOUNDS = {"nmbatch-paper"}
"""Where a chunk goes to another worker its bounds are made anew, and are closer."""
PATHS = {
    "partition-path": 4,
    "partition-path-best": 3,
    "partition-path-sample": 3,
    "dcd-bundle": 4,
    "dcd-bundle-plain": 4,
}
"""Algorithms that find every partition, and up to which: each is as much work as a fit of others.
They take no starting centres, and end by themselves."""
WEIGHING = {
    "partition-path": 4,
    "partition-path-best": 20,
    "dcd-bundle": 12,
    "dcd-bundle-plain": 12,
}
"""Rows of which one weighs anything: the others are read, and searched by nobody."""


def tiered(names, slow_ones=SAME_PATH):
    """Cases by name; those of the second argument are slow."""
    return [*(n for n in names if n not in slow_ones), *slow(*(n for n in names if n in slow_ones))]


every_algorithm = pytest.mark.parametrize("name", tiered(ALGORITHMS))
FEW = {"incremental", "truncated-lists", "nmbatch", "nmbatch-paper"}
"""Between them they have all kinds of row state."""
DYING = {*FEW, *OTHERS, "lloyd", "minibatch", "vcgmm-diag", "partition-path-sample"}
"""Between them they have all kinds of totals and passes that a worker may die in."""
few_algorithms = pytest.mark.parametrize("name", tiered(ALGORITHMS, ALGORITHMS.keys() - FEW))

# Those that find every partition say so where they are stopped before the last one.
pytestmark = pytest.mark.filterwarnings("ignore:the fit was stopped")


@pytest.fixture(autouse=True)
def as_many(monkeypatch) -> None:
    take_for_many(monkeypatch)


def take_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is done with many rows be done with these.

    What an algorithm may gather, because it is little, stays where it is, and a table of labels
    begins on 3,000 rows, which double twice.
    """
    monkeypatch.setattr(nested, "GATHERED_WORK", 0)
    monkeypatch.setattr(incremental.IncrementalLloyd, "_gathers", lambda *_: False)
    monkeypatch.setattr(incremental, "LEAST_ROWS", 1)
    monkeypatch.setattr(incremental, "TIMES_SAMPLE", 2)


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return blobs(N_ROWS, N_FEATURES, 30, seed=11, spread=1.5)


@pytest.fixture(scope="module")
def url(x, tmp_path_factory) -> str:
    out = tmp_path_factory.mktemp("contract") / "rows.zarr"
    lk.ingest(x, str(out), chunk_rows=CHUNK_ROWS, progress=False)
    return str(out)


def options_of(name):
    if name in PATHS:
        return {"init": "auto", "max_iter": 300}
    if name == "truncated-directions":
        return {"init": "auto", "max_iter": 14}
    return {"init": "k-means++", "max_iter": 7}


def weights(name):
    """1 and 2 for rows that are searched, 0 for all others; None: all rows are alike."""
    if name not in WEIGHING:
        return None
    rows = np.arange(N_ROWS)
    return np.where(rows % WEIGHING[name] == 0, 1.0 + rows % 3 % 2, 0.0)


@contextmanager
def few_rows_held(name):
    """Let a path search draw 2,000 of these rows, as it does where there are many."""
    with pytest.MonkeyPatch.context() as patch:
        if name == "partition-path-sample":
            patch.setattr(partition_path, "MOST_ROWS", 400)
            patch.setattr(partition_path, "LEAST_ROWS", 2_000)
        yield


def fit(data, name, *, algorithm=None, n_chunks=N_CHUNKS, n_workers=0, **options):
    """A fit of ``n_chunks`` chunks; at least ``n_workers`` workers have computed some of them."""
    options = {**options_of(name), "tol": 0, "random_state": 7, **options}
    km = lk.KMeans(PATHS.get(name, K), algorithm=algorithm or ALGORITHMS[name], **options)
    with watched_passes() as seen, few_rows_held(name):
        km.fit(data, sample_weight=weights(name))
    (passes,) = seen
    assert passes.n_chunks == n_chunks
    assert computing_workers(passes) >= n_workers
    return km


def history(km) -> list[dict]:
    """What each step has told, but for the time that it took."""
    return [{key: value for key, value in step.items() if key != "seconds"} for step in km.history_]


class Made(dict):
    """Values by name, each made once it is asked for."""

    def __init__(self, make) -> None:
        super().__init__()
        self.make = make

    def __missing__(self, name):
        self[name] = self.make(name)
        return self[name]


@pytest.fixture(scope="module")
def alone(url) -> dict[str, lk.KMeans]:
    """Fits on one thread of this process."""
    return Made(lambda name: fit(url, name, n_threads=1))


@pytest.fixture(scope="module")
def clean(alone) -> dict[str, tuple[str, bytes, float, int]]:
    """What one thread gives: the oracle of every test below."""
    return Made(lambda name: bits(alone[name]))


@pytest.mark.parametrize("labels", tiered(["incremental", "incremental-rounds"]))
def test_samples_double_before_all_rows_enter(labels, alone):
    rows = [int(step["extra"]["batch_rows"]) for step in alone[labels].history_]
    assert rows[:5] == [3_000, 3_000, 6_000, N_ROWS, N_ROWS]


@pytest.mark.parametrize("path", tiered(PATHS))
def test_paths_are_searched_in_memory_or_by_passes(path, alone):
    """A precondition of what follows: every way of a path search is gone."""
    km = alone[path]
    assert km.stop_reason_ == "converged"
    assert len(km.path_) == PATHS[path]
    passes = [step for step in km.history_ if step["extra"].get("path_passes")]
    if path == "partition-path-sample":
        searched = [step["rows"] for step in km.history_ if step not in passes]
        assert min(searched) > 0
        assert max(rows % N_ROWS for rows in searched), "these are not all rows"
        assert len(searched) > 5
        assert len(passes) > 5
    else:
        assert not passes


def test_directions_widen(alone):
    """A precondition, too: steps of both kinds, and means in all features twice in between."""
    steps = [step["extra"] for step in alone["truncated-directions"].history_]
    assert [step["features"] for step in steps] == 11 * [6.0] + 3 * [float(N_FEATURES)]
    rounds = [step["everywhere"] * step["opens_round"] for step in steps[:11]]
    assert sum(rounds) == 2


@pytest.mark.parametrize(
    ("name", "n_threads"),
    [
        *((name, 5) for name in sorted({*FEW, *PATHS, *OTHERS} - SAME_PATH)),
        *slow(*((name, 2) for name in ALGORITHMS)),
    ],
)
def test_threads(name, n_threads, url, clean):
    """Totals of threads, of which a test below looks at each, and threads of the driver."""
    assert bits(fit(url, name, n_threads=n_threads)) == clean[name]


@pytest.fixture
def dealt(monkeypatch) -> Counter[int]:
    """Threads' totals take turns, chunk by chunk of the table; how many chunks each has counted.

    Else a thread that is quick may count them all, and there is nothing to add up.
    """
    count, turn, counted = Engine._count, threading.Lock(), Counter()

    def counted_in_turn(self, ticket, slot, block, *others):
        if isinstance(self.rows, HeldRows):
            return count(self, ticket, slot, block, *others)
        with turn:
            slot = block.index % self.n_threads
            counted[slot] += 1
            return count(self, ticket, slot, block, *others)

    monkeypatch.setattr(Engine, "_count", counted_in_turn)
    return counted


def figures(total):
    """All that a total has found, as plain values; what says the same is equal."""
    if isinstance(total, ExactSums):
        return figures(total.values)
    if isinstance(total, CollectedRows):  # They come in any order.
        rows, x = (
            np.concatenate([getattr(block, name)[: block.n] for block in total.blocks])
            for name in ("rows", "x")
        )
        return figures([np.sort(rows), x[np.argsort(rows)]])
    if isinstance(total, np.ndarray):
        return total.dtype.str, total.shape, hashlib.sha256(total.tobytes()).hexdigest()
    if isinstance(total, list | tuple):
        return [figures(part) for part in total]
    if names := getattr(type(total), "__slots__", getattr(total, "__dict__", ())):
        held = {name: getattr(total, name) for name in names}
        total = {name: value for name, value in held.items() if not callable(value)}
    if isinstance(total, dict):
        return {key: figures(total[key]) for key in sorted(total)}
    return total


@pytest.mark.parametrize(
    ("name", "init"),
    [
        *((name, options_of(name)["init"]) for name in ALGORITHMS if name not in SAME_PATH),
        *slow(*((name, options_of(name)["init"]) for name in sorted(SAME_PATH))),
        ("lloyd", "random"),
        ("lloyd", "k-means||"),
    ],
)
def test_totals_of_threads_add_up(name, init, url, dealt, monkeypatch):
    """To what one thread has counted, where nothing is added up; also what no model shows."""
    found, reduce = [], BasePasses.reduce

    def watched(self, *args, **options):
        total = reduce(self, *args, **options)
        found.append((type(total).__name__, figures(total)))
        return total

    monkeypatch.setattr(BasePasses, "reduce", watched)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "total_of", lambda spec, totals: copy.deepcopy(*totals))
        fit(url, name, init=init, n_threads=1)
    assert set(dealt) == {0}
    alone = found.copy()
    found.clear()
    dealt.clear()
    fit(url, name, init=init, n_threads=3)
    assert len(dealt) == 3
    assert len(set(dealt.values())) == 1, "each has counted as many of the twelve chunks"
    # Rows that are held are gone through at the beginning and in the end only.
    assert len(found) == len(alone) > (2 if name in WEIGHING else 7)
    for (kind, told), expected in zip(found, alone, strict=True):
        assert (kind, told) == expected


@few_algorithms
def test_memory_or_store(name, x, url, clean):
    """The same chunks from an array: only where they come from differs."""
    with dask.config.set({"largek.data.memory-chunk-bytes": CHUNK_ROWS * N_FEATURES * 4}):
        np.testing.assert_array_equal(lk.open_rows(x).chunk_table, lk.open_rows(url).chunk_table)
        assert bits(fit(x, name)) == clean[name]


def first_rows(name, x):
    """Starting centres that no chunking changes; some algorithms take only their own."""
    return "auto" if options_of(name)["init"] == "auto" else x[:K]


@pytest.fixture(scope="module")
def in_one_piece(x) -> dict[str, tuple[str, bytes, float, int]]:
    """What rows give that are a single chunk."""
    return Made(lambda name: bits(fit(x, name, init=first_rows(name, x), n_chunks=1)))


@pytest.fixture(scope="module")
def in_chunks(x, tmp_path_factory) -> dict[int, str]:
    """Stores of the same rows, by the rows of a chunk."""

    def stored(chunk_rows):
        out = str(tmp_path_factory.mktemp("chunks") / "rows.zarr")
        lk.ingest(x, out, chunk_rows=chunk_rows, progress=False)
        return out

    return Made(stored)


@pytest.mark.parametrize("name", tiered(sorted(ANY_CHUNKING)))
@pytest.mark.parametrize(("chunk_rows", "n_chunks"), [(97, 124), *slow((4096, 3), (N_ROWS, 1))])
def test_chunking(name, chunk_rows, n_chunks, x, in_chunks, in_one_piece):
    found = fit(in_chunks[chunk_rows], name, init=first_rows(name, x), n_chunks=n_chunks)
    assert bits(found) == in_one_piece[name]


@every_algorithm
@pytest.mark.parametrize("n_workers", [3, *slow(1)])
def test_workers(name, n_workers, url, alone, worker_clients):
    km = fit(url, name, client=worker_clients(n_workers), n_workers=n_workers)
    assert bits(km) == bits(alone[name])
    if name not in MOVED_BOUNDS:
        assert history(km) == history(alone[name])


@pytest.mark.parametrize(
    ("name", "every"),
    [*((name, False) for name in sorted(FEW)), *slow(*((name, True) for name in ALGORITHMS))],
)
def test_resume_at_checkpoints(name, every, url, clean, tmp_path):
    """Lose everything after a step but the folder, and go on from there in another fit.

    A fit that is stopped, as every algorithm is by the next test, writes what one that goes on
    writes there.
    """
    folder = tmp_path / "job"

    def keep(snapshot):
        # Written since the step before.
        shutil.copytree(folder, tmp_path / f"lost in {snapshot.record['step']}")

    with dask.config.set({"largek.checkpoints.seconds": 0}):
        whole = fit(url, name, checkpoint=str(folder), callbacks=[keep])
    assert bits(whole) == clean[name]
    last = clean[name][3]
    for step in range(2, last + 1) if every else [last // 2 + 1]:
        seen = []
        km = fit(url, name, checkpoint=str(tmp_path / f"lost in {step}"), callbacks=[seen.append])
        assert seen[0].record["step"] == step
        assert bits(km) == clean[name]


@few_algorithms
def test_resume_on_a_cluster(name, url, clean, tmp_path, worker_clients):
    folder = str(tmp_path / "job")
    fit(url, name, max_iter=clean[name][3] - 1 if name in PATHS else 4, checkpoint=folder)
    km = fit(url, name, checkpoint=folder, client=worker_clients(2), n_workers=2)
    assert bits(km) == clean[name]


@pytest.fixture(scope="module")
def mortal_cluster() -> Iterator[Client]:
    """Two worker processes; of one that is killed its nanny makes another.

    Dask looks 15 s after a death whether the worker is there again, and gives it up if it is not:
    also if it was there, and the next test has just killed it.
    """
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}))
        yield make_client(stack, 2, processes=True)


@pytest.mark.parametrize("name", tiered(ALGORITHMS, ALGORITHMS.keys() - DYING))
def test_worker_killed_inside_a_pass(name, url, alone, clean, tmp_path, mortal_cluster):
    client = mortal_cluster
    client.wait_for_workers(2, timeout=120)
    before = {w["pid"] for w in worker_identities(client)}
    killer = Killer(tmp_path)
    killer.start()
    # Workers see the rows of a coreset, or those that are gathered, at the beginning and for the
    # labels. A table of labels meets all rows in the fourth epoch, and again in the fifth.
    at_step = 5 if name.startswith(("incremental", "vrkm")) else 3
    if getattr(ALGORITHMS[name], "coreset", None) or name == "vrkm-paper" or name in WEIGHING:
        at_step = 0
    if name == "truncated-directions":
        at_step = 14  # At first workers see the rows where a round begins, and keep only labels.
    if name == "partition-path-sample":
        at_step = next(s["step"] for s in alone[name].history_ if s["extra"]["path_passes"])
    algorithm = WithBarrier(ALGORITHMS[name], str(tmp_path), at_step)
    # The one that is killed there has not ended anything before.
    km = fit(url, name, algorithm=algorithm, client=client, n_workers=2 if at_step else 1)
    join(killer)
    assert killer.killed in before, "the pass was not in flight on a worker"
    assert bits(km) == clean[name]
    assert algorithm.spent()["retries"] > 0, "nothing was computed again"
    if at_step and algorithm.spent()["keeps_rows"]:
        assert algorithm.spent()["rebuilt"] > 0, "no row state was rebuilt"


@few_algorithms
def test_worker_joins(name, url, clean, fresh_cluster):
    client = fresh_cluster(n_workers=1, processes=False)
    cluster = client.cluster

    def join(snapshot):
        if snapshot.record["step"] == 3:
            cluster.scale(2)
            client.wait_for_workers(2)

    km = fit(url, name, client=client, callbacks=[join], n_workers=2)
    assert bits(km) == clean[name]
    assert len(worker_identities(client)) == 2


@pytest.mark.parametrize("name", tiered([*ALGORITHMS, "sparse"]))
def test_totals_say_how_much_is_sent(name, x, monkeypatch):
    """That decides whether a total is sent, or stays where it is to be added up there."""
    sizes, reduce = [], BasePasses.reduce

    def measured(self, *args, **options):
        total = reduce(self, *args, **options)
        parts = len(getattr(total, "shares", ()))
        parts += len(total.inertia) if isinstance(total, CountTotal) else 0
        sizes.append((type(total).__name__, parts, nbytes(total), len(pickle.dumps(total, 5))))
        return total

    monkeypatch.setattr(BasePasses, "reduce", measured)
    x = x[:6000]
    if name == "sparse":
        x = scipy.sparse.csr_array(np.where(x > 0, x, 0))
    algorithm = lk.NMBatch(b0=1000) if name == "sparse" else ALGORITHMS[name]
    if name in PATHS:
        with few_rows_held(name):
            lk.KMeans(16, algorithm=algorithm, random_state=0).fit(x[:500])
    own = ("auto",) if name == "truncated-directions" else ("random", "k-means||")
    for init in () if name in PATHS else own:
        # Of random rows among so few distinct ones many are alike, and their centres are moved.
        options = {"algorithm": algorithm, "init": init, "max_iter": 3, "random_state": 0}
        lk.KMeans(150, **options).fit(x[np.arange(6000) % 200] if init == "random" else x)
    large = 1_000 if name.startswith("dcd") else 10_000  # which has its rows, and no passes
    assert max(told for _, _, told, _ in sizes) > large, "some are large"
    for kind, parts, told, sent in sizes:
        assert sent - 1_100 - 100 * parts <= told <= sent, kind


def worker_identities(client):
    def identity(dask_worker):
        return {"pid": os.getpid(), "address": dask_worker.address}

    return list(client.run(identity).values())


@pytest.mark.parametrize("name", tiered(ALGORITHMS, ALGORITHMS.keys() - OWN_TILES))
@pytest.mark.parametrize("tile", ["plain", *slow("avx2", "avx512", "neon")])
def test_vector_widths(name, tile, url, clean):
    """Every other test has this machine's."""
    with dask.config.set({"largek.kernels.tile": tile}):
        assert bits(fit(url, name)) == clean[name]


@pytest.mark.slow
@pytest.mark.parametrize("tile", ["plain", "avx2", "avx512", "neon"])
@pytest.mark.parametrize("dtype", [np.float64, np.uint8])
def test_vector_widths_of_other_types(tile, dtype, x):
    x = (x * 9 + 120).clip(0, 255).astype(dtype)
    with dask.config.set({"largek.data.memory-chunk-bytes": 1}):
        expected = bits(fit(x, "lloyd"))
        with dask.config.set({"largek.kernels.tile": tile}):
            assert bits(fit(x, "lloyd")) == expected


SCRIPT = """
import hashlib, json, sys, pytest
from tests.algorithms.test_contract import bits, fit, take_for_many
url, *names = sys.argv[1:]
take_for_many(pytest.MonkeyPatch())
out = {name: bits(fit(url, name)) for name in names}
for name, (digest, labels, inertia, n_iter) in out.items():
    out[name] = [digest, hashlib.sha256(labels).hexdigest(), inertia.hex(), n_iter]
print(json.dumps(out))
"""


@pytest.mark.parametrize(
    "environment",
    [
        {"OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"},
        *slow({"OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "3"}),
    ],
    ids=lambda e: "-".join(e),
)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(tuple(n for n in LISTED if n not in SAME_PATH), id="listed"),
        pytest.param(tuple(sorted(SAME_PATH)), id="same path", marks=pytest.mark.slow),
        *(pytest.param((n,), id=n) for n in OTHERS),
    ],
)
def test_other_libraries_choices_do_not_matter(environment, names, url, clean):
    """BLAS and numpy pick their code by CPU; nothing of theirs may reach a model."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, url, *names],
        env=os.environ | environment | {"DASK_LARGEK__DATA__READ_CHUNK_BYTES": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    got = json.loads(done.stdout.splitlines()[-1])
    assert tuple(got) == names
    for name in names:
        digest, labels, inertia, n_iter = clean[name]
        expected = [digest, hashlib.sha256(labels).hexdigest(), inertia.hex(), n_iter]
        assert got[name] == expected
