"""The fits: every algorithm, start, type of rows, and k on both sides of every threshold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

import largek_dask as lk
from largek_dask.algorithms.choices import COVARIANCES, MIXTURE_INITS
from tests.digests.tables import Table, rows_of

INITS = (
    "random", "two-level", "k-means++", "greedy-k-means++", "k-means||", "afk-mc2", "array"
)  # fmt: skip

FLOAT32, FLOAT64, UINT8 = Table(), Table(dtype="float64", weights="some"), Table(dtype="uint8")
BOOL, CSR, HEAVY_CSR = Table(dtype="bool"), Table(dtype="csr"), Table(dtype="csr", weights="some")
WEIGHTED = Table(weights="some")
LIGHT, LIGHT64 = Table(weights="light"), Table(dtype="float64", weights="light")
FEW, FLAT = Table(kind="few"), Table(kind="flat")
NARROW, WIDE = Table(d=3), Table(n=2_400, d=128)
LARGE, LARGE64 = Table(n=12_500), Table(n=12_500, dtype="float64", weights="some")
LARGE8, LARGE_CSR = Table(n=12_500, dtype="uint8"), Table(n=12_500, dtype="csr")
FAR, FAR_WEIGHTED = Table("far", n=12_000, d=5), Table("far", n=12_000, d=5, weights="some")
TAILS, EVEN = Table("tails", n=12_000, d=5), Table("flat", n=6_000, d=6)
MEMORY, MEMORY_CSR = Table(stored=False), Table(dtype="csr", stored=False)
BAD, BAD_WEIGHTED = Table("bad"), Table("bad", dtype="float64", weights="some")
SMALL, SMALL64 = Table(n=500), Table(n=500, dtype="float64", weights="some")
LINE, LINE64 = Table(d=1), Table(d=1, dtype="float64", weights="some")
SAMPLED = Table(n=140_000, d=3)
WORDS = Table("words", n=7_000, d=800)
WORDS_WEIGHTED = Table("words", n=7_000, d=800, weights="some")
SMALL_CSR = Table(dtype="csr", n=960)
MANY, MANY64 = Table(n=80_050, d=3), Table(n=80_050, d=3, dtype="float64", weights="some")
MANY_HELD = Table(n=80_050, d=3, stored=False)
MANY_CSR = Table("flat", dtype="csr", n=100_100, d=3, stored=False)


@dataclass(frozen=True)
class Case:
    """One fit."""

    family: str
    algorithm: Any
    table: Table
    k: int
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """What it is called in ``golden.json``."""
        told = [f"k={self.k}", *(f"{name}={value}" for name, value in self.options)]
        chosen = [] if isinstance(self.algorithm, str) else _chosen(self.algorithm)
        return f"{self.family}: {self.table}: {' '.join(chosen + told)}"

    def estimator(self, n_threads: int | None = None) -> lk.KMeans | lk.Mixture:
        """What fits it."""
        options = {"random_state": 3, "memory_limit": "256MiB"} | dict(self.options)
        if options.get("init") == "array":
            x = rows_of(self.table)[np.linspace(0, self.table.n - 1, self.k).astype(int)]
            options["init"] = (x.toarray() if self.table.dtype == "csr" else x) * np.float32(1)
        options["n_threads"] = n_threads
        if self.family == "mixture":
            return lk.Mixture(self.k, **options)
        return lk.KMeans(self.k, algorithm=self.algorithm, **options)


def _chosen(algorithm: Any) -> list[str]:
    """Parameters that are not the default, so that a new one changes no name."""
    default = type(algorithm)()
    values = {
        field.name: (getattr(algorithm, field.name), getattr(default, field.name))
        for field in fields(algorithm)
    }
    form = ["paper"] if type(algorithm).__name__.endswith("Paper") else []
    told = [f"{name}={value}" for name, (value, default) in values.items() if value != default]
    return form + told


def _auto() -> Iterator[Case]:
    def case(table: Table, k: int, **options: Any) -> Case:
        return Case("auto", "auto", table, k, tuple(options.items()))

    for table in (FLOAT32, FLOAT64, UINT8, CSR):
        for k in (1, 8, 9, 129):
            yield case(table, k)
    yield case(BOOL, 129)
    for effort in ("fast", "best"):
        for table, k in ((FLOAT32, 20), (FLOAT32, 140), (SMALL_CSR, 20), (CSR, 9)):
            yield case(table, k, effort=effort)
    yield case(MANY_CSR, 4, effort="fast")
    for table in (MEMORY, MEMORY_CSR, LIGHT, FEW, HEAVY_CSR):
        yield case(table, 100)
    yield case(BAD, 30, on_bad_rows="skip")
    yield case(FLOAT32, 30, normalize="l2")
    yield case(CSR, 30, normalize="l2")


def _lloyd() -> Iterator[Case]:
    def case(table: Table, k: int, **options: Any) -> Case:
        options = {"max_iter": 25} | options
        return Case("lloyd", lk.Lloyd(), table, k, tuple(options.items()))

    for table in (FLOAT32, FLOAT64, UINT8, CSR):
        for k in (2, 100, 101):
            yield case(table, k)
    yield case(FLOAT32, 1)
    yield case(BOOL, 40)
    for table in (FLOAT64, UINT8, FLAT):
        yield case(table, 70)
    yield case(WIDE, 140, max_iter=40)
    for init in INITS:
        for table, k in ((WEIGHTED, 60), (CSR, 40)):
            yield case(table, k, init=init, max_iter=12)
    # Fewer distinct rows than clusters; rows that become empty, and what is done of them.
    for empty_clusters in ("relocate", "keep"):
        yield case(FEW, 60, init="random", empty_clusters=empty_clusters)
        yield case(NARROW, 300, init="random", empty_clusters=empty_clusters)
    yield case(LIGHT, 20)
    yield case(LIGHT64, 20)
    yield case(MEMORY, 50)
    yield case(MEMORY_CSR, 50)
    yield case(FLOAT32, 30, n_init=3)
    yield case(FLOAT32, 30, tol=0.0, max_iter=200)
    yield case(FLOAT32, 30, max_iter=1)
    yield case(FLOAT32, 30, normalize="l2")
    yield case(CSR, 30, normalize="l2", init="k-means||")
    yield case(BAD, 30, on_bad_rows="skip")
    yield case(BAD_WEIGHTED, 30, on_bad_rows="skip", init="k-means||")


def _minibatch() -> Iterator[Case]:
    def case(table: Table, k: int, rows: int | str, votes: str, **options: Any) -> Case:
        algorithm = lk.MiniBatch(batch_rows=rows, votes=votes)
        return Case("minibatch", algorithm, table, k, tuple(({"max_iter": 9} | options).items()))

    for votes in ("all", "latest"):
        for table in (FLOAT32, FLOAT64, UINT8, BOOL, CSR, LIGHT, MEMORY):
            yield case(table, 40, 700, votes)
        for table, k in ((LARGE, 8), (LARGE, 500), (FEW, 60), (HEAVY_CSR, 1)):
            yield case(table, k, "auto", votes)
        yield case(FLOAT32, 40, 700, votes, init="k-means||")
        yield case(FLOAT32, 40, 1_000, votes, max_iter=3)
        yield case(BAD, 40, 1_000, votes, on_bad_rows="skip")
        yield case(CSR, 40, 1_000, votes, normalize="l2", n_init=2)


def _nmbatch() -> Iterator[Case]:
    def case(table: Table, k: int, algorithm: Any = None, **options: Any) -> Case:
        options = {"max_iter": 40} | options
        algorithm = algorithm or lk.NMBatch(b0=400)
        return Case("nmbatch", algorithm, table, k, tuple(options.items()))

    for table in (FLOAT32, FLOAT64, UINT8, BOOL, CSR, HEAVY_CSR):
        for k in (2, 12, 101):
            yield case(table, k)
    for table in (FLOAT32, FLOAT64, CSR):
        yield case(table, 50, lk.NMBatch.paper(b0=400))
        yield case(table, 50, lk.NMBatch(b0=400, gather=0))
        yield case(table, 50, lk.NMBatch(b0=400, gather=1_000))
        yield case(table, 50, lk.NMBatch(b0=400, rho=10.0, stall=0.0))
        yield case(table, 50, init="random")
    yield case(UINT8, 50)
    yield case(FLAT, 50, lk.NMBatch(b0=400, gather=0, moves=False))
    for table, k in ((LARGE, 100), (LARGE, 130), (LARGE64, 30), (LARGE_CSR, 60)):
        yield case(table, k, lk.NMBatch())
    yield case(WIDE, 140, lk.NMBatch(moves=False, b0=600))
    for init in INITS:
        yield case(CSR if init in ("random", "k-means||") else WEIGHTED, 30, init=init)
    yield case(FEW, 60, init="random")
    yield case(FEW, 60, init="random", empty_clusters="keep")
    yield case(NARROW, 300, lk.NMBatch(b0=700, gather=0), init="random")
    yield case(LIGHT, 20)
    yield case(MEMORY, 50)
    yield case(BAD, 30, on_bad_rows="skip")
    yield case(FLOAT32, 30, max_iter=4)
    yield case(CSR, 30, normalize="l2", n_init=2)


def _truncated() -> Iterator[Case]:
    def case(table: Table, k: int, algorithm: Any = None, **options: Any) -> Case:
        options = {"max_iter": 60} | options
        algorithm = algorithm or lk.Truncated()
        return Case("truncated", algorithm, table, k, tuple(options.items()))

    for table in (FLOAT32, FLOAT64, UINT8):
        for k in (2, 3, 32, 33, 128, 129):
            yield case(table, k)
    yield case(FLOAT32, 1)
    yield case(BOOL, 40)
    for algorithm in (
        lk.Truncated(moves=False),
        lk.Truncated(rounds=0),
        lk.Truncated(rounds=2),
        lk.Truncated(neighbours=16),
        lk.Truncated(neighbours=128, rounds=3),
    ):
        yield case(FLOAT32, 140, algorithm)
        yield case(LARGE64, 140, algorithm)
    # Few directions before all features.
    for table in (FLOAT32, FLOAT64, UINT8, WEIGHTED):
        yield case(table, 60, lk.Truncated(directions=10))
    yield case(LARGE, 135, lk.Truncated(directions=4))
    # Random directions before all features.
    yield case(WORDS, 60)
    yield case(WORDS_WEIGHTED, 150)
    # Samples before all rows: one of them, or one after the other.
    for table in (LARGE, LARGE64, LARGE8):
        for k in (10, 120):
            yield case(table, k)
    yield case(LARGE, 135)
    yield case(LARGE, 300)
    for k in (4, 12, 40):
        yield case(FAR, k)
    yield case(FAR_WEIGHTED, 12)
    yield case(FAR, 140)
    for k in (12, 140):
        yield case(TAILS, k)
    # Lists grow until they are as long as they are made to be.
    yield case(EVEN, 400, max_iter=200)
    for init in INITS:
        yield case(WEIGHTED, 140, init=init)
        yield case(UINT8, 20, init=init)
    for table, k in ((FEW, 60), (FLAT, 40), (FLAT, 150), (NARROW, 300), (WIDE, 140)):
        yield case(table, k)
    yield case(LIGHT, 140)
    yield case(LIGHT64, 20)
    yield case(MEMORY, 140)
    yield case(BAD, 140, on_bad_rows="skip")
    yield case(BAD_WEIGHTED, 20, on_bad_rows="skip")
    yield case(FLOAT32, 20, normalize="l2")
    yield case(FLOAT32, 140, n_init=2)
    yield case(FLOAT32, 140, max_iter=5)
    yield case(FLOAT32, 140, tol=0.0, max_iter=200)


def _vcgmm() -> Iterator[Case]:
    def case(table: Table, k: int, algorithm: Any = None, **options: Any) -> Case:
        options = {"max_iter": 60} | options
        return Case("vc-gmm", algorithm or lk.VCGMM(), table, k, tuple(options.items()))

    # Candidates and lists of all components, and of one less; the first search by cells.
    for table in (FLOAT32, FLOAT64, UINT8):
        for k in (2, 6, 32, 33, 140):
            yield case(table, k)
    yield case(FLOAT32, 1)
    yield case(FLOAT32, 5)
    yield case(BOOL, 40)
    for k in (240, 241, 2_000, 2_001):
        yield case(EVEN, k, max_iter=12, init="random")
    for algorithm in (
        lk.VCGMM(candidates=1),
        lk.VCGMM(candidates=12),
        lk.VCGMM(candidates=32, neighbours=40),
        lk.VCGMM(candidates=3, neighbours=8),
        lk.VCGMM(neighbours=8, explore=2),
        lk.VCGMM(coreset=1_200),
        lk.VCGMM.paper(),
        lk.VCGMM.paper(candidates=3, explore=1, coreset=None),
        lk.VCGMM.paper(coreset=1_200, neighbours=8, initial_e_steps=1),
    ):
        yield case(FLOAT32, 100, algorithm)
        yield case(FLOAT64, 100, algorithm)
    yield case(LARGE64, 140, lk.VCGMM(coreset=3_000))
    yield case(LARGE8, 140)
    yield case(FAR, 40)
    yield case(FAR_WEIGHTED, 40, lk.VCGMM(coreset=2_000))
    yield case(TAILS, 100)
    for init in INITS:
        yield case(WEIGHTED, 140, init=init)
        yield case(UINT8, 20, lk.VCGMM(neighbours=8, initial_e_steps=1), init=init)
    for table, k in ((FEW, 30), (FEW, 60), (FLAT, 150), (NARROW, 300), (WIDE, 140)):
        yield case(table, k)
    yield case(LIGHT, 140)
    yield case(LIGHT64, 20)
    yield case(MEMORY, 140)
    yield case(BAD, 140, on_bad_rows="skip")
    yield case(FLOAT32, 20, normalize="l2")
    yield case(FLOAT32, 100, n_init=2)
    yield case(FLOAT32, 100, max_iter=5)
    yield case(FLOAT32, 100, tol=0.0, max_iter=200)


def _mixture() -> Iterator[Case]:
    def case(table: Table, k: int, covariance: str, **options: Any) -> Case:
        given = {"covariance": covariance, "max_iter": 60} | options
        return Case("mixture", "vc-gmm", table, k, tuple(given.items()))

    for covariance in COVARIANCES:
        for table in (FLOAT32, FLOAT64, UINT8):
            for k in (6, 33, 140):
                yield case(table, k, covariance)
        yield case(FLOAT32, 1, covariance)
        yield case(NARROW, 241, covariance)
        yield case(WEIGHTED, 100, covariance, candidates=3, neighbours=8, explore=1)
        yield case(WEIGHTED, 100, covariance, coreset=1_500)
        for init in (*MIXTURE_INITS, "array"):
            yield case(FLOAT64, 60, covariance, init=init)
        for table, k in ((FEW, 30), (FEW, 60), (FLAT, 150), (WIDE, 60), (LIGHT64, 40)):
            yield case(table, k, covariance)
        yield case(MEMORY, 60, covariance)
        yield case(BAD_WEIGHTED, 60, covariance, on_bad_rows="skip")
        yield case(FLOAT32, 60, covariance, normalize="l2")
        yield case(FLOAT32, 60, covariance, max_iter=4)
        yield case(FLOAT32, 30, covariance, tol=0.0, max_iter=200)
        yield case(UINT8, 60, covariance, dither=True, n_init=2)


def _incremental() -> Iterator[Case]:
    def case(table: Table, k: int, algorithm: Any = None, **options: Any) -> Case:
        options = {"max_iter": 30} | options
        algorithm = algorithm or lk.IncrementalLloyd()
        return Case("incremental", algorithm, table, k, tuple(options.items()))

    for table in (FLOAT32, FLOAT64, UINT8, CSR):
        for k in (2, 12, 101):
            yield case(table, k)
    for table in (BOOL, HEAVY_CSR, LIGHT, LIGHT64, MEMORY, MEMORY_CSR):
        yield case(table, 40)
    for algorithm in (
        lk.IncrementalLloyd(rounds=1),
        lk.IncrementalLloyd(rounds=3),
        lk.IncrementalLloyd(rounds=40),
        lk.IncrementalLloyd(smoothing=1.0),
        lk.IncrementalLloyd(smoothing=0.1),
    ):
        for table in (FLOAT32, FLOAT64, CSR):
            yield case(table, 50, algorithm)
    # Samples before all rows, which are gathered.
    for table in (MANY, MANY64, MANY_HELD, MANY_CSR):
        yield case(table, 12)
    for init in INITS:
        yield case(CSR if init in ("random", "k-means||") else WEIGHTED, 30, init=init)
    for empty_clusters in ("relocate", "keep"):
        yield case(FEW, 60, init="random", empty_clusters=empty_clusters)
        yield case(NARROW, 300, init="random", empty_clusters=empty_clusters)
    yield case(FLAT, 40, tol=0.0, max_iter=200)
    yield case(BAD, 30, on_bad_rows="skip")
    yield case(FLOAT32, 30, max_iter=3)
    yield case(CSR, 30, normalize="l2", n_init=2)


def _vrkm() -> Iterator[Case]:
    """In rounds, and row by row."""

    def case(table: Table, k: int, algorithm: lk.VRKM, **options: Any) -> Case:
        return Case("vrkm", algorithm, table, k, tuple(({"max_iter": 30} | options).items()))

    def snapshot(round_rows: int = 300, **parameters: Any) -> lk.VRKM:
        return lk.VRKM(round_rows=round_rows, **parameters)

    for table in (FLOAT32, FLOAT64, UINT8, CSR):
        for k in (2, 60):
            yield case(table, k, snapshot())
            yield case(table, k, lk.VRKM.paper(), max_iter=6)
    for table in (FLOAT64, MEMORY, MEMORY_CSR):
        yield case(table, 50, lk.VRKM())
    for algorithm in (
        snapshot(plus_plus=False),
        snapshot(700, epoch=0.3),
        snapshot(200, epoch=2.5),
        snapshot(eta=0.3),
        snapshot(epoch="2^s"),
        snapshot(1),
        snapshot(1, plus_plus=False, epoch=0.5),
    ):
        yield case(FLOAT32, 50, algorithm, max_iter=12)
        yield case(HEAVY_CSR, 50, algorithm, max_iter=12)
    # The published rate is too much of it.
    for table, k in ((FLOAT32, 1_500), (FLAT, 1_000)):
        yield case(table, k, snapshot(1_000), init="random", max_iter=12)
        yield case(table, k, lk.VRKM.paper(), init="random", max_iter=6)
    for table, k in ((LARGE, 130), (LARGE64, 30), (WIDE, 140), (NARROW, 300)):
        yield case(table, k, snapshot(), max_iter=15)
    for table, k in ((FEW, 60), (FLAT, 40), (LIGHT, 20)):
        yield case(table, k, snapshot(), init="random", max_iter=60)
        yield case(table, k, lk.VRKM.paper(), max_iter=4)
    yield case(FEW, 60, snapshot(), init="random", empty_clusters="keep")
    yield case(BAD, 30, snapshot(), on_bad_rows="skip")
    yield case(CSR, 30, snapshot(), normalize="l2", n_init=2)


def _partition_path() -> Iterator[Case]:
    def case(table: Table, k: int, algorithm: Any = None, **options: Any) -> Case:
        algorithm = algorithm or lk.PartitionPath()
        return Case("partition-path", algorithm, table, k, tuple(options.items()))

    for table in (FLOAT32, FLOAT64, UINT8, BOOL):
        for k in (1, 7):
            yield case(table, k)
    for effort in ("fast", "best"):
        for table in (FLOAT32, FLOAT64, FLAT):
            yield case(table, 6, lk.PartitionPath(effort=effort))
    for table in (LIGHT, LIGHT64, MEMORY, FEW, FAR_WEIGHTED, TAILS):
        yield case(table, 9)
    # A sample and then all rows; one dimension.
    for effort in ("fast", "balanced"):
        yield case(SAMPLED, 5, lk.PartitionPath(effort=effort))
    for table in (LINE, LINE64):
        yield case(table, 20)
    yield case(FLOAT32, 8, max_iter=4)
    yield case(FLOAT32, 6, normalize="l2")
    yield case(BAD, 6, on_bad_rows="skip")


def _dcd_bundle() -> Iterator[Case]:
    for table in (SMALL, SMALL64, FEW):
        yield Case("dcd-bundle", lk.DCDBundle(), table, 4)
        yield Case("dcd-bundle", lk.DCDBundle(descent="plain"), table, 4)


FAMILIES = {
    "auto": tuple(_auto()),
    "lloyd": tuple(_lloyd()),
    "minibatch": tuple(_minibatch()),
    "nmbatch": tuple(_nmbatch()),
    "truncated": tuple(_truncated()),
    "vc-gmm": tuple(_vcgmm()),
    "incremental": tuple(_incremental()),
    "vrkm": tuple(_vrkm()),
    "mixture": tuple(_mixture()),
    "partition-path": tuple(_partition_path()),
    "dcd-bundle": tuple(_dcd_bundle()),
}


def few_of(family: str) -> list[Case]:
    """Return a few cases of a family for the default tier.

    Over all families they have every value of every option and table; each family has every
    parameter of its algorithms, and every type, weight and magnitude of k. Not all numbers of
    features: up to 8 of them have kernels of their own.
    """
    return _few()[family]


@cache
def _few() -> dict[str, list[Case]]:
    few: dict[str, list[Case]] = {}
    met: set[Any] = set()
    for family, cases in FAMILIES.items():
        few[family] = []
        unmet = set().union(*map(_values, cases)) - {value for value in met if value[0] in SHARED}
        while unmet:
            # (those with most values that are not there yet, then the quickest)
            best = max(cases, key=lambda case: (len(_values(case) & unmet), -case.k * case.table.n))
            few[family].append(best)
            unmet -= _values(best)
            met |= _values(best)
    return few


SHARED = {
    "kind", "stored", "init", "max_iter", "tol", "n_init", "normalize", "on_bad_rows"
}  # fmt: skip
"""What takes the same path in every algorithm: one family has it."""


def _values(case: Case) -> set[tuple[str, Any]]:
    table, named = case.table, not isinstance(case.algorithm, str)
    parts = {name: getattr(table, name) for name in ("kind", "dtype", "weights", "stored")}
    parts |= {"k": case.k.bit_length(), **dict(case.options)}
    return {*parts.items(), *(("chosen", at) for at in (_chosen(case.algorithm) if named else ()))}
