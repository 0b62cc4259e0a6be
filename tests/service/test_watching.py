"""What a scheduler's page is told of its jobs."""

from types import SimpleNamespace

from largek_dask.service.watching import JobsSource, memory_of


def worker(address, used, limit):
    return SimpleNamespace(address=address, metrics={"memory": used}, memory_limit=limit)


def test_a_job_that_runs_tells_the_memory_of_its_workers():
    workers = {name: worker(name, 5, limit) for name, limit in (("a", 9), ("b", 0), ("c", 9))}
    status = {"state": "running", "workers": {"a": {}, "b": {}, "gone": {}}}
    jobs = SimpleNamespace(status=lambda _: status)
    source = JobsSource(jobs, lambda: memory_of(SimpleNamespace(workers=workers)))
    # Worker c is of another job, and one that has no limit has none.
    assert source.status("x")["memory"] == {
        "a": {"used": 5, "limit": 9},
        "b": {"used": 5, "limit": None},
    }
    assert "memory" not in status
    status["state"] = "finished"
    assert "memory" not in source.status("x")
