"""Figures for Prometheus: those of the jobs, from what is ready, and shown by a real Prometheus."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import prometheus_client
import pytest
import yaml
from distributed import Client, LocalCluster

import largek_dask as lk
from largek_dask.service import metrics, runner
from largek_dask.service.metrics import JOB_METRICS, JobsCollector, shown
from largek_dask.service.plugin import JobsPlugin
from tests.helpers.checks import eventually
from tests.helpers.needs import program
from tests.service.conftest import wait_until

ROOT = Path(__file__).parent.parent.parent
DASHBOARD = json.loads((ROOT / "deploy/grafana/largek.json").read_text())
ALERTS = (ROOT / "deploy/prometheus/alerts.yml").read_text()
ALERT_NAMES = re.findall(r"alert: (\w+)", ALERTS)
ALERT_TESTS = ROOT / "tests/deploy/alerts_test.yml"


def scraped(jobs, clock=time.time):
    """Samples by name and labels, of what Prometheus would be given."""
    from prometheus_client.parser import text_string_to_metric_families

    text = prometheus_client.generate_latest(JobsCollector(jobs.jobs, clock)).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return text, found


def of_job(job_id, metric, **labels):
    return metric, tuple(sorted({"job_id": job_id, **labels}.items()))


def test_jobs__have_the_figures_of_their_status(open_jobs, document, slow_steps):
    jobs = open_jobs()
    name, odd = "x" * 100, '</script> "\\"'
    ended = jobs.submit(document("a", max_iter=1, name=odd), {}, "me")
    wait_until(jobs, ended, "finished")
    job_id = jobs.submit(document("b", name=name, max_iter=50), {}, "me")
    eventually(lambda: jobs.status(job_id).get("step") == 2, "a job with two steps")
    text, found = scraped(jobs)
    status = jobs.status(job_id)
    assert found["largek_jobs", (("state", "running"),)] == 1
    assert found["largek_jobs", (("state", "finished"),)] == 1
    assert found["largek_jobs", (("state", "queued"),)] == 0
    about = {"name": "x" * 64, "algorithm": "lloyd", "n_clusters": "7"}
    assert found[of_job(job_id, "largek_job_info", **about)] == 1
    assert found[of_job(ended, "largek_job_info", **{**about, "name": odd})] == 1
    for figure in ("cost", "state_bytes"):
        assert found[of_job(job_id, f"largek_job_{figure}")] == pytest.approx(status[figure])
    for figure in ("rows", "bytes", "retries", "rebuilt", "evictions"):
        assert found[of_job(job_id, f"largek_job_{figure}_total")] == status[figure]
    assert found[of_job(job_id, "largek_job_steps_total")] == 2
    assert of_job(job_id, "largek_job_ended") not in found, "it runs"
    assert found[of_job(ended, "largek_job_ended")] == 1
    for kind, seconds in status["seconds"].items():
        told = found.get(of_job(job_id, "largek_job_seconds_total", kind=kind), 0)
        assert told == pytest.approx(seconds, abs=0.006)
    assert of_job(job_id, "largek_job_seconds_total", kind="total") in found
    at = found[of_job(job_id, "largek_job_last_event_timestamp_seconds")]
    assert abs(time.time() - at) < 3600
    assert status["data"] not in text, "no address of data is a label"
    slow_steps.set()


def test_jobs__that_are_shown_are_few_and_those_that_run_come_first(
    open_jobs, document, slow_steps, monkeypatch
):
    jobs = open_jobs()
    ids = [jobs.submit(document(str(n), max_iter=1), {}, "me") for n in range(3)]
    for job_id in ids:
        wait_until(jobs, job_id, "finished")
    runs = jobs.submit(document("runs"), {}, "me")
    eventually(lambda: jobs.status(runs).get("step") == 2, "a job that runs")
    now = time.time()
    found = [job.record.id for job in shown(jobs.jobs(), now)]
    assert found[0] == runs
    assert set(found) == {runs, *ids}
    monkeypatch.setattr(metrics, "MOST_JOBS", 2)
    last = max(ids, key=lambda name: jobs.status(name)["last_event"])
    assert [job.record.id for job in shown(jobs.jobs(), now)] == [runs, last]
    assert [job.record.id for job in shown(jobs.jobs(), now + 601)] == [runs]
    assert scraped(jobs)[1]["largek_jobs", (("state", "finished"),)] == 3
    slow_steps.set()


def test_jobs__are_told_while_every_lock_is_held(open_jobs, document):
    """A scrape runs on the scheduler's event loop, which must wait for nobody."""
    jobs = open_jobs()
    job_id = jobs.submit(document(max_iter=2), {}, "me")
    wait_until(jobs, job_id, "finished")
    job = jobs.find(job_id)
    held, go = threading.Event(), threading.Event()

    def hold():
        # In the order in which the service takes them: else the two may wait for each other.
        with jobs.changed, job._writing, job._lock, job.feed._lock:
            held.set()
            assert go.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(60)
        found = []
        asking = threading.Thread(target=lambda: found.append(scraped(jobs)), daemon=True)
        asking.start()
        asking.join(30)
        assert found, "it waited"
    finally:
        go.set()
        holder.join()


def test_a_second_scheduler_takes_the_place_of_the_first_and_its_end_leaves_it():
    first, second = (JobsCollector(tuple) for _ in range(2))
    first.register()
    second.register()
    first.close()
    assert b"largek_jobs" in prometheus_client.generate_latest()
    second.close()
    assert b"largek_jobs" not in prometheus_client.generate_latest()


def test_without_prometheus_nothing_is_registered(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    collector = JobsCollector(lambda: pytest.fail("asked"))
    collector.register()
    collector.close()


# --- a real Prometheus ----------------------------------------------------------------------------


def checked(promtool, *arguments, given=None):
    """What promtool has to say."""
    done = subprocess.run(
        [promtool, "check", *arguments], input=given, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def expressions():
    """Every expression of the dashboard."""
    found = {target["expr"]: None for panel in DASHBOARD["panels"] for target in panel["targets"]}
    return [expr.replace("$__rate_interval", "20s").replace("$job_id", ".*") for expr in found]


def test_every_metric_is_on_the_dashboard_or_in_an_alert():
    told = " ".join((*expressions(), ALERTS))
    known = {"largek_jobs", "largek_job_info"}
    seconds = {"seconds": ("counter", "")}
    for name, (kind, _) in (JOB_METRICS | seconds).items():
        known.add(f"largek_job_{name}{'_total' if kind == 'counter' else ''}")
    assert set(re.findall(r"\blargek_\w+", told)) == known


def test_every_alert_fires_and_does_not_fire_too_early():
    """By Prometheus itself, on series that are made up."""
    promtool = program("promtool", "Debian's prometheus")
    done = subprocess.run(
        [promtool, "test", "rules", str(ALERT_TESTS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cases = [case for test in yaml.safe_load(ALERT_TESTS.read_text())["tests"]
             for case in test["alert_rule_test"]]  # fmt: skip
    fires = {case["alertname"] for case in cases if case.get("exp_alerts")}
    is_quiet = {case["alertname"] for case in cases if not case.get("exp_alerts")}
    assert fires == is_quiet == set(ALERT_NAMES)


def test_jobs__before_the_first_step_after_it_and_failed(open_jobs, document, monkeypatch):
    """What the alerts of a job that hangs, and of one that has failed, are made of."""
    go_on = threading.Event()
    opened = runner.without_equal_names

    def slow(*given, **options):
        assert go_on.wait(60)
        return opened(*given, **options)

    monkeypatch.setattr(runner, "without_equal_names", slow)
    jobs = open_jobs()
    job_id = jobs.submit(document("a", max_iter=2), {}, "me")
    figure = of_job(job_id, "largek_job_before_first_step_seconds")
    eventually(lambda: figure in scraped(jobs)[1], "a job that has begun")
    began = jobs.find(job_id).began
    assert scraped(jobs, lambda: began + 901.0)[1][figure] == 901.0
    go_on.set()
    wait_until(jobs, job_id, "finished")
    found = scraped(jobs)[1]
    assert figure not in found
    assert of_job(job_id, "largek_job_failed") not in found
    monkeypatch.setattr(runner, "without_equal_names", lambda *_, **__: 1 / 0)
    failed = jobs.submit(document("b"), {}, "me")
    wait_until(jobs, failed, "failed")
    assert scraped(jobs)[1][of_job(failed, "largek_job_failed")] == 1


@pytest.fixture
def watched(tmp_path):
    """A scheduler with jobs and a worker process, both with a page of metrics."""
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.register_plugin(JobsPlugin(str(tmp_path / "store")))
        info = client.scheduler_info(n_workers=-1)
        [worker] = info["workers"].values()
        ports = [info["services"]["dashboard"], worker["services"]["dashboard"]]
        yield client, [f"127.0.0.1:{port}" for port in ports]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def read(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


@pytest.mark.slow
def test_prometheus_scrapes_scheduler_and_worker_and_every_expression_has_a_result(
    watched, tmp_path
):
    prometheus = program("prometheus", "Debian's prometheus")
    promtool = program("promtool", "Debian's prometheus")
    client, targets = watched
    x = np.random.default_rng(0).standard_normal((40_000, 8)).astype(np.float32)
    lk.ingest(x, str(tmp_path / "x.zarr"), chunk_rows=5_000, progress=False)
    job = lk.connect(client).submit(
        str(tmp_path / "x.zarr"), n_clusters=500, output=str(tmp_path / "out"),
        max_iter=100_000, tol=0, algorithm=lk.MiniBatch(), name="watched",
    )  # fmt: skip
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [{ROOT}/deploy/prometheus/alerts.yml]\n"
        "scrape_configs:\n"
        f"  - {{job_name: dask, static_configs: [{{targets: {json.dumps(targets)}}}]}}\n"
    )
    address = f"127.0.0.1:{free_port()}"
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen(
            [prometheus, f"--config.file={tmp_path}/prometheus.yml",
             f"--storage.tsdb.path={tmp_path}/tsdb", f"--web.listen-address={address}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        missing = dict.fromkeys(expressions())

        def all_there():
            assert server.poll() is None, (tmp_path / "log").read_text()
            for expr in list(missing):
                query = urllib.parse.urlencode({"query": expr})
                try:
                    answer = json.loads(read(f"http://{address}/api/v1/query?{query}"))
                except OSError:
                    return False
                if answer["data"]["result"]:
                    del missing[expr]
            return not missing

        eventually(all_there, f"results of {list(missing)}")

        def rules_are_well():
            groups = json.loads(read(f"http://{address}/api/v1/rules"))["data"]["groups"]
            health = [rule["health"] for group in groups for rule in group["rules"]]
            assert "err" not in health
            return health == ["ok"] * len(ALERT_NAMES)

        eventually(rules_are_well, "Prometheus to evaluate the alerts")
    finally:
        server.terminate()
        server.wait(30)
    ours = "".join(
        line
        for target in targets
        for line in read(f"http://{target}/metrics").splitlines(keepends=True)
        if re.match(r"(# \w+ )?largek_", line)
    )
    every = "".join(read(f"http://{target}/metrics") for target in targets)
    for name in set(re.findall(r"\bdask_\w+", ALERTS)):
        assert f"{name}{{" in every, "it is Dask's, and may be called otherwise some day"
    assert "largek_job_rows_total" in ours
    assert checked(promtool, "metrics", given=ours) == (0, "", "")
    code, _, told = checked(promtool, "rules", str(ROOT / "deploy/prometheus/alerts.yml"))
    assert (code, told) == (0, "")
    job.cancel()
    job.wait("60s")


def test_a_scrape_while_the_scheduler_shuts_down_is_answered(watched, monkeypatch):
    """Its jobs write their checkpoints meanwhile; then there are none to be shown."""
    client, (scheduler, _) = watched
    plugin = client.cluster.scheduler.plugins[JobsPlugin.name]
    page, close = f"http://{scheduler}/metrics", plugin._jobs.close
    during = []

    def slow_close(seconds):
        during.append(read(page))
        left = close(seconds)
        during.append(read(page))
        return left

    monkeypatch.setattr(plugin._jobs, "close", slow_close)
    assert "largek_jobs" in read(page)
    client.sync(plugin.before_close)
    assert len(during) == 2
    assert all("largek_jobs" in text for text in during)
    assert "largek_jobs" not in read(page)
    assert "dask_scheduler" in read(page)
