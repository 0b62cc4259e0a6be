"""The large fit, at a size of seconds: real workers, figures that agree, the same bits struck."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr

from benchmarks import large, large_runs
from largek_dask.data.synthetic import BLOCK_ROWS, generate
from tests.faults.rig import QUICK

SIZE = large.Size(
    24_000, 160, long=3.0, least=200.0, chunk_rows=3_000, max_iter=8, warm=False
)  # fmt: skip
"""There are more clusters than rows meet in a step. Its time is never over."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    place = tmp_path_factory.mktemp("large")
    # Waits of a deployment are of a minute; and every step is to be in the curve.
    told = {**QUICK, "LARGEK__CHECKPOINTS__SECONDS": 0}
    # Processes to start are most of what it takes.
    result = large.measure(SIZE, place, place / "runs", strike=True, nannies=False, **told)
    return place, json.loads(json.dumps(result))


def test_a_run_tells_what_it_took(measured):
    _, result = measured
    for name in ("fit", "long", "strike"):
        record = result[name]
        assert record["reason"] == "max_iter"
        assert record["n_iter"] == SIZE.max_iter
        phases = record["phases"]
        assert sum(phase["seconds"] for phase in phases) == pytest.approx(record["seconds"], abs=1)
        assert phases[0]["name"] == "start"
        assert phases[-1]["name"] == "last pass"
        assert {"samples", "rows"} <= {phase["name"] for phase in phases}
        for process in ("scheduler", "worker 1", "worker 2"):
            assert record["peaks"][process] > 5e7
            assert all(phase["cpu"][process] >= 0 for phase in phases)
            assert sum(phase["cpu"][process] for phase in phases) > 0
            held = np.array(record["memory"][process])
            assert held[:, 1].max() <= record["peaks"][process]
    fit = result["fit"]
    assert sum(phase["steps"] for phase in fit["phases"]) == fit["n_iter"]
    assert fit["digest"] == result["long"]["digest"]
    assert result["same_labels"]
    assert large.cpu_of(fit) > 0


def test_energies_are_those_of_rows_that_are_not_in_the_store(measured):
    _, result = measured
    held = large_runs.held_rows(SIZE.rows, SIZE.components)
    assert len(held) == BLOCK_ROWS
    seconds, energies, cpu = np.array(result["fit"]["curve"]).T
    assert len(seconds) > 3
    assert all(np.diff(seconds) >= 0)
    assert all(np.diff(cpu) >= 0)
    assert cpu[-1] <= large.cpu_of(result["fit"]) + 0.1
    # The first centres are of few rows.
    assert energies[-1] < energies[0]
    assert result["fit"]["energy"] == energies[-1]
    inside = result["fit"]["inertia"] / SIZE.rows
    assert inside < energies[-1] < 1.1 * inside


def test_a_struck_fit_is_the_same(measured):
    _, result = measured
    struck = result["strike"]
    assert struck["kills"] == 2
    # Both have hit: the scheduler has come back, and a worker's part was done by another one.
    assert struck["runs"] == 2
    assert struck["left"] >= 1
    assert struck["same"]
    assert struck["same_labels"]
    assert struck["digest"] == result["fit"]["digest"]


def test_rows_are_written_once(measured):
    place, _ = measured
    [store] = place.glob(f"{SIZE.rows}x*.zarr")
    before = store.stat().st_mtime_ns
    assert large_runs.stored(place, SIZE.rows, SIZE.components) == str(store)
    assert store.stat().st_mtime_ns == before
    known = generate("mixture", SIZE.rows, 32, n_components=SIZE.components, seed=large_runs.SEED)
    np.testing.assert_array_equal(zarr.open_array(str(store), mode="r")[:], known)


def test_tables_and_picture(measured, tmp_path):
    _, result = measured
    told = large.table(result | {"load": [0.5, 2.0], "command": "python -m benchmarks.large"})
    assert "| the same | the same |" in told
    assert "OTHERS" not in told
    assert "24,000 × 32, k = 160" in told
    assert "Not measured" in large.papers_table(result)
    of_a_paper = {"k": 160, "plan": result["plan"], "base": result["base"]}
    more = {"papers": {"VRKM": result["fit"] | of_a_paper}, "papers_command": "python -m …"}
    more |= {"papers_of": {"rows": 123_456, "cpu": "another"}}
    papers = large.papers_table(result | more | {"minutes": 1.0, "coreset": SIZE.coreset})
    assert "123,456 × 32" in papers
    assert "up to k. another." in papers
    [line] = [line for line in papers.splitlines() if line.startswith("| VRKM | 160 | ")]
    assert line.endswith(f"| {result['fit']['energy']:.3f} | max iter |")
    pytest.importorskip("matplotlib")
    large.draw(result, tmp_path / "large.png")
    assert (tmp_path / "large.png").stat().st_size > 10_000


def test_parts_that_are_not_measured_again_are_kept():
    papers = dict.fromkeys(large.OF_PAPERS, 1) | {"papers": {"VRKM": 1, "Mixture": 1}}
    fit = {"size": {"rows": 1}, "cpu": "one", "fit": 1}
    longer = {"size": {"rows": 2}, "cpu": "another", "fit": 2}
    assert large.merged({}, fit) == fit
    assert large.merged(papers | fit | {"strike": 1}, longer) == papers | longer
    others = dict.fromkeys(large.OF_PAPERS, 2) | {"papers": {"NMBatch": 2}}
    about = {"size": {"rows": 2}, "cpu": "another"}
    assert large.merged(papers | fit, others | about) == others | fit
    assert large.merged({}, others | about) == others | about
    # Of the same size, by the same command on the same machine, they come together.
    again = papers | {"papers": {"VRKM": 3, "NMBatch": 3}}
    found = large.merged(papers | fit, again | about)
    assert found == papers | fit | {"papers": {"NMBatch": 3, "VRKM": 3, "Mixture": 1}}
    assert list(found["papers"]) == ["NMBatch", "VRKM", "Mixture"]
