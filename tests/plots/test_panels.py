"""Panels and marks of jobs, from any events, and the page that is made of them."""

import gzip
import json
import math
import pickle
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask import KMeans
from largek_dask.driver.event_log import JsonLines
from largek_dask.driver.job_view import JobView
from largek_dask.driver.storage import Folder
from largek_dask.plots.job_text import facts
from largek_dask.plots.panels import panels
from largek_dask.service.web.render import job_content


def strict(answer):
    """The answer as a browser gets it: JSON with finite numbers only."""
    return json.loads(json.dumps(answer, allow_nan=False))


def page_of(view):
    """What the page of jobs sends."""
    content = job_content(view, "", can_cancel=False)
    return strict({name: part for name, part in content.items() if name != "panels"})


def panels_of(view):
    """The panels by kind, as plain values."""
    plain = [{**asdict(panel), "series": [{"name": line.name, **line.columns}
                                          for line in panel.series]}
             for panel in panels(view)]  # fmt: skip
    return strict({panel["kind"]: panel for panel in plain})


def started(n_iter=0, **more):
    return {"event": "started", "time": "2026-11-25T06:00:00+00:00", "n_rows": 1000,
            "n_features": 4, "n_chunks": 10, "n_iter": n_iter, **more}  # fmt: skip


def step(n, cost=None, hours=0, **more):
    """A step that ended ``n`` seconds after the start, and as many hours later on the wall."""
    at = f"2026-11-25T{6 + hours:02d}:{n // 60 % 60:02d}:{n % 60:02d}+00:00"
    return {"event": "step", "time": at, "step": n, "elapsed": float(n), "rows": 1000,
            "cost": 1000.0 / n if cost is None else cost, "n_changed": 1000 // n, "shift": 1 / n,
            "sample": None, "rows_per_second": 1000.0, "eta_s": 100.0, "bytes": 10**6, "copied": 5,
            "state_bytes": 8000, "cache_bytes": 10**6, "retries": 0, "rebuilt": 0, "evictions": 0,
            "seconds": {"total": 1.0, "compute": 3.0, "read": 0.5, "wait": 0.25, "reduce": 0.25},
            "extra": {"distances": 1 / n}, **more}  # fmt: skip


def view_of(*events):
    return JobView({"id": "7f3a"}).update_all(events)


# --- what is drawn --------------------------------------------------------------------------------


def test_places_on_an_axis_are_told_apart_wherever_they_lie():
    """Steps of half a second after a day; rounded to five figures they were all at one place."""
    events = [started(), *({**step(1), "step": n, "elapsed": 86_400 + 0.5 * n}
                           for n in range(1, 100))]  # fmt: skip
    (line,) = panels_of(view_of(*events))["cost"]["series"]
    assert line["x"] == [86_400_000 + 500 * n for n in range(1, 100)]
    assert all(type(x) is int for x in line["x"])


def test_cost_is_drawn_against_time_used():
    view = view_of(started(), *(step(n) for n in (1, 2, 4)))
    cost = panels_of(view)["cost"]
    (line,) = cost["series"]
    assert line["name"] == "on all rows"
    assert line["x"] == [1000, 2000, 4000]
    assert line["y"] == [1000, 500, 250]
    assert cost["figures"] == [["last", "250"], ["lowest", "250"]]
    assert cost["rows"] == [["on all rows", "250", "250", "3"]]


def test_costs_of_samples_and_of_each_start_are_lines_of_their_own():
    view = view_of(
        started(start=0, starts=2),
        step(1, start=0, cost=9.0, sample=10),
        step(2, start=0),
        started(start=1, starts=2),
        step(3, start=1),
    )
    names = [line["name"] for line in panels_of(view)["cost"]["series"]]
    assert names == ["start 1, on a sample", "start 1, on all rows", "start 2, on all rows"]
    # What a sample costs is not what all rows do.
    assert panels_of(view)["cost"]["figures"] == [["last", "333.33333"], ["lowest", "333.33333"]]


def test_where_more_is_better_the_highest_is_told():
    objective = {"name": "bound", "of_step": "F", "unit": "nats", "sense": "max"}
    view = view_of(started(objective=objective), step(1, cost=-5.0), step(2, cost=-3.0))
    cost = panels_of(view)["cost"]
    assert cost["words"] == "Last -3, highest -3."
    assert cost["y"] == "F (nats), higher is better"


def test_every_figure_of_a_step_has_its_panel():
    view = view_of(started(), *(step(n) for n in range(1, 101)))
    view.set_status({"id": "7f3a", "state": "running", "eta_s": 100.0, "elapsed": 100.0,
                "share": 0.5, "bytes": 10**8})  # fmt: skip
    found = panels_of(view)
    assert list(found) == ["cost", "gain", "speed", "work"]
    gain = dict(found["gain"]["figures"])
    assert gain["last tenth"] == "-10 %"
    assert {line["name"]: line["y"][-1] for line in found["gain"]["series"]} == {
        "rows that changed cluster": 0.01, "movement of centres": 0.01}  # fmt: skip
    # Four seconds of work in each second of four threads.
    assert dict(facts(view))["time"] == "compute 75%, read 12%, wait 6%, reduce 6%"
    assert found["work"]["figures"] == [["computed", "1%"]]


def test_shares_are_told_as_the_axis_has_them_and_a_result_once():
    view = view_of(started(), step(1), step(3))
    view.set_status({"id": "7f3a", "state": "failed", "owner": "somebody",
                "versions": ["1.0", "1.1"],
                "result": {"error": "DataError", "message": "row 7"}})  # fmt: skip
    found = panels_of(view)
    assert found["work"]["figures"] == [["computed", "33.3%"]]
    assert found["work"]["rows"] == [["computed", "33.3%", "33.3%", "100%"]]
    assert "DataError: row 7" in page_of(view)["html"]


def test_what_happened_is_marked():
    view = view_of(
        {"event": "running", "time": "2026-11-25T06:00:00+00:00", "token": 1},
        started(),
        step(1, retries=2, rebuilt=1),
        {"event": "worker", "time": "2026-11-25T06:00:01+00:00", "address": "tcp://a:1",
         "change": "left", "chunks": 12},
        {"event": "checkpoint", "time": "2026-11-25T06:00:02+00:00", "n_iter": 1, "seconds": 2.0},
        {"event": "warning", "time": "2026-11-25T06:00:03+00:00", "message": "disk\nfull"},
        {"event": "interrupted", "time": "2026-11-25T06:00:04+00:00", "reason": "shutdown"},
    )  # fmt: skip
    answer = page_of(view)
    assert [(mark["kind"], mark["text"]) for mark in answer["marks"]] == [
        ("running", "running"),
        ("worker", "worker tcp://a:1 left, 12 chunks"),
        ("checkpoint", "checkpoint after step 1, written in 2 s"),
        ("warning", "disk full"),
        ("interrupted", "interrupted: shutdown"),
    ]
    assert answer["marks"][-1]["elapsed"] == 1000
    assert answer["marks"][-1]["time"] == 1795586404000


def test_sizes_are_bars():
    edges, counts = list(np.geomspace(1, 1000, 33)), [1] * 32
    told = {"event": "sizes", "edges": edges, "counts": counts, "n_empty": 2, "least": 1,
            "median": 30, "mean": 60, "most": 1000}  # fmt: skip
    panel = panels_of(view_of(started(), step(1), told))["sizes"]
    assert panel["series"][0]["y"] == counts
    assert panel["series"][0]["right"][-1] == 1000
    assert dict(panel["figures"])["empty clusters"] == "2"
    wrong = [{**told, "counts": counts[1:]}, {**told, "edges": None}, {**told, "counts": ["a"]}]
    for event in wrong:
        assert "sizes" not in panels_of(view_of(started(), step(1), event))


# --- resumes --------------------------------------------------------------------------------------


@given(st.integers(2, 300), st.integers(0, 300), st.integers(30, 100))
@settings(max_examples=15, deadline=None)
def test_a_resumed_job_is_drawn_as_one_that_was_not(n, back, split):
    """Whatever had been seen of what came again."""
    back = min(back, n - 1)
    whole = view_of(started(), *(step(i) for i in range(1, n + 1)))
    early = [step(i) for i in range(1, n)]
    again = [started(n_iter=back), *(step(i) for i in range(back + 1, n + 1))]
    resumed, events = JobView({"id": "7f3a"}), [started(), *early, *again]
    for i in range(0, len(events), split):
        resumed.update_all(events[i : i + split])
        panels(resumed)
    one, other = (panels_of(view)["cost"]["series"][0] for view in (whole, resumed))
    assert page_of(resumed) == page_of(view_of(*events))
    assert (one["x"][0], one["x"][-1]) == (other["x"][0], other["x"][-1])
    known = [at for at in other["x"] if at is not None]
    assert known == sorted(set(known))


@pytest.mark.parametrize("algorithm", ["incremental", "partition-path"])
def test_a_fit_has_its_panels(algorithm, tmp_path):
    x = np.random.default_rng(0).normal(size=(600, 3)).astype("float32")
    fit = KMeans(5, algorithm=algorithm, random_state=0, max_iter=20, checkpoint=str(tmp_path))
    model = fit.fit(x).model_
    view = JobView({"id": "a"}).update_all(JsonLines.read(Folder(str(tmp_path))))
    found = panels_of(view)
    (line,) = [line for line in found["cost"]["series"] if line["name"] == "on all rows"]
    assert line["y"][-1] == pytest.approx(model.history[-1]["cost"], rel=1e-6)
    for panel in found.values():
        for series in panel["series"]:
            assert any(value is not None for value in series["y"]), panel["kind"]


# --- bad input ------------------------------------------------------------------------------------

NASTY = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
EVENT = st.builds(
    lambda event, changes: {**event, **changes},
    st.sampled_from([started(), step(3), step(7), {"event": "sizes"},
                     {"event": "worker"}, {"event": "labels"}, {"event": "checkpoint"},
                     {"event": "warning"}, {"event": "chosen"}, {"event": "compiling"},
                     {"event": "interrupted"}, {"event": "a newer kind"}, {}]),
    st.dictionaries(
        st.sampled_from([*step(1), *started(), "workers", "edges", "counts", "message", "address",
                         "objective", "left_s", "start"]),
        NASTY,
        max_size=4,
    ),
)  # fmt: skip
STATUS = st.dictionaries(
    st.sampled_from(["id", "name", "state", "note", "needs", "workers", "result", "failure", "step",
                     "cost", "eta_s", "elapsed", "max_iter", "max_time", "progress",
                     "last_event", "objective", "bytes", "mixture", "title", "output"]),
    NASTY,
)  # fmt: skip


@given(st.lists(EVENT | NASTY, max_size=8), STATUS)
@settings(max_examples=100, deadline=None)
def test_no_event_and_no_status_raises(events, status):
    view = JobView({"id": "7f3a"})
    for event in events:
        view.update(event)
    view.set_status(status)
    page_of(view)


def test_what_a_newer_version_tells_beside_is_passed_over():
    """Kinds and fields that are not known here: all else is drawn as if they were not there."""
    known = [started(), *(step(n) for n in range(1, 8)),
             {"event": "sizes", "edges": [1, 2, 3], "counts": [4, 5]}]  # fmt: skip
    newer = {"event": "a newer kind", "format": 99, "time": "2026-11-25T06:00:05+00:00", "step": 3,
             "cost": {"value": 1.0}, "workers": [1]}  # fmt: skip
    told = [e for event in known for e in ({**event, "format": 99, "more": {"a": [1]}}, newer)]
    assert panels_of(view_of(*told)) == panels_of(view_of(*known))
    assert {"cost", "sizes"} <= set(panels_of(view_of(*known)))


def test_texts_are_cut_and_cannot_steer():
    name = "\x1b[31m</script>" + "x" * 10_000
    view = view_of(started(), step(1), {"event": "warning", "message": name})
    view.set_status(
        {"id": "7f3a", "name": name, "state": "running", "workers": {name: {"rows": 1}}}
    )
    text = json.dumps([page_of(view), panels_of(view)])
    assert "\\u001b" not in text
    assert "x" * 500 not in text


# --- size -----------------------------------------------------------------------------------------


def test_memory_is_bounded_and_an_update_is_small():
    """Of a job with every panel."""
    view = view_of(started())
    for n in range(1, 6_001):
        view.update(step(n, extra={"distances": 1 / n, "gain": 1 / n}, retries=n % 2))
        if n % 20 == 0:
            view.update({"event": "warning", "message": f"{n}" * 99})
    assert 3e4 < len(pickle.dumps(view)) <= 2e6
    view.update({"event": "sizes", "edges": list(range(1, 34)), "counts": [3.0] * 32})
    view.set_status({"id": "7f3a", "state": "running", "eta_s": 9.0, "elapsed": 1.0, "bytes": 5})
    assert len(panels(view)) == 5
    sent = json.dumps(page_of(view), separators=(",", ":")).encode()
    assert len(gzip.compress(sent)) <= 50_000
    for panel in panels_of(view).values():
        for series in panel["series"]:
            assert len(series["y"]) <= 1024 + 1
            assert math.isfinite(sum(value or 0 for value in series["y"]))
