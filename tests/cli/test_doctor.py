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
from largek_dask.cli.doctor import check_cluster, check_data, scratch_of


def texts(findings, level=None):
    return [f.text for f in findings if level in (None, f.level)]


def store(path, array, **options):
    zarr.create_array(str(path), data=array, **options)
    return str(path)


def told_of(*arguments, code=0):
    """The findings of the command."""
    done = CliRunner().invoke(main, ["doctor", "--json", *map(str, arguments)])
    assert done.exit_code == code, done.output
    told = json.loads(done.stdout)
    assert told["healthy"] == (code == 0)
    return [module.Finding(**finding) for finding in told["findings"]]


# --- machine ------------------------------------------------------------------------------------


@pytest.mark.parametrize("free", [100 << 20, 50 << 30])
def test_table_has_a_verdict_and_keeps_brackets(free, tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    (tmp_path / "[red]").mkdir()
    monkeypatch.chdir(tmp_path / "[red]")
    monkeypatch.setenv("COLUMNS", "300")
    done = CliRunner().invoke(main, ["doctor"])
    assert done.exit_code == (free == 100 << 20)
    assert "/[red])" in done.stdout
    assert ("2 broken" in done.stdout) == (free == 100 << 20)
    assert ("All is well" in done.stdout) == (free == 50 << 30)


def test_machine__says_all_areas():
    assert {finding.area for finding in told_of()} == {"versions", "threads", "memory"}


def test_machine__a_kernel_cache_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(module.os, "access", lambda *_: False)
    with dask.config.set({"largek.kernels.cache-dir": str(tmp_path / "new" / "deep")}):
        told = texts(told_of(), "note")
    assert any(f"cannot be kept in {tmp_path}" in text for text in told)


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
        self.scratch = dict.fromkeys(workers, ("/tmp", 1 << 40))

    def run(self, function, on_error):
        assert (function, on_error) == (scratch_of, "return")
        return self.scratch

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


def test_cluster__a_worker_with_a_full_scratch_is_named(tmp_path):
    worker = {"nthreads": 2, "memory_limit": 1000, "metrics": {}}
    client = FakeClient(w1=worker, w2=worker, w3=worker)
    client.scratch |= {"w2": ("/local/7", 5 << 20), "w3": AttributeError("no such")}
    [told] = [text for text in texts(check_cluster(client), "broken") if "scratch" in text]
    assert told == "worker w2 has 5.00 MiB free for its scratch (/local/7)"
    folder, free = scratch_of(SimpleNamespace(local_directory=tmp_path))
    assert folder == str(tmp_path)
    assert free > 0


def test_no_scheduler_there_is_broken():
    done = CliRunner().invoke(main, ["doctor", "--scheduler", "nonsense://here", "--json"])
    assert done.exit_code == 1
    told = [f for f in json.loads(done.stdout)["findings"] if f["level"] == "broken"]
    assert any("nonsense://here" in f["text"] for f in told)


# --- data ---------------------------------------------------------------------------------------


def test_data__good_store(tmp_path):
    url = store(tmp_path / "x.zarr", np.ones((1000, 8), np.float32), compressors=None)
    findings = list(check_data(url, None))
    assert not texts(findings, "broken")
    assert not texts(findings, "note")
    assert any("1,000 rows × 8 features, float32" in text for text in texts(findings))


def test_data__chunks_that_are_missing(tmp_path):
    url = store(tmp_path / "x.zarr", np.ones((500, 8)), chunks=(100, 8))
    (tmp_path / "x.zarr" / "c" / "2" / "0").unlink()
    [told] = [f for f in check_data(url, None) if "lacks" in f.text]
    assert told.level == "note"
    assert "lacks 1 of its 5 stored chunks, the first of them 'c/2/0'" in told.text


def test_data__bad_rows(tmp_path):
    array = np.ones((100, 4), np.float32)
    array[17, 2] = np.nan
    told = texts(check_data(store(tmp_path / "x.zarr", array), None), "broken")
    assert any("row 17 holds NaN" in text for text in told)


def test_data__missing_store_gives_exit_code_1(tmp_path):
    done = CliRunner().invoke(main, ["doctor", "--data", str(tmp_path / "none.zarr"), "--json"])
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert not told["healthy"]
    assert any("does not exist" in f["text"] for f in told["findings"])


def test_healthy_machine_gives_exit_code_0(tmp_path, monkeypatch):
    url = store(tmp_path / "x.zarr", np.ones((1000, 8), np.float32))
    done = CliRunner().invoke(main, ["doctor", "--data", url])
    assert done.exit_code == 0
    assert "broken," not in done.stdout
