"""The spectral bound never lies above the least objective there is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from largek_dask.algorithms.parts import spectrum
from largek_dask.algorithms.parts.spectrum import lower_bounds, scatter_sums, spectral_bounds
from largek_dask.data.sources import open_rows
from largek_dask.passes.local import LocalPasses
from tests.oracles.dcd_certain import optimum

KINDS = ("plain", "constant column", "repeats", "one far out", "far", "grid", "a plane")


def rows_of(kind, r):
    n, d = int(r.integers(4, 9)), int(r.integers(2, 5))
    x = r.normal(size=(n, d))
    if kind == "constant column":
        x[:, 0] = 0.1
    if kind == "repeats":
        x[n // 2 :] = x[0]
    if kind == "one far out":
        x[0] = 1e9
    if kind == "far":
        x += 1e6
    if kind == "grid":
        x = np.round(x)
    if kind == "a plane":
        x = x[:, :2] @ r.normal(size=(2, d))
    return x


def bounds_of(x, k, weight=None, **options):
    with LocalPasses(open_rows(x, sample_weight=weight), n_threads=1, **options) as passes:
        return lower_bounds(passes, k)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_bounds_are_never_above_the_least_objective(seed, kind):
    r = np.random.default_rng([seed, KINDS.index(kind)])
    x = rows_of(kind, r)
    weight = None if seed % 2 else r.integers(1, 4, len(x)).astype(float)
    found = bounds_of(x, 3, weight)
    for size, bound in enumerate(found, start=1):
        best = optimum(x, np.ones(len(x)) if weight is None else weight, size)
        assert 0 <= bound <= best
    assert (np.diff(found) <= 0).all()
    best = float(optimum(x, np.ones(len(x)) if weight is None else weight, 1))
    assert found[0] >= best * (1 - 1e-12)


def test_two_rows_on_each_side_leave_nothing_to_doubt():
    """Where clusters lie on one line and are round in no direction, the bound is the optimum."""
    x = np.array([[-5.0, 1.0], [-5.0, -1.0], [5.0, 1.0], [5.0, -1.0]])
    assert bounds_of(x, 4).tolist() == pytest.approx([104, 4, 0, 0], abs=1e-10)
    assert float(optimum(x, np.ones(4), 2)) == 4


def test_the_same_bits_for_any_chunks_and_in_memory(tmp_path):
    import zarr

    r = np.random.default_rng(3)
    x = (r.normal(size=(3_000, 5)) * [1, 10, 100, 1, 1] + 50).astype(np.float32)
    x[17] = np.nan
    found = []
    for rows in (3_000, 700, 64):
        path = str(tmp_path / f"{rows}.zarr")
        zarr.create_array(path, data=x, chunks=(rows, 5))
        for threads in (1, 3):
            source = open_rows(path)
            with LocalPasses(source, n_threads=threads, on_bad_rows="skip") as passes:
                found.append((len(passes.chunk_table) - 1, lower_bounds(passes, 6)))
                shift = passes.statistics.shift
    assert len({n for n, _ in found}) > 1
    assert len({bounds.tobytes() for _, bounds in found}) == 1
    good = np.delete(x, 17, axis=0)
    held = spectral_bounds(*scatter_sums(good, None, shift).matrix(), 6)
    assert held.tobytes() == found[0][1].tobytes()
    true = np.linalg.eigvalsh(np.cov(good.T.astype(float), bias=True) * len(good))[::-1]
    assert held == pytest.approx([*(true[i:].sum() for i in range(5)), 0], rel=1e-6, abs=1e-6)


def test_where_it_is_not_computed(monkeypatch):
    x = np.random.default_rng(0).normal(size=(20, 4))
    assert bounds_of(sparse.csr_matrix(x), 3).tolist() == [0, 0, 0]
    monkeypatch.setattr(spectrum, "MOST_FEATURES", 4)
    assert bounds_of(x, 3)[1] > 0
    monkeypatch.setattr(spectrum, "MOST_FEATURES", 3)
    assert bounds_of(x, 3).tolist() == [0, 0, 0]


def test_an_error_is_counted_against_the_bound():
    scatter = np.diag([9.0, 4.0, 1.0])
    plain = spectral_bounds(scatter, 0.0, 4)
    assert plain == pytest.approx([14, 5, 1, 0], rel=1e-14)
    less = spectral_bounds(scatter, 0.5, 4)
    assert less == pytest.approx([14 - 0.5 * 3**0.5, 5 - 0.5 * 2**0.5, 0.5, 0], rel=1e-5)
    assert spectral_bounds(scatter, np.inf, 2).tolist() == [0, 0]
    assert spectral_bounds(scatter * np.nan, 0.0, 2).tolist() == [0, 0]
