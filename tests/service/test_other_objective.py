"""A job that is no k-means: its result, and what everybody who looks at it is shown."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.algorithms.objective import INERTIA, objective_in, value_in
from largek_dask.cli.jobs import result_words
from largek_dask.driver.job_view import JobView
from largek_dask.model import KINDS
from largek_dask.plots.job_text import JOB_COLUMNS, card, card_of_jobs, facts, job_row, precise
from largek_dask.service.job import EventPrinter, line_of
from largek_dask.service.store import Result
from tests.helpers.bumps import CLOSENESS, Bumps, BumpsModel
from tests.helpers.checks import costs_of, eventually
from tests.service.conftest import wait_until


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "bumps", Bumps)
    monkeypatch.setitem(KINDS, "bumps", BumpsModel)


def ended_job(jobs: Any, document: Any, **asked: Any) -> tuple[dict[str, Any], list[Any]]:
    job_id = jobs.submit(document(**asked), {}, "me")
    status = wait_until(jobs, job_id, "finished", "failed")
    assert status["state"] == "finished", status["result"]

    def all_events() -> list[Any]:
        """Its events, once the last one is told, which comes a moment after the status."""
        events: list[Any] = jobs.events(job_id, 0, 1_000)
        return events if events[-1]["event"] == "finished" else []

    events = eventually(all_events, "the event of its end")
    return json.loads(json.dumps(status)), json.loads(json.dumps(events))


def test_everybody_calls_it_by_its_name(open_jobs, document, tmp_path):
    jobs = open_jobs()
    status, events = ended_job(jobs, document, algorithm=Bumps(), n_init=3, max_iter=30, tol=1e-3)
    model = jobs.model(status["id"])
    assert type(model) is BumpsModel
    value = model.provenance["total_closeness"]
    assert objective_in(status) == CLOSENESS
    assert value_in(status["result"]) == (CLOSENESS, value)
    assert status["result"]["inertia"] is None
    kept = Result.model_validate_json((tmp_path / "out" / "results" / "000001.json").read_bytes())
    assert json.loads(kept.model_dump_json()) == status["result"]

    view = JobView(status)
    for event in events:
        view.update(event)
    assert len(costs_of(view)) >= 2
    words = precise(value)
    told = dict(facts(view))
    assert told["total closeness"] == words
    assert told["closeness"].startswith(precise(view.status["cost"]))
    row = dict(zip(JOB_COLUMNS, job_row(status), strict=True))
    assert row["objective"] == f"{value:.6g}"
    pages = [card(view), str(result_words(status))]
    for page in pages:
        assert words in page
        assert "total closeness" in page
    assert row["objective"] in card_of_jobs([status], "jobs")

    steps = [event for event in events if event["event"] == "step"]
    stream = io.StringIO()
    lines = EventPrinter(view, stream, lambda: 0.0)
    for event in events:
        lines(event)
    assert f"closeness {precise(steps[0]['cost'])}" in stream.getvalue()
    assert f"total closeness {words}, digest" in line_of(events[-1], CLOSENESS)
    for page in [*pages, stream.getvalue()]:
        assert "inertia" not in page
        assert "cost" not in page


def test_k_means_is_told_by_its_name(open_jobs, document, tmp_path):
    status, _ = ended_job(open_jobs(), document, max_iter=3)
    written = json.loads((tmp_path / "out" / "results" / "000001.json").read_bytes())
    assert status["result"] == written
    assert value_in(written) == (INERTIA, written["inertia"])
    assert written["inertia"] > 0
    told = dict(facts(JobView(status)))
    assert told["inertia"] == precise(written["inertia"])
    assert "cost" in told
