"""The page in a real browser, on real schedulers: what it shows, also when things go wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from typing import Any
from urllib.request import urlopen

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

import largek_dask as lk
from largek_dask.driver.event_log import JsonLines
from largek_dask.driver.formatting import human_count, human_seconds
from largek_dask.driver.job_view import JobView
from largek_dask.driver.storage import Folder
from largek_dask.plots.panels import panels
from tests.faults.rig import Rig, free_port
from tests.helpers.checks import eventually
from tests.plots.browser import SCHEMES, WIDTHS, Tab, browser, no_serious_finding
from tests.service.web.sources import MadeUp, at, page_of, started, step

pytestmark = pytest.mark.slow

QUICK = {
    "largek.service.beat-seconds": 0.1,
    "largek.service.patience-seconds": 1.0,
    "largek.data.read-chunk-bytes": 1,
}
LINE = """kind => {
    if (!window.Bokeh) return null;
    for (const doc of Bokeh.documents)
        for (const model of doc._all_models.values())
            if (model.name === kind && model.data.x.length)
                return [Array.from(model.data.x), Array.from(model.data.y)];
    return null;
}"""
"""The line that Bokeh draws of a source."""


def see_charts(tab: Tab) -> None:
    """Scroll along a job until each of its charts is drawn."""
    for number in range(tab.page.locator(".chart:visible").count()):
        chart = tab.page.locator(".chart:visible").nth(number)
        chart.scroll_into_view_if_needed()
        chart.locator(":scope > *").wait_for()


FIGURES = """() => [...Bokeh.index].filter(view => view.axis_views).map(view => {
    const frame = view.el.getBoundingClientRect();
    const outside = [...view.renderer_views.values()].filter(part => part.model.type === "Legend")
        .map(part => part.el.getBoundingClientRect())
        .filter(box => box.left < frame.left || box.right > frame.right
            || box.bottom > frame.bottom);
    return {kind: view.model.name, outside: outside.length, axes: view.axis_views.map(axis => ({
        policy: axis.model.major_label_policy.type,
        is_time: axis.model.type === "DatetimeAxis",
        texts: axis.model.formatter.doFormat(axis.tick_coords.major[axis.dimension], axis),
    }))};
})"""
"""What is written beside the axes of each chart, and how many of its legends do not fit in."""


def check_charts(tab: Tab) -> None:
    """Numbers beside axes are told apart and do not overlap, times have one form, legends fit."""
    figures = tab.page.evaluate(FIGURES)
    assert {"cost", "gain", "sizes"} <= {figure["kind"] for figure in figures}
    assert [figure["kind"] for figure in figures if figure["outside"]] == []
    times = set()
    for figure in figures:
        for axis in figure["axes"]:
            texts = axis["texts"]
            assert len(set(texts)) == len(texts) > 1, figure
            assert axis["policy"] == "NoOverlap"
            if axis["is_time"]:
                times |= {re.sub(r"\d", "0", text) for text in texts}
    assert times in ({"00:00:00"}, {"00:00:00.000"})


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture
def tabs(chromium: Any) -> Iterator[Any]:
    """``tabs(width, scheme)``: a new page; nothing may have gone wrong in it in the end."""
    opened: list[Tab] = []

    def make(*about: Any, **how: Any) -> Tab:
        opened.append(Tab(chromium, *about, **how))
        return opened[-1]

    yield make
    faults = [fault for tab in opened for fault in tab.faults]
    for tab in opened:
        tab.close()
    assert faults == []


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    x = np.random.default_rng(0).standard_normal((3_000, 4)).astype(np.float32)
    url = str(tmp_path_factory.mktemp("rows") / "x.zarr")
    lk.ingest(x, url, chunk_rows=500, progress=False)
    return url


def dashboard(client: Client) -> str:
    return f"http://127.0.0.1:{client.scheduler_info()['services']['dashboard']}"


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory, rows: str) -> Iterator[Any]:
    """A scheduler with the preload, and a job that has ended: address, job, events, folder."""
    folder = tmp_path_factory.mktemp("preloaded")
    with ExitStack() as stack:
        store = {"largek.store": str(folder / "store")}
        stack.enter_context(dask.config.set({**QUICK, **store}))
        cluster = stack.enter_context(
            LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                processes=False,
                dashboard_address="127.0.0.1:0",
                scheduler_kwargs={"preload": "largek_dask.service.preload"},
            )
        )
        client = stack.enter_context(Client(cluster, set_as_default=False))
        service = stack.enter_context(lk.connect(client))
        job = service.submit(rows, algorithm=lk.Lloyd(), n_clusters=7, output=str(folder / "out"),
                             name="a name", max_iter=40, tol=0.0)  # fmt: skip
        assert job.wait("60s") == "finished"
        events = list(JsonLines.read(Folder(str(folder / "out"))))
        yield dashboard(client), job, events, folder


# --- numbers, looks, navigation -------------------------------------------------------------------


def test_a_job_that_has_ended__numbers_equal_its_events(preloaded, tabs):
    address, job, events, _ = preloaded
    status, steps = job.status(), [event for event in events if event["event"] == "step"]
    view = JobView(status).update_all(events)
    (panel,) = [panel for panel in panels(view) if panel.kind == "cost"]
    tab = tabs().open(f"{address}/largek?job={job.id}")
    tab.wait_text(".state", "✓ finished")
    assert tab.text("h1") == "a name"
    facts = dict(tab.page.evaluate(
        "[...document.querySelectorAll('.facts>div')].map(d => "
            "[...d.children].map(c => c.innerText))"
    ))  # fmt: skip
    assert facts["step"].startswith(f"{status['step']} of at most 40")
    assert facts["digest"] == status["result"]["digest"]
    assert f"{steps[-1]['cost']:.8g}" in facts["cost"]
    assert tab.text(".panel dl.figures dd") == panel.figures[0][1]
    chart = tab.page.get_by_role("group", name=f"Chart of {panel.title}: {panel.words}")
    assert chart.count() == 1, "what is drawn, for whoever hears it"
    x, y = tab.wait(LINE, "cost/on all rows")
    (series,) = panel.series
    assert (x, y) == (series.columns["x"], series.columns["y"])
    assert y[-1] == pytest.approx(steps[-1]["cost"], rel=1e-6)
    assert len(y) == len(steps) >= 10
    # What is behind the chart, for whoever does not see it.
    tab.page.get_by_text("Table of cost").click()
    tab.wait_text(".panel table", panel.rows[0][1])
    assert not tab.scrolls_sideways()


def test_the_list__numbers_equal_those_of_the_job(preloaded, tabs):
    address, job, _, _ = preloaded
    tab = tabs().open(f"{address}/largek")
    tab.wait_text(".state", "✓ finished")
    names = tab.page.locator("thead th").all_inner_texts()
    cells = tab.page.locator("tbody tr").first.locator("td").all_inner_texts()
    row, status = dict(zip(names, cells, strict=True)), job.status()
    assert row["Job"].split() == ["a", "name", job.id]
    assert (row["Algorithm"], row["k"], row["Data"]) == ("lloyd", "7", "x.zarr")
    assert row["Owner"] == status["owner"]
    assert float(row["Cost"]) == pytest.approx(status["result"]["inertia"], rel=1e-5)
    assert row["Done"].strip() == "100 %"
    assert row["Duration"].strip() == human_seconds(status["result"]["seconds"])
    tab.page.keyboard.press("Tab")
    reached = []
    for _ in range(20):
        reached.append(tab.page.evaluate("document.activeElement.innerText"))
        tab.page.keyboard.press("Tab")
    assert {"Skip to content", "Dask", "a name"} <= set(reached)


NUMBERED = """() => {
    const any = "a[href], button, select, input, summary, [tabindex]";
    const all = [...document.querySelectorAll(any)]
        .filter(e => e.tabIndex >= 0 && !e.disabled && e.checkVisibility());
    all.forEach((e, i) => { e.dataset.place = i; });
    return all.map(e => e.outerHTML.slice(0, 80));
}"""
FOCUSED = """() => {
    const e = document.activeElement, style = getComputedStyle(e);
    return [e.dataset.place ?? null, style.outlineStyle !== "none" && style.outlineWidth !== "0px"];
}"""
"""Where the focus is, and whether that can be seen."""


def test_a_job__keyboard_alone_reaches_everything(preloaded, tabs):
    address, job, *_ = preloaded
    tab = tabs().open(f"{address}/largek?job={job.id}")
    tab.wait("() => window.Bokeh && Bokeh.documents.length >= 1")
    there = tab.page.evaluate(NUMBERED)
    assert len([told for told in there if told.startswith("<summary")]) >= 4
    reached, unseen = set(), set()
    # Charts have tools of Bokeh's between ours.
    for _ in range(5 * len(there)):
        tab.page.keyboard.press("Tab")
        place, is_seen = tab.page.evaluate(FOCUSED)
        if place is not None:
            reached.add(int(place))
            unseen |= set() if is_seen else {there[int(place)]}
        if len(reached) == len(there):
            break
    assert [told for i, told in enumerate(there) if i not in reached] == []
    assert unseen == set()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_looks(width, scheme, preloaded, tabs):
    address, *_ = preloaded
    tab = tabs(width, scheme).open(f"{address}/largek")
    tab.wait_text(".state", "finished")
    assert not tab.scrolls_sideways()
    no_serious_finding(tab)
    tab.picture(f"list-{width}-{scheme}")
    tab.page.get_by_text("a name").click()
    tab.wait("() => window.Bokeh && Bokeh.documents.length >= 1")
    see_charts(tab)
    check_charts(tab)
    assert not tab.scrolls_sideways()
    no_serious_finding(tab)
    tab.picture(f"job-{width}-{scheme}")
    paper = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    zoom = tab.page.get_attribute("meta[name=viewport]", "content")
    assert "maximum-scale" not in zoom
    assert "user-scalable" not in zoom


def test_navigation__dask_and_jupyterlab_lead_to_it(preloaded, tabs):
    address, _, _, _ = preloaded
    with urlopen(f"{address}/individual-plots.json") as found:
        assert json.load(found)["Individual Largek"] == "/individual-largek"
    with urlopen(f"{address}/status") as found:
        assert '<a href="largek">Largek</a>' in found.read().decode()
    tab = tabs().open(f"{address}/individual-largek")
    tab.page.wait_for_url("**/largek")
    tab.wait_text("td.name", "a name")


# --- a job that runs ------------------------------------------------------------------------------


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Steps of Lloyd's algorithm wait after the third until this is set."""
    go_on = threading.Event()
    usual = lk.Lloyd.step

    def slow(self: Any, passes: Any, rng: Any, state: Any) -> Any:
        # Of quicker ones not all are told.
        go_on.wait(0.15)
        while state.step >= 3 and not go_on.wait(0.01):
            if passes.cancelled is not None and passes.cancelled():
                break
        return usual(self, passes, rng, state)

    monkeypatch.setattr(lk.Lloyd, "step", slow)
    yield go_on
    go_on.set()


def test_register_plugin__a_job_that_runs_and_is_cancelled_by_keyboard(rows, held, tabs, tmp_path):
    jobs = {"largek.service.concurrent-jobs": 1, "largek.observe.actions": True}
    with (
        dask.config.set({**QUICK, **jobs}),
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False,
                     dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        service = lk.connect(client, store=str(tmp_path / "store"))
        about = {"algorithm": lk.Lloyd(), "n_clusters": 7, "max_iter": 90, "tol": 0.0}
        job = service.submit(rows, output=str(tmp_path / "a"), **about)
        eventually(lambda: job.status().get("step") == 3, "three steps")
        other = service.submit(rows, output=str(tmp_path / "b"), name="next", **about)
        assert (job.state, other.state) == ("running", "queued")
        tab = tabs().open(f"{dashboard(client)}/largek")
        tab.wait_text("tr:nth-child(1) .state", "● running")
        tab.wait_text("tr:nth-child(2) .state", "○ queued")
        status = job.status()
        tab.page.get_by_text(job.id).click()
        tab.wait_text(".state", "running")
        tiles = dict(tab.page.evaluate(
            "[...document.querySelectorAll('.tiles>div')].map(d => [d.children[0].innerText, "
            "d.children[1].innerText])"
        ))  # fmt: skip
        assert tiles["Cost"].split()[0] == f"{status['cost']:.8g}"
        assert tiles["Rows/s"] == human_count(status["rows_per_second"])
        # Workers tell of themselves every few seconds.
        assert tiles.get("Workers", "2") == "2"
        assert status["eta_s"] is None or "Time left" in tiles
        assert "just now" in tiles["Last event"] or "ago" in tiles["Last event"]
        # By keyboard alone: the button, the question, no; then yes.
        cancel = tab.page.get_by_role("button", name="Cancel …")
        cancel.focus()
        tab.page.keyboard.press("Enter")
        tab.page.get_by_role("dialog").wait_for()
        tab.page.keyboard.press("Escape")
        assert job.state == "running"
        cancel.focus()
        tab.page.keyboard.press("Enter")
        tab.page.get_by_role("button", name="Cancel the job").focus()
        no_serious_finding(tab)
        tab.page.keyboard.press("Enter")
        tab.wait_text(".state", "■ cancelled")
        assert [event["who"] for event in job.events() if event["event"] == "cancelling"] == [
            "127.0.0.1"
        ]
        service.job(other.id).cancel()
        assert other.wait("60s") == "cancelled"


def test_prefix__workers_and_the_scheduler_die_and_come_back(rows, tabs, chromium, tmp_path):
    port = free_port()
    where = ("--dashboard-address", f"127.0.0.1:{port}", "--dashboard-prefix", "/px")
    with Rig(tmp_path, dashboard=where) as rig, rig.connected() as service:
        job = service.submit(rows, algorithm=lk.MiniBatch(), n_clusters=7, name="long",
                             output=str(tmp_path / "out"), max_iter=10**6, tol=0.0)  # fmt: skip
        with urlopen(f"http://127.0.0.1:{port}/px/status") as found:
            assert '<a href="largek">Largek</a>' in found.read().decode()
        tab = Tab(chromium)
        try:
            tab.open(f"http://127.0.0.1:{port}/px/largek?job={job.id}")
            tab.wait_text(".state", "running")
            tab.wait(LINE, "cost/on all rows")
            assert tab.faults == []
            # One that has not taken part yet would go without a word. One that waits for a step has
            # no chunk that is handed out again: that it left is all that is told.
            eventually(lambda: len(job.status()["workers"]) == 2, "two workers")
            os.kill(rig.worker_pids()[0], signal.SIGKILL)
            tab.wait("() => /worker \\S+ left/.test(document.querySelector('.marks').innerText)")
            tab.page.mouse.wheel(0, 0)
            tab.picture("killed-worker-1280-light")
            assert tab.faults == []
            rig.scheduler.hold()
            tab.wait_text("#note", "This page is out of date")
            no_serious_finding(tab)
            tab.picture("scheduler-away-1280-light")
            rig.scheduler.resume()
            tab.wait("() => document.querySelector('#note').innerText === ''")
            tab.wait_text(".state", "running")
            tab.wait("() => /resumes after step/.test(document.querySelector('.marks').innerText)")
            # A page that was sent before the events were read has no charts: they are drawn anew.
            x, _ = tab.wait(LINE, "cost/on all rows")
            known = [value for value in x if value is not None and value == value]
            assert known == sorted(known), "one line, and no step twice"
            names = tab.page.evaluate("""() => [...new Set(Bokeh.documents.flatMap(doc =>
                [...doc._all_models.values()].map(model => model.name)))]""")  # fmt: skip
            assert [name for name in names if name and name.startswith("cost/on")] == [
                "cost/on all rows"
            ]
            job.cancel()
            tab.wait_text(".state", "■ cancelled")
            tab.page.set_viewport_size({"width": 390, "height": 900})
            tab.page.emulate_media(color_scheme="dark")
            # What is out of sight is not fed: so at the end.
            see_charts(tab)
            assert not tab.scrolls_sideways()
            no_serious_finding(tab)
            tab.picture("killed-worker-390-dark")
        finally:
            tab.close()


# --- jobs that are made up ------------------------------------------------------------------------


NASTY = "</script><img src=x onerror='document.title=1'>\x1b[31m" + 10_000 * "long "


def made_up() -> MadeUp:
    source = MadeUp()
    for state in ("finished", "failed", "cancelled", "queued", "waiting"):
        source.add(f"lk-{state}", state, name=f"this one is {state}")
    source.statuses["lk-failed"]["result"] = {
        "error": "DataError", "message": "row 7 of chunk 3 is not finite", "state": "failed",
    }  # fmt: skip
    source.statuses["lk-waiting"].update(
        reason="credentials", needs=["key", "secret"], note="it waits for storage options"
    )
    source.add("lk-nasty", name=NASTY, workers={"w\x1b1": {}})
    now = datetime.now().timestamp() - datetime.fromisoformat(at(0)).timestamp()
    source.tell("lk-nasty", {"event": "queued", "time": at(now - 100)}, started(now - 100),
                *(step(n, now - 100 + n, elapsed=float(n)) for n in range(1, 41)),
                {"event": "warning", "time": at(now - 59), "message": NASTY})  # fmt: skip
    return source


def test_states__each_says_what_it_is_and_why(tabs):
    with page_of(made_up()) as url:
        tab = tabs().open(url)
        for state, sign in [("finished", "✓"), ("failed", "✕"), ("cancelled", "■"),
                            ("queued", "○"), ("waiting", "◔")]:  # fmt: skip
            tab.wait_text(".state", f"{sign} {state}")
        tab.open(f"{url}?job=lk-finished")
        with urlopen(f"{url}/report?job=lk-finished") as found:
            assert found.headers["Content-Security-Policy"].startswith("sandbox")
        for state, words in [("failed", "row 7 of chunk 3 is not finite"),
                             ("waiting", "key, secret")]:  # fmt: skip
            tab.open(f"{url}?job=lk-{state}")
            tab.wait_text("main", words)
            no_serious_finding(tab)


def test_names__are_text_and_nothing_else_and_an_old_sign_is_said(tabs):
    with page_of(made_up()) as url:
        tab = tabs(390).open(f"{url}?job=lk-nasty")
        tab.wait_text("h1", "</script><img src=x")
        # No sign for a minute of what gives one every second.
        tab.wait_text(".tiles .late", "overdue")
        tab.wait("() => window.Bokeh && Bokeh.documents.length >= 1")
        assert not tab.scrolls_sideways()
        assert tab.page.locator("main img").count() == 0
        assert "running" in tab.page.title()
        tab.picture("nasty-390-light")
        tab.open(f"{url}?job=none")
        tab.wait_text("h1", "No such job")
        assert [fault for fault in tab.faults if "404" not in fault] == []
        assert tab.faults
        tab.faults.clear()


def test_hidden__nothing_is_asked(tabs):
    with page_of(made_up()) as url:
        tab = tabs()
        tab.page.clock.install()
        tab.open(f"{url}?job=lk-nasty")
        tab.wait_text("h1", "</script>")
        hide = """state => {
            Object.defineProperty(document, "hidden", {configurable: true, get: () => state});
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
        asks(tab, 1)
        tab.page.evaluate(hide, True)
        tab.page.wait_for_load_state("networkidle")  # figures of the first content
        before = len(tab.requests)
        tab.page.clock.run_for(60_000)
        tab.page.evaluate("fetch(location.href)")
        assert len(tab.requests) == before + 1, "none but this one"
        tab.page.evaluate(hide, False)
        asks(tab, 1)


def asks(tab: Tab, times: int) -> None:
    """Let the page's clock go on until it has asked as often."""
    wanted = len(tab.requests) + times
    eventually(lambda: (tab.page.clock.run_for(500), len(tab.requests) >= wanted)[1], "questions")


def test_failures__three_are_said_and_then_it_asks_every_ten_seconds(tabs):
    with page_of(made_up()) as url:
        tab = tabs()
        tab.page.clock.install()
        tab.open(f"{url}?job=lk-nasty")
        tab.wait_text("h1", "</script>")
        tab.page.route(re.compile("data/job.json"), lambda route: route.abort())
        asks(tab, 3)
        tab.wait_text("#note", "(no answer). Retrying every 10 s.")
        before = len(tab.requests)
        tab.page.clock.run_for(9_000)
        tab.page.evaluate("fetch(location.href)")
        assert len(tab.requests) == before + 1, "none but this one"
        tab.page.clock.run_for(2_000)
        tab.page.unroute_all()
        asks(tab, 1)
        tab.wait("() => document.querySelector('#note').innerText === ''")
        assert len([fault for fault in tab.faults if "job.json" in fault]) >= 3
        tab.faults.clear()


def test_without_bokehjs__all_numbers_are_there(tabs):
    with page_of(made_up()) as url:
        tab = tabs()
        tab.page.route(re.compile("bokeh"), lambda route: route.abort())
        tab.open(f"{url}?job=lk-nasty")
        tab.wait_text("#note", "Charts cannot be loaded")
        tab.wait_text(".tiles", "25")
        assert tab.page.locator(".chart:visible").count() == 0
        tab.page.get_by_text("Table of cost").click()
        tab.wait_text(".panel table", "25")
        assert [fault for fault in tab.faults if "bokeh" not in fault
                and "ERR_FAILED" not in fault] == []  # fmt: skip
        tab.faults.clear()
