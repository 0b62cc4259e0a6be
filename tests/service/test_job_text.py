"""What a job looks like: lines and cards; and what a watcher hears."""

from __future__ import annotations

import io
import itertools
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.driver.job_view import JobView
from largek_dask.plots.job_text import card, card_of_jobs, facts, left_of
from largek_dask.service.job import EventPrinter, Job, line_of
from tests.helpers.checks import costs_of

NASTY = "[red]x[/] <script>alert('1')</script>\n2026-01-01 finished\x1b[2J\u2028"
QUEUED = {
    "id": "lk-1",
    "name": "first",
    "state": "queued",
    "note": "",
    "needs": [],
    "owner": "me",
    "created": "2026-11-21T22:57:01+00:00",
    "data": "/data/x.zarr",
    "output": "/data/out",
    "algorithm": "lloyd",
    "n_clusters": 3000,
    "max_iter": 150,
    "workers": [],
    "rows": 0,
    "n_events": 0,
}
RUNNING = QUEUED | {
    "state": "running",
    "step": 54,
    "cost": 3593126.8636,
    "n_changed": 2775,
    "rows_per_second": 2.1e6,
    "elapsed": 12.0,
    "eta_s": 4.0,
    "share": 0.75,
    "state_bytes": 2 << 20,
    "cache_bytes": 15 << 20,
    "rows": 21_600_000,
    "bytes": 34 << 20,
    "retries": 7,
    "rebuilt": 2,
    "evictions": 1,
    "workers": ["tcp://a:1", "tcp://b:2"],
}
RESULT = {"n_iter": 60, "stop_reason": "tol", "inertia": 3592964.5, "seconds": 75.0,
          "digest": "ab" * 32, "labels": True, "error": None, "message": None,
          "traceback": None}  # fmt: skip
FINISHED = RUNNING | {"state": "finished", "result": RESULT}
FAILED = QUEUED | {
    "state": "failed",
    "result": {"n_iter": 0, "error": "DataError", "message": "chunk 3 is bad", "digest": None},
}


def step(n, cost=None, second=0, **more):
    return {"event": "step", "time": f"2026-11-21T22:57:{second:02d}.000+00:00", "step": n,
            "cost": cost, **more}  # fmt: skip


def texts(pairs):
    return dict(pairs)


# --- what is known ------------------------------------------------------------------------------


def test_facts_of_every_state():
    told = texts(facts(JobView(RUNNING)))
    assert told["data"] == "/data/x.zarr"
    assert told["model"] == "3,000 clusters by lloyd"
    assert told["step"] == "54 of at most 150"
    assert told["cost"] == "3593126.9, 2,775 rows changed cluster"
    assert told["speed"] == "2.1M rows/s; 21.6M rows processed, 34.00 MiB read or moved"
    assert told["memory"] == "2.00 MiB of row state, 15.00 MiB of chunks"
    assert told["repeated"] == "7 chunks retried, 2 rebuilt, 1 evictions"
    assert set(texts(facts(JobView(QUEUED)))) == {"data", "model", "output"}
    told = texts(facts(JobView(FINISHED)))
    assert told["ended"] == "tol after 60 steps, 1 min 15 s"
    assert (told["inertia"], told["digest"]) == ("3592964.5", "ab" * 32)
    assert texts(facts(JobView(FAILED)))["error"] == "DataError: chunk 3 is bad"
    waits = QUEUED | {"state": "waiting", "needs": ["key", "secret"]}
    assert texts(facts(JobView(waits)))["waits"] == "for the storage options key, secret"
    assert texts(facts(JobView(QUEUED | {"note": "not yet"})))["waits"] == "not yet"


def test_a_mixture_tells_its_energy_and_the_figures_of_its_model():
    told = step(3, -5.5, extra={"energy": 75.2251234, "alive": 20.0})
    assert line_of(told).endswith("step        3, cost -5.5, energy 75.225123 per row")
    view = JobView(RUNNING)
    assert "energy" not in texts(facts(view))
    view.update(told)
    assert texts(facts(view))["energy"] == "75.225123 per row"
    assert texts(facts(view))["model"] == "3,000 clusters by lloyd"
    of_mixture = JobView(RUNNING | {"mixture": "diag"})
    assert texts(facts(of_mixture))["model"] == "mixture (diag) of 3,000 components"
    figures = {"F": -4.5, "mean_log_likelihood": -4.25, "retired_components": 2.0}
    ended = texts(facts(JobView(FINISHED | {"result": RESULT | {"figures": figures}})))
    shown = {"F": "-4.5", "mean log likelihood": "-4.25", "retired components": "2"}
    assert shown.items() <= ended.items()
    line = line_of({"event": "finished", **RESULT, "figures": figures})
    assert "F -4.5, mean log likelihood -4.25, retired components 2, digest abab" in line


def test_share_done_and_what_is_left():
    view = JobView(RUNNING)
    assert view.share_done() == 0.75
    assert left_of(view) == "75%, at most 4 s left"
    view.update({"event": "labels", "rows": 30, "n_rows": 120})
    assert left_of(view) == "25% of the labels written"
    assert left_of(JobView(FINISHED)) == ""
    assert JobView(FINISHED).share_done() == 1.0
    assert JobView(QUEUED).share_done() is None
    assert left_of(JobView(QUEUED)) == ""


def test_events_are_newer_than_the_status_and_repeated_steps_count_once():
    view = JobView(QUEUED)
    for n, cost in ((1, 9.0), (2, 5.0), (3, None), (4, 4.0)):
        view.update(step(n, cost, rows_per_second=1e3, elapsed=1.0, eta_s=3.0, share=n / 16))
    assert costs_of(view) == [9.0, 5.0, 4.0]
    assert view.status["step"] == 4
    assert view.share_done() == 0.25
    # A run that goes on from a checkpoint tells what came after it once more.
    view.update(step(2, 5.0, share=2 / 16))
    assert costs_of(view) == [9.0, 5.0, 4.0]
    assert view.share_done() == 0.25, "what is done never falls"
    # Of several starts each has its own steps.
    view.update(step(2, 6.0, start=1))
    assert costs_of(view) == [9.0, 5.0, 4.0, 6.0]


def test_a_cost_on_a_sample_says_so_and_is_on_no_line_with_that_of_all_rows():
    view = JobView(RUNNING)
    view.update(step(1, 3.0, sample=2_400))
    view.update(step(2, 2.5, sample=2_400))
    assert costs_of(view) == [3.0, 2.5]
    assert dict(facts(view))["cost"].startswith("2.5 on a sample of 2,400 rows, ")
    assert "cost 2.5 on a sample of 2,400 rows" in line_of(step(2, 2.5, sample=2_400))
    view.update(step(3, 9.0, sample=None))
    view.update(step(4, 8.0, sample=None))
    assert costs_of(view) == [9.0, 8.0]
    assert dict(facts(view))["cost"].startswith("8, ")


def test_compiling_is_what_a_fit_waits_for_until_its_next_step():
    view = JobView(RUNNING)
    event = {"event": "compiling", "functions": 3, "seconds": 1.0, "left_s": 18.3}
    view.update(event)
    told = "compiling kernels, once on this machine: about 19 s left"
    assert dict(facts(view))["now"] == told
    assert line_of(event).endswith(told)
    assert "once on this machine" in line_of({**event, "left_s": "soon"})
    view.update(step(1, 3.0))
    assert "now" not in dict(facts(view))


def test_a_scheduler_that_is_back_knows_no_step_yet():
    view = JobView(RUNNING)
    view.set_status(QUEUED)
    assert (view.state, view.status["step"], view.status["rows"]) == ("queued", 54, 0)
    view.set_status(FINISHED)
    view.set_status(RUNNING)
    assert "result" not in view.status


# --- lines --------------------------------------------------------------------------------------


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.just(10**400), st.text(),
    st.dictionaries(st.text(), st.integers(), max_size=2), st.just(NASTY),
)  # fmt: skip
KINDS = ("queued", "running", "started", "step", "worker", "sizes", "progress",
         "checkpoint", "warning", "stopped", "labels", "report", "interrupted", "cancelling",
         "finished", "failed", "other")  # fmt: skip
FIELDS = ("time", "step", "cost", "rows", "n_rows", "n_features", "n_iter", "message", "workers",
          "retries", "eta_s", "error", "seconds", "start", "elapsed", "run", "words", "extra",
          "figures", "names", "before", "address", "change", "chunks", "n_empty", "least", "most",
          "median", "done", "n_chunks")  # fmt: skip


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), ANYTHING))
def test_no_event_breaks_or_forges_anything(kind, fields):
    """Events come from a file too, which anybody may have written to."""
    event = {**fields, "event": kind}
    assert line_of(event).isprintable()
    view = JobView(RUNNING)
    view.update(event)
    assert all(text.isprintable() for row in facts(view) for text in row)
    assert "<script" not in card(view)


def test_figures_without_end_are_dashes_or_left_out():
    texts = {"time", "message", "error", "start", "run", "words", "address", "change"}
    for kind in KINDS[:-1]:
        view = JobView(RUNNING)
        for value in (float("inf"), -float("inf"), float("nan"), 10**400, -(10**400)):
            event = {"event": kind} | dict.fromkeys(set(FIELDS) - texts, value)
            assert not any(text in line_of(event) for text in ("inf", "nan"))
            view.update(event)
            assert card(view)


def lines(status, clock=lambda: 0.0):
    out = io.StringIO()
    view = JobView(status)
    return view, out, EventPrinter(view, out, clock)


def test_lines_show_few_steps_and_everything_else():
    now = itertools.count(0, 4)  # seconds, at each step
    clock = {"now": 0.0}
    _, out, show = lines(RUNNING, lambda: clock["now"])
    show({"event": "queued", "run": 1, "owner": "me"})
    for n in range(1, 7):
        clock["now"] = next(now)
        show(step(n, float(n)))
        show(None)
    show({"event": "stopped", "reason": "tol", "n_iter": 6, "elapsed": 3.0})
    kinds = [line.split()[0] if line[0] == " " else line.split()[2:4] for line in
             out.getvalue().splitlines()]  # fmt: skip
    assert kinds == ["queued", ["step", "1,"], ["step", "4,"], ["step", "6,"], "stopped"]


def test_lines_say_why_a_job_waits():
    view, out, show = lines(QUEUED)
    show(None)
    assert out.getvalue() == ""
    view.set_status(QUEUED | {"state": "waiting", "needs": ["key"]})
    show(None)
    show(None)
    view.set_status(RUNNING)
    show(None)
    assert out.getvalue() == "waiting: for the storage options key\n"


# --- cards --------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Elements, attributes and text of a page; every element has to be closed."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = set(), [], "", []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + " "


TAGS = {"caption", "div", "b", "table", "tr", "td", "th"}


def test_card_shows_everything_and_loads_nothing():
    view = JobView(RUNNING)
    for n in range(1, 500):
        view.update(step(n, 1000.0 / n))
    view.set_status(RUNNING)
    view.update({"event": "warning", "message": "take care"})
    page = Page(card(view))
    for text in ("Job lk-1", "running", "54 of at most 150", "75%, at most 4 s left",
                 "take care"):  # fmt: skip
        assert text in page.text
    assert page.tags <= TAGS
    names = {name for name, _ in page.attributes}
    assert names <= {"style", "scope"}
    assert not any("url" in (value or "") for _, value in page.attributes)


def test_cards_escape_every_text():
    def spoiled(value):
        if isinstance(value, str):
            return value + NASTY
        if isinstance(value, dict):
            return {spoiled(key) if "://" in key else key: spoiled(v) for key, v in value.items()}
        return value

    for status in map(spoiled, (QUEUED, RUNNING, FINISHED, FAILED)):
        view = JobView(status)
        view.update({"event": "warning", "message": NASTY})
        for html in (card(view), card_of_jobs([status], NASTY)):
            page = Page(html)
            assert page.tags <= TAGS
            assert "<script>alert('1')</script>" in page.text
            assert not any("script" in (value or "") for _, value in page.attributes)


# --- what a watcher hears -----------------------------------------------------------------------


class FakeService:
    """A scheduler of one job: every question for events takes the next answer."""

    def __init__(self, *answers, statuses=(FINISHED,)):
        self._answers, self._statuses = list(answers), list(statuses)
        self.asked, self.epoch = [], "a"

    def ask_with_retry(self, operation, **arguments):
        self.asked.append((operation, arguments))
        if operation == "status":
            return self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        is_over = not self._answers
        epoch, events = (self.epoch, []) if is_over else self._answers.pop(0)
        if isinstance(epoch, BaseException):
            raise epoch
        self.epoch = epoch
        return {"epoch": epoch, "events": events, "is_over": is_over}

    ask = ask_with_retry


def numbered(*events, first=0):
    return [{**event, "n": first + i} for i, event in enumerate(events)]


def test_events_of_the_same_moment_are_all_heard():
    events = numbered(step(1), {**step(1), "event": "workers"}, {**step(1), "event": "finished"})
    job = Job(FakeService(("a", events)), "lk-1")
    assert [event["event"] for event in job.events()] == ["step", "workers", "finished"]


def test_a_new_scheduler_tells_everything_again_but_it_is_heard_once():
    queued = {"event": "queued", "run": 1}
    saved = {**step(1, second=1), "event": "checkpoint"}
    before = numbered(queued, step(1, second=1), saved, step(9, second=3))
    # The file lacks what has no time.
    after = numbered(
        step(1, second=1), saved, step(9, second=3),
        {**step(9, second=3), "event": "checkpoint"}, {**step(1, second=2), "event": "finished"},
    )  # fmt: skip
    service = FakeService(("a", before), ("b", []), ("b", after))
    heard = list(Job(service, "lk-1").events())
    assert [(e["event"], e.get("step")) for e in heard] == [
        ("queued", None), ("step", 1), ("checkpoint", 1), ("step", 9), ("checkpoint", 9),
        ("finished", 1),
    ]  # fmt: skip
    asked = [arguments["n"] for operation, arguments in service.asked if operation == "news"]
    assert asked[:3] == [0, 4, 0]


def test_watch_shows_history_then_the_end():
    out = io.StringIO()
    ended = numbered(step(2, 4.0), step(2, 4.0) | {"event": "stopped"}, first=1)
    ended += numbered({**step(2), "event": "finished", **RESULT}, first=3)
    service = FakeService(("a", numbered(step(1, 5.0))), ("a", ended), statuses=[RUNNING, FINISHED])
    assert Job(service, "lk-1").watch(out) == "finished"
    kinds = [line.split("  ")[1].split()[0] for line in out.getvalue().splitlines()]
    assert kinds == ["step", "step", "stopped", "finished"]


def test_watch_that_is_interrupted_says_that_the_job_goes_on():
    service = FakeService((KeyboardInterrupt(), None), statuses=[RUNNING])
    with pytest.raises(KeyboardInterrupt) as caught:
        Job(service, "lk-1").watch(io.StringIO())
    assert "Job lk-1" in caught.value.__notes__[0]
    assert ("cancel", {"job_id": "lk-1"}) not in service.asked


# --- notebooks ----------------------------------------------------------------------------------


def test_a_job_is_a_text_and_a_static_card():
    job = Job(FakeService(statuses=[RUNNING]), "lk-1")
    assert repr(job) == "<Job lk-1>"
    assert "54 of at most 150" in Page(job._repr_html_()).text
