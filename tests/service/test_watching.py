"""What a scheduler's page is told of its jobs."""

from types import SimpleNamespace

from largek_dask.observe.snapshot import row
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


def test_of_jobs_that_have_ended_only_what_a_list_shows_is_kept():
    """There may be thousands, each of a thousand workers."""
    workers = {f"tcp://10.0.0.{n}:1": {"rows": n} for n in range(1_000)}
    result = {"state": "failed", "error": "DataError", "message": "m" * 9_999, "traceback": "t",
              "inertia": 2.5}  # fmt: skip
    status = {"id": "x", "state": "failed", "name": "a name", "step": 7, "workers": workers,
              "seconds": {}, "sizes": {"counts": [1] * 32}, "result": result}  # fmt: skip
    made = []
    job = SimpleNamespace(
        record=SimpleNamespace(id="x", result=object()),
        running=False,
        status=lambda: made.append(1) or dict(status),
    )
    source = JobsSource(SimpleNamespace(all=lambda how: [how(job)], status=lambda _: status))
    first, second = source.jobs(), source.jobs()
    assert first == second
    assert len(made) == 1, "it does not change, and is not made again"
    assert len(repr(source._ended)) < 1_000
    # What the list shows of it is the same, and its own page has everything.
    assert row(first[0]) == row(status)
    assert row(status)["cost"] == 2.5
    assert source.status("x") == status
    job.running = True
    assert source.jobs()[0]["workers"] == workers
    assert source._ended == {}
