"""``largek doctor``: what it finds, and its exit code."""

import json
import warnings
from types import SimpleNamespace

import dask
import numpy as np
import pytest
import zarr
from click.testing import CliRunner

from largek_dask.cli import doctor as module
from largek_dask.cli import main
from largek_dask.cli.doctor import check_cluster, check_data


def texts(findings, level=None):
    return [f.text for f in findings if level in (None, f.level)]


def told_of(*arguments, code=0):
    """The findings of the command."""
    done = CliRunner().invoke(main, ["doctor", "--json", *map(str, arguments)])
    assert done.exit_code == code, done.output
    told = json.loads(done.stdout)
    assert told["healthy"] == (code == 0)
    return [module.Finding(**finding) for finding in told["findings"]]


# --- machine ------------------------------------------------------------------------------------


def test_machine__says_all_areas():
    assert {finding.area for finding in told_of()} == {"versions", "threads", "memory"}


def test_machine__a_kernel_cache_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(module.os, "access", lambda *_: False)
    with dask.config.set({"largek.kernels.cache-dir": str(tmp_path / "new" / "deep")}):
        told = texts(told_of(), "note")
    assert any(f"cannot be saved in {tmp_path}" in text for text in told)


def test_machine__little_memory_and_disk(monkeypatch):
    import distributed.system

    monkeypatch.setattr(distributed.system, "MEMORY_LIMIT", 100 << 20)
    for free, level in ((100 << 20, "broken"), (50 << 30, "ok")):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr(module.shutil, "disk_usage", lambda _folder, usage=usage: usage)
        found = [f for f in told_of(code=level == "broken") if f.area == "memory"]
        assert [f.level for f in found] == ["note", level, level]


# --- cluster ------------------------------------------------------------------------------------


class FakeClient:
    dashboard_link = "http://here"
    differ = ""

    def __init__(self, **workers):
        self.workers = workers

    def scheduler_info(self, n_workers):
        return {"address": "tcp://s", "workers": self.workers}

    def get_versions(self, check, packages):
        assert check
        if self.differ:
            warnings.warn(f"Mismatched versions found\n\n| {self.differ} | 1 | 2 |", stacklevel=1)


@pytest.mark.parametrize(("package", "level"), [("numba", "broken"), ("numpy", "note"), ("", "ok")])
def test_cluster__versions_that_differ(package, level):
    client = FakeClient(w1={"nthreads": 2, "memory_limit": 1000, "metrics": {}})
    client.differ = package
    [*_, told] = check_cluster(client)
    assert told.level == level
    assert package in told.text


def test_cluster__without_workers_is_broken():
    findings = list(check_cluster(FakeClient()))
    assert [f.level for f in findings] == ["ok", "broken"]
    assert "dask worker tcp://s" in findings[1].advice


def test_no_scheduler_there_is_broken():
    done = CliRunner().invoke(main, ["doctor", "--scheduler", "nonsense://here", "--json"])
    assert done.exit_code == 1
    told = [f for f in json.loads(done.stdout)["findings"] if f["level"] == "broken"]
    assert any("nonsense://here" in f["text"] for f in told)


@pytest.mark.parametrize(("value", "level"), [(1.0, "ok"), (np.nan, "broken")])
def test_data(value, level, tmp_path):
    array = np.ones((100, 4), np.float32)
    array[17, 2] = value
    zarr.create_array(str(tmp_path / "x.zarr"), data=array)
    found = check_data(str(tmp_path / "x.zarr"), None)
    assert found.level == level
    assert "100 rows × 4 features, float32" in found.text
    assert ("1 rows of the first chunk have NaN" in found.text) == (level == "broken")


def test_data__missing_store_gives_exit_code_1(tmp_path):
    done = CliRunner().invoke(main, ["doctor", "--data", str(tmp_path / "none.zarr"), "--json"])
    assert done.exit_code == 1
    assert any("does not exist" in f["text"] for f in json.loads(done.stdout)["findings"])
