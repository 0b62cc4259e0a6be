"""A client, a scheduler with the plugin, and workers: all in this process."""

import asyncio
import io
import threading
from concurrent.futures import ThreadPoolExecutor

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

import largek_dask as lk
from largek_dask.algorithms.auto import Auto
from largek_dask.driver.options import OPTIONS, FitOptions
from largek_dask.errors import (
    BadRowsError,
    CancelledJobError,
    ClusterError,
    DataError,
    FailedJobError,
    JobNotFoundError,
    NoModelError,
    OutputError,
    ParameterError,
    SchedulerAwayError,
    VersionMismatchWarning,
)
from largek_dask.service import client as module
from largek_dask.service import jobs as jobs_module
from largek_dask.service import plugin, scheduler_file
from largek_dask.service.plugin import JobsPlugin
from largek_dask.service.serialization import error_of
from largek_dask.service.spec import JobSpec
from tests.helpers.checks import eventually
from tests.service.conftest import preloaded


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    quick = {"largek.service.beat-seconds": 0.1, "largek.service.patience-seconds": 1.0}
    with dask.config.set(quick), preloaded(tmp_path_factory.mktemp("store")) as cluster:
        cluster.store = dask.config.get("largek.store")
        yield cluster


@pytest.fixture
def service(cluster):
    with lk.connect(cluster.scheduler_address) as service:
        yield service


@pytest.fixture
def submit(service, rows_url, tmp_path):
    """``submit(output="a", **changes)``: a small job."""

    def make(output="out", **changes):
        options = {"data": rows_url, "n_clusters": 7, "algorithm": lk.Lloyd(), "max_iter": 10}
        options |= changes
        return service.submit(output=str(tmp_path / output), **options)

    return make


@pytest.fixture
def endless(monkeypatch):
    """Fits of this process do not converge; they go on until they are cancelled."""
    step = lk.Lloyd.step
    stepped = threading.Event()

    def never_ending(self, passes, rng, state):
        import dataclasses

        state, info = step(self, passes, rng, state)
        if state.step >= 3:
            stepped.set()
        return state, dataclasses.replace(info, converged=False, n_changed=1, shift=1.0)

    monkeypatch.setattr(lk.Lloyd, "step", never_ending)
    return stepped


def local_digest(rows_url, max_iter=10, **options):
    km = lk.KMeans(7, algorithm=lk.Lloyd(), random_state=0, max_iter=max_iter, **options)
    return km.fit(lk.open_rows(rows_url)).model_.digest()


def test_submit__gives_the_model_of_an_estimator(submit, rows_url, tmp_path):
    job = submit(name="mine")
    model = job.result("120s")
    assert model.digest() == local_digest(rows_url)
    assert lk.load_model(str(tmp_path / "out" / "model.zarr")).digest() == model.digest()
    assert model.provenance["parameters"]["seed"] == 0
    assert len(model.history) == model.provenance["n_iter"]
    status = job.status()
    assert (status["state"], status["name"]) == ("finished", "mine")
    assert status["needs"] == []
    assert job.done()
    plot = job.plot()
    (line,) = next(panel for panel in plot.panels if panel.kind == "cost").series
    assert line.columns["y"][-1] == pytest.approx(model.history[-1]["cost"], rel=1e-6)
    assert {"gain", "speed"} <= set(plot.kinds)


def test_events__followed_by_two_and_read_by_a_late_one(submit, service, cluster):
    job = submit()
    heard = [[], []]

    def follow(where):
        heard[where].extend(job.events())

    threads = [threading.Thread(target=follow, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    with lk.connect(cluster.scheduler_address) as late:
        told = list(late.job(job.id).events())
    assert told == heard[0] == heard[1]
    assert [event["n"] for event in told] == list(range(len(told)))
    assert [event["event"] for event in told][:2] == ["queued", "running"]
    assert told[-1]["event"] == "finished"
    assert list(job.events(follow=False)) == told


def test_jobs__all_of_them_by_id(submit, service):
    first, second = submit("a", name="first"), submit("b", name="second")
    for job in (first, second):
        job.wait("120s")
    ids = [job.id for job in service.jobs()]
    assert ids.index(first.id) < ids.index(second.id)
    assert service.job(first.id).status()["name"] == "first"
    names = [status["name"] for status in service.jobs(limit=None).rows]
    assert names[-2:] == ["first", "second"]
    first.delete()
    assert first.id not in [job.id for job in service.jobs()]
    for wrong in ("lk-none", "../../etc/passwd"):
        with pytest.raises(JobNotFoundError):
            service.job(wrong)


def has_model(job):
    try:
        return job.model()
    except NoModelError:
        return None


def test_cancel__result_says_so_and_the_model_stays(submit, endless):
    with dask.config.set({"largek.checkpoints.seconds": 0.0}):
        job = submit(tol=0.0, max_iter=10_000_000)
        assert endless.wait(120.0)
        with pytest.raises(TimeoutError, match=r"running|queued"):
            job.result(timeout=0.05)
        eventually(lambda: has_model(job), "a checkpoint")
        job.cancel()
        assert job.wait("120s") == "cancelled"
    with pytest.raises(CancelledJobError, match=job.id):
        job.result()
    assert job.model().arrays.centers.shape == (7, 4)


def test_resume__of_a_finished_job(submit, service, rows_url):
    job = submit(max_iter=2, tol=0.0)
    job.result("120s")
    again = service.submit(resume=job, max_iter=400)
    assert again.id == job.id
    assert again.result("120s").digest() == local_digest(rows_url, tol=0.0, max_iter=400)
    with pytest.raises(ParameterError, match="n_clusters"):
        service.submit(resume=job.id, n_clusters=3)
    with pytest.raises(ParameterError, match="algorithm"):
        service.submit(resume=job.id, algorithm="nmbatch")
    assert all(event["time"] for event in job.events())


def test_failure__is_the_original_error(submit, tmp_path):
    x = np.zeros((100, 4), np.float32)
    x[70, 1] = np.nan
    lk.ingest(x, str(tmp_path / "bad.zarr"), chunk_rows=50, progress=False)
    job = submit(data=str(tmp_path / "bad.zarr"), n_clusters=1)
    with pytest.raises(BadRowsError, match="row 70") as failed:
        job.result("120s")
    (note,) = failed.value.__notes__
    assert "Traceback" in note
    assert "bad.zarr" in str(failed.value)


def test_failure__of_code_on_a_worker_names_the_chunk(submit, monkeypatch):
    from largek_dask.algorithms import lloyd

    def broken(chunk, *_):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(lloyd, "assign_chunk", broken)
    job = submit()
    with pytest.raises(ZeroDivisionError) as failed:
        job.result("120s")
    assert "happened in chunk 0 (" in failed.value.__notes__[0]
    assert "broken" in failed.value.__notes__[0]


def test_submit__errors_come_at_once(submit, service, rows_url, tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        submit(data=str(tmp_path / "none.zarr"))
    with pytest.raises(ParameterError, match="n_samples=3000"):
        submit(n_clusters=3_001)
    with pytest.raises(ParameterError, match="relative"):
        service.submit("x.zarr", n_clusters=2, output=str(tmp_path / "o"))
    with pytest.raises(ParameterError, match="output"):
        service.submit(rows_url, n_clusters=2)
    with pytest.raises(ParameterError, match="init"):
        submit(init=np.zeros((7, 4)))
    with pytest.raises(ParameterError, match="max_time"):
        submit(max_time="tomorrow")
    with pytest.raises(ParameterError, match="efforts"):
        submit(efforts="best")
    with pytest.raises(ParameterError, match="effort must be one of 'fast'"):
        submit(algorithm="auto", effort="most")
    with pytest.raises(ParameterError, match="memory_limit must be bytes or a text"):
        submit(memory_limit="much")
    assert not (tmp_path / "out").exists()


def test_submit__takes_every_option_of_a_fit(service, rows_url, monkeypatch):
    """Also in other units, as `KMeans` does."""
    sent = []
    monkeypatch.setattr(
        service, "ask", lambda what, **more: sent.append((what, more)) or "lk-0123456789"
    )
    asked = {
        "n_clusters": 7, "effort": "best", "init": "random", "n_init": 2, "max_iter": 5,
        "tol": 0.25, "max_time": "1m", "seed": 4, "empty_clusters": "keep", "on_bad_rows": "skip",
        "normalize": "l2", "scale": "standard", "memory_limit": "2MiB",
    }  # fmt: skip
    of_mixtures = {"mixture": "diag", "dither": "uniform"}
    arrays = {name for name, option in OPTIONS.items() if option.kind == "array"}
    assert {"algorithm", *asked, *of_mixtures, *arrays} == set(OPTIONS)
    service.submit(rows_url, algorithm="auto", output="/run", **asked)
    service.submit(rows_url, output="/run", n_clusters=7, **of_mixtures)
    assert [what for what, _ in sent] == ["submit", "submit"]
    spec, of_mixture = (JobSpec.parse(order["document"]) for _, order in sent)
    assert spec.fit_options().make_algorithm() == Auto("best")
    told = FitOptions(**{**asked, "algorithm": Auto("best"), "effort": "balanced"})
    assert spec.fit_options() == told
    told = FitOptions(n_clusters=7, algorithm=Auto(), **of_mixtures)
    assert of_mixture.fit_options() == told
    for name in ("init", *arrays):
        with pytest.raises(ParameterError, match=f"^{name} of a job cannot be an array"):
            service.submit(rows_url, output="/run", n_clusters=7, mixture="iso", **{name: [[1.0]]})
    with pytest.raises(ParameterError, match="algorithm and effort"):
        service.submit(resume="lk-0123456789", effort="best")


def test_connect__nothing_answers():
    with pytest.raises(ClusterError, match="no Dask scheduler answers"):
        lk.connect("tcp://127.0.0.1:9", timeout=0.2)


def test_connect__leaves_no_client_behind_where_there_is_no_service(monkeypatch):
    made = []

    class Noted(Client):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr(scheduler_file, "Client", Noted)
    with LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster:
        with pytest.raises(ClusterError, match="no largek service"):
            lk.connect(cluster.scheduler_address)
        assert [client.status for client in made] == ["closed"]


def test_connect__a_running_cluster_is_given_the_service(tmp_path, rows_url):
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        with pytest.raises(ClusterError, match="no largek service"):
            lk.connect(client)
        service = lk.connect(client, store=str(tmp_path / "store"))
        job = service.submit(rows_url, n_clusters=3, output=str(tmp_path / "out"))
        model = job.result("120s")
        # once more changes nothing: the jobs are still there
        client.register_plugin(JobsPlugin(str(tmp_path / "elsewhere")))
        assert lk.connect(client).job(job.id).model().digest() == model.digest()
        service.close()
        assert client.status == "running"


def test_connect__other_versions_are_mentioned(cluster, monkeypatch):
    monkeypatch.setattr(module, "__version__", "0.0.1")
    with pytest.warns(VersionMismatchWarning, match="0.0.1"):
        lk.connect(cluster.scheduler_address).close()


def test_errors__travel_by_name_and_text():
    for error in (NoModelError("none", "max_time"), BadRowsError("row 5"), KeyError("x")):
        found = error_of(type(error).__name__, str(error), "line 7")
        assert type(found) is type(error)
        assert str(error) in str(found)
        assert "line 7" in found.__notes__[0]
    for name in ("Exit", "eval", "SystemExit", "DeprecationWarning", "UnicodeDecodeError", "warn"):
        assert type(error_of(name, "text")) is FailedJobError
        assert str(error_of(name, "text")) == f"{name}: text"


def test_connect__an_asynchronous_client_is_refused(cluster):
    async def attempt():
        async with Client(cluster.scheduler_address, asynchronous=True) as client:
            with pytest.raises(ParameterError, match="asynchronous"):
                lk.connect(client)

    asyncio.run(attempt())


def test_plugin__unknown_questions_and_damaged_ones(service):
    with pytest.raises(ParameterError, match="'dance'"):
        service.ask("dance")
    with pytest.raises(TypeError):
        service.ask("status")
    for wrong in (5, None, ["a"], {"id": "b"}):
        with pytest.raises(JobNotFoundError):
            service.ask("status", job_id=wrong)


def counted(monkeypatch, error):
    """Each question is answered with this error; those that were asked."""
    asked = []

    def refusing(operation):
        def refuse(self, **arguments):
            asked.append(operation)
            raise error

        return refuse

    for operation in ("cancel", "status", "listed", "supply"):
        monkeypatch.setattr(jobs_module.Jobs, operation, refusing(operation))
    return asked


def test_ask__an_answer_is_not_asked_for_again(service, submit, monkeypatch):
    """Though each of these is an OSError, as a lost connection is."""
    job = submit()
    job.wait("120s")
    for error in (OutputError("no space"), OSError("no share"), TimeoutError("the store is away")):
        asked = counted(monkeypatch, error)
        for ask in (job.cancel, job.status, service.jobs, lambda: job.supply({})):
            with pytest.raises(type(error), match=str(error)):
                ask()
        assert asked == ["cancel", "status", "listed", "supply"]


def test_connect__a_second_scheduler_on_a_store_names_the_first(cluster):
    """``cluster`` has the store; the other one would have it too."""
    with (
        preloaded(cluster.store, 0, protocol="tcp://") as other,
        pytest.raises(ClusterError, match=cluster.scheduler_address),
    ):
        lk.connect(other.scheduler_address)


def test_submit__workers_that_do_not_answer_keep_no_other_client_waiting(
    fresh_cluster, rows_url, tmp_path, monkeypatch
):
    """More submits than there are threads wait for a stuck worker; all else is answered."""
    inside, go_on = threading.Semaphore(0), threading.Event()

    def stuck(client, rows, seconds):
        inside.release()
        assert go_on.wait(240.0)

    monkeypatch.setattr(jobs_module, "check_workers", stuck)
    monkeypatch.setattr(plugin, "ANSWERING_THREADS", 3)
    n = plugin.ANSWERING_THREADS + 2
    client = fresh_cluster(1, processes=False)

    def submit(i):
        options = {"n_clusters": 2, "algorithm": lk.Lloyd(), "max_iter": 2}
        return mine.submit(rows_url, output=str(tmp_path / str(i)), **options)

    with (
        ThreadPoolExecutor(n + 1) as pool,
        lk.connect(client, store=str(tmp_path / "store")) as mine,
        lk.connect(client.scheduler.address) as service,
    ):
        submits = [pool.submit(submit, i) for i in range(n)]
        try:
            for _ in range(plugin.ANSWERING_THREADS):
                assert inside.acquire(timeout=120.0)
            for ask in (service.jobs,):
                pool.submit(ask).result(120.0)
            assert not any(future.done() for future in submits)
        finally:
            go_on.set()
        for future in submits:
            assert future.result(120.0).result("120s").n_clusters == 2


@pytest.fixture
def away(service, monkeypatch):
    """``away(n)``: the next n questions are lost."""
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)
    answer, lost = service._answer, []

    def lossy(operation, arguments, seconds=None):
        if lost:
            raise lost.pop()
        return answer(operation, arguments, seconds)

    monkeypatch.setattr(service, "_answer", lossy)

    def begin(n, kind=OSError):
        lost[:] = [kind("the connection was lost")] * n
        return lost

    return begin


@pytest.mark.parametrize(
    "follow",
    [lambda job: job.watch(io.StringIO()), lambda job: job.result() and "finished"],
    ids=["watch", "result"],
)
def test_follow__outlives_a_scheduler_that_is_away_for_long(submit, away, follow):
    job = submit()
    lost = away(5)
    assert follow(job) == "finished"
    assert lost == []


def test_events__go_on_over_a_new_connection(submit, endless, service, cluster):
    """Each event comes once, over the connection that there is."""
    job = submit(max_iter=10**6)
    assert endless.wait(120.0)
    events = job.events()
    numbers = [next(events)["n"]]
    before = service.client
    before.close()
    job.status()
    assert service.client is not before
    job.cancel()
    kinds = []
    for event in events:
        numbers.append(event["n"])
        kinds.append(event["event"])
    assert "cancelling" in kinds
    assert kinds[-1] == "cancelled"
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError, "does not answer: check that it runs there"),
        (module._NoServiceError, "no longer has jobs: check that it runs there"),
    ],
)
def test_ask__a_scheduler_that_stays_away_is_said_to_be(
    service, submit, cluster, away, monkeypatch, error, said
):
    job = submit()
    monkeypatch.setattr(service, "_away_seconds", -1.0)
    lost = away(5, error)
    with pytest.raises(SchedulerAwayError, match=f"{cluster.scheduler_address} {said}"):
        job.status()
    assert len(lost) == 4
    monkeypatch.setattr(service, "_away_seconds", 60.0)
    assert job.status()["id"] == job.id
    assert lost == [], "it has been asked again"
    # Whoever says how long waits no longer than that.
    lost = away(1000, error)
    with pytest.raises(TimeoutError, match=f"job {job.id} in time: .* {said}"):
        job.wait(timeout=0)
    assert len(lost) == 999
    away(0)
    job.wait("120s")


def test_ask__what_fails_though_the_connection_is_there_is_not_asked_again(submit, away):
    job = submit()
    job.wait("120s")
    lost = away(5, RuntimeError)
    with pytest.raises(RuntimeError, match="the connection was lost"):
        job.status()
    assert len(lost) == 4
    away(0)
