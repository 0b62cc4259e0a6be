"""The page over HTTP: what is handed out, to whom, and what is refused."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tornado import web
from tornado.httpclient import AsyncHTTPClient, HTTPResponse
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from largek_dask.errors import ClusterError
from largek_dask.service.web import page as pages
from largek_dask.service.web.hosts import Hosts
from largek_dask.service.web.page import Page
from tests.service.web.sources import MadeUp, at, started, step

NASTY = "</script><img src=x onerror=alert(1)>" + 10_000 * "y"


class Served:
    """What a server of the page answers."""

    def __init__(self, url: str, page: Page, navigation: list[str]) -> None:
        self.url, self.page, self.navigation = url, page, navigation

    async def get(self, path: str, **headers: str) -> HTTPResponse:
        told = {"Accept-Encoding": "gzip", **headers}
        return await AsyncHTTPClient().fetch(
            f"{self.url}{path}", headers=told, raise_error=False, decompress_response=False
        )

    async def post(self, body: Any, **headers: str) -> HTTPResponse:
        told = {"Content-Type": "application/json", "Sec-Fetch-Site": "same-origin", **headers}
        text = body if isinstance(body, (str, bytes)) else json.dumps(body)
        return await AsyncHTTPClient().fetch(
            f"{self.url}largek/cancel", method="POST", body=text, headers=told, raise_error=False
        )


@asynccontextmanager
async def serving(source: MadeUp, prefix: str = "/", actions: bool = False):
    application = web.Application([])
    navigation = ["status", "workers"]
    page = Page(application, prefix, source, Hosts(lambda: None), navigation, actions=actions)
    server = HTTPServer(application)
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    root = f"/{prefix.strip('/')}/" if prefix.strip("/") else "/"
    try:
        yield Served(f"http://127.0.0.1:{sockets[0].getsockname()[1]}{root}", page, navigation)
    finally:
        server.stop()
        page.close()


def on(source: MadeUp, ask: Any, **how: Any) -> Any:
    """What ``ask(served)`` gives."""

    async def asked() -> Any:
        async with serving(source, **how) as served:
            return await ask(served)

    return asyncio.run(asked())


@pytest.fixture
def source() -> MadeUp:
    found = MadeUp()
    found.add("lk-1", name=NASTY)
    found.tell("lk-1", {"event": "queued", "time": at(0)}, started(), *map(step, range(1, 30)))
    return found


def plain(response: HTTPResponse) -> bytes:
    is_packed = response.headers.get("Content-Encoding") == "gzip"
    return gzip.decompress(response.body) if is_packed else response.body


@pytest.mark.parametrize("prefix", ["/", "/px", "px/", "/a+b/c/"])
def test_page__every_address_in_it_leads_somewhere_below_the_prefix(prefix, source):
    async def ask(served):
        html = plain(await served.get("largek")).decode()
        links = re.findall(r'(?:href|src|data-bokeh)="([^"]+)"', html)
        found = [link for link in links if not link.startswith(("#", "data:"))]
        assert all(not link.startswith(("/", "http")) for link in found)
        return [
            (link, (await served.get(link)).code) for link in found if link != "status"
        ], served.navigation

    links, navigation = on(source, ask, prefix=prefix)
    assert len(links) >= 3
    assert {code for _, code in links} == {200}
    assert navigation == ["status", "workers", "largek"]


def test_page__bokehjs_comes_along_where_there_are_charts(source):
    async def ask(served):
        pages = [plain(await served.get(path)) for path in ("largek", "largek?job=lk-1")]
        return [re.findall(r'<link rel="preload" as="script" href="([^"]+)"', page.decode())
                for page in pages], served.page.files.bokeh  # fmt: skip

    (of_list, of_job), bokeh = on(source, ask)
    assert of_list == []
    assert of_job == [f"largek/static/{bokeh}"]


def test_page__headers(source):
    async def ask(served):
        return await served.get("largek"), await served.get("largek/data/jobs.json")

    html, data = on(source, ask)
    policy = html.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "connect-src 'self'" in policy
    for response in (html, data):
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cache-Control"] == "private, no-cache"


def test_data__is_sent_once_as_long_as_it_is_the_same(source):
    async def ask(served):
        first = await served.get("largek/data/job.json?job=lk-1")
        again = await served.get("largek/data/job.json?job=lk-1",
                                 **{"If-None-Match": first.headers["Etag"]})  # fmt: skip
        bare = await served.get("largek/data/job.json?job=lk-1", **{"Accept-Encoding": "identity"})
        return first, again, bare

    first, again, bare = on(source, ask)
    assert (first.code, again.code, bare.code) == (200, 304, 200)
    assert again.body == b""
    assert "Content-Encoding" not in bare.headers
    assert json.loads(bare.body) == json.loads(plain(first))
    assert json.loads(bare.body)["title"].startswith("running · </script><img")


@pytest.mark.parametrize("path", ["largek", "largek?job=lk-1"])
def test_html__names_are_text(path, source):
    source.tell("lk-1", {"event": "warning", "message": NASTY, "time": at(30)})
    for name in ("data", "owner", "algorithm", "output"):
        source.statuses["lk-1"][name] = NASTY

    async def ask(served):
        data = "largek/data/job.json?job=lk-1" if "job" in path else "largek/data/jobs.json"
        return plain(await served.get(path)).decode(), json.loads(plain(await served.get(data)))

    html, data = on(source, ask)
    for text in (html, data["html"]):
        assert "<img" not in text
        assert "&lt;img src=x onerror=alert(1)&gt;" in text
        assert "y" * 500 not in text


@pytest.mark.parametrize(
    "job_id",
    ["lk-2", "..", "../../etc/passwd", "%2e%2e%2fstore", "<b>x</b>", "a" * 5_000, "a%20b", "a%0ab"],
)
def test_a_job_that_there_is_not(job_id, source):
    async def ask(served):
        return (
            await served.get(f"largek?job={job_id}"),
            await served.get(f"largek/data/job.json?job={job_id}"),
            await served.get(f"largek/figure?job={job_id}&panel=cost"),
        )

    html, *data = on(source, ask)
    assert html.code == 404
    assert "There is no job" in plain(html).decode()
    assert "<b>x" not in plain(html).decode()
    assert len(plain(html)) < 3_000
    assert [response.code for response in data] == [404, 404]
    assert set(source.asked) <= {("view", "lk-2"), ("view", "..")}


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("largek/figure?job=lk-1&panel=cost&theme=pink", 400),
        ("largek/figure?job=lk-1&panel=nothing", 404),
        ("largek/figure?job=lk-1&panel=cost&theme=dark", 200),
        ("largek/data/jobs.json?sort=-seconds", 200),
        ("largek/data/jobs.json?sort=token", 400),
        ("largek?sort=--k", 400),
        ("largek/report?job=lk-2", 404),
        ("largek/report?job=%3Cb%3E", 404),
        ("largek/static/page.js", 404),
        ("largek/static/..%2fweb.py", 404),
        ("largek/cancel", 405),
        ("largek/", 404),
        ("largek/lk-1", 404),
    ],
)
def test_questions_of_nonsense(path, code, source):
    assert on(source, lambda served: served.get(path)).code == code


# --- the list -------------------------------------------------------------------------------------


def listed(source: MadeUp, query: str = "") -> tuple[str, list[str]]:
    """The list's text and the ids of its jobs."""
    data = on(source, lambda served: served.get(f"largek/data/jobs.json?{query}"))
    html = json.loads(plain(data))["html"]
    return html, re.findall(r'<tr id="job-([^"]+)"', html)


def test_list__what_runs_comes_first_then_the_newest():
    source = MadeUp()
    for job_id, state in [("a", "finished"), ("b", "queued"), ("c", "running"), ("d", "failed"),
                          ("e", "running"), ("f", "waiting")]:  # fmt: skip
        source.add(job_id, state)
    html, ids = listed(source)
    assert ids == ["e", "c", "f", "b", "d", "a"]
    assert "2 running" in html


@pytest.mark.parametrize(
    ("sort", "ids"),
    [
        ("n_clusters", ["b", "c", "a"]), ("-n_clusters", ["a", "c", "b"]),
        ("owner", ["c", "b", "a"]),
        ("seconds", ["c", "a", "b"]), ("-seconds", ["a", "c", "b"]), ("name", ["a", "b", "c"]),
        ("data", ["a", "c", "b"]), ("algorithm", ["b", "a", "c"]), ("cost", ["b", "c", "a"]),
    ],
)  # fmt: skip
def test_list__is_sorted_and_what_is_unknown_comes_last(sort, ids):
    source = MadeUp()
    source.add("a", name="A", n_clusters=9, owner="zoe", seconds=7.0, data="a", algorithm="lloyd")
    source.add("b", n_clusters=1, owner="Mia", seconds=None, data="c", algorithm="auto", cost=1)
    source.add("c", name="n", n_clusters=5, owner="ann", seconds=2, data="B", algorithm="truncated")
    html, found = listed(source, f"sort={sort}")
    assert found == ids
    order = "descending" if sort.startswith("-") else "ascending"
    assert html.count(f'aria-sort="{order}"') == html.count("aria-sort") == 1


def test_list__the_newest_of_ten_thousand_jobs():
    source = MadeUp()
    for i in range(10_000):
        source.add(f"lk-{i:05d}", "finished", name=f"Run {i}")
    source.add("the-one", "running", rows_per_second=2e6, workers=("w1", "w2"))
    first, ids = listed(source)
    assert ids[0] == "the-one"
    assert ids[1:] == [f"lk-{i:05d}" for i in range(9_999, 9_900, -1)]
    assert "100 of 10,001 jobs" in first
    assert "2 workers" in first
    assert "2M rows/s" in first
    assert len(gzip.compress(first.encode())) < 6_000


# --- contents -------------------------------------------------------------------------------------


def test_a_job_with_a_model__links_its_report_and_shows_how_to_load_it(source):
    async def ask(served):
        html = plain(await served.get("largek?job=lk-1")).decode()
        return html, await served.get("largek/report?job=lk-1")

    assert "largek/report" not in on(source, ask)[0]
    source.statuses["lk-1"] |= {
        "state": "finished",
        "result": {"digest": "abc", "state": "finished"},
    }
    html, report = on(source, ask)
    assert 'href="largek/report?job=lk-1"' in html
    assert "lk.load_model(&#39;/out/lk-1/model.zarr&#39;)" in html
    assert report.code == 200
    assert report.headers["Content-Security-Policy"].startswith("sandbox;")
    assert b"<title>lk-1" in plain(report)


def test_ten_viewers_at_once__are_one_rendering(source):
    async def ask(served):
        return await asyncio.gather(
            *(served.get("largek/data/job.json?job=lk-1") for _ in range(10))
        )

    found = on(source, ask)
    assert len({response.body for response in found}) == 1
    assert source.asked == [("view", "lk-1")]


@pytest.mark.parametrize(
    ("error", "code"),
    [(ClusterError("another one has them"), 503), (OSError("away"), 503), (KeyError("x"), 500)],
)
def test_errors__are_said_and_pass(error, code, source, monkeypatch):
    monkeypatch.setattr(pages, "FRESH_SECONDS", -1.0)
    paths = ("largek/data/jobs.json", "largek/data/job.json?job=lk-1")

    async def ask(served):
        source.fails = error
        failed = [await served.get(path) for path in paths]
        html = await served.get("largek?job=lk-1")
        source.fails = None
        return failed, html, [(await served.get(path)).code for path in paths]

    failed, html, codes = on(source, ask)
    assert [response.code for response in failed] == [code, code]
    assert all(json.loads(plain(response))["error"] for response in failed)
    assert html.code == 200, "it asks again"
    assert codes == [200, 200]


def test_figures__hold_no_data_and_stay_the_same(source):
    async def ask(served):
        path = "largek/figure?job=lk-1&panel=cost&theme=dark"
        first = await served.get(path)
        source.tell("lk-1", *map(step, range(30, 40)))
        return first, await served.get(path, **{"If-None-Match": first.headers["Etag"]})

    first, again = on(source, ask)
    assert (first.code, again.code) == (200, 304)
    assert b"cost/on all rows" in plain(first)
    assert len(first.body) < 10_000


# --- buttons --------------------------------------------------------------------------------------


@pytest.fixture
def refusals():
    """What the page logs. (Dask silences the handlers that caplog relies on.)"""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("largek_dask.service.web.page")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_cancel__is_off_unless_it_was_turned_on(source, refusals):
    async def ask(served):
        return await served.post({"job": "lk-1", "token": "x"}), await served.get("largek?job=lk-1")

    refused, html = on(source, ask)
    assert refused.code == 403
    assert source.cancelled == []
    assert len(refusals) == 1
    assert "refused a request by 127.0.0.1" in refusals[0]
    assert 'data-token=""' in plain(html).decode()
    assert "Cancel" not in plain(html).decode()
    assert "frame-ancestors" not in html.headers["Content-Security-Policy"]


def test_cancel__by_whoever_has_the_page(source, refusals):
    async def ask(served):
        html = await served.get("largek?job=lk-1")
        (token,) = re.findall(r'data-token="([^"]+)"', plain(html).decode())
        return html, await served.post({"job": "lk-1", "token": token})

    html, done = on(source, ask, actions=True)
    assert done.code == 200
    assert source.cancelled == [("lk-1", "127.0.0.1")]
    assert len(refusals) == 1
    assert refusals[0].endswith("127.0.0.1 to cancel job lk-1")
    assert "frame-ancestors 'self'" in html.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("change", "headers"),
    [
        ({"token": "another"}, {}),
        ({"token": None}, {}),
        ({"token": "é"}, {}),
        ({}, {"Sec-Fetch-Site": "cross-site"}),
        ({}, {"Sec-Fetch-Site": "same-site"}),
        ({}, {"Sec-Fetch-Site": "none"}),
        ({}, {"Sec-Fetch-Site": ""}),
        ({}, {"Content-Type": "text/plain"}),
        ({}, {"Content-Type": "application/x-www-form-urlencoded"}),
        ("[]", {}),
        ("{", {}),
        ("[" * 4_000, {}),
    ],
)
def test_cancel__is_refused_and_logged(change, headers, source, refusals):
    async def ask(served):
        body = {"job": "lk-1", "token": served.page.token}
        return await served.post(change if isinstance(change, str) else {**body, **change},
                                 **headers)  # fmt: skip

    assert on(source, ask, actions=True).code == 403
    assert source.cancelled == []
    assert len(refusals) == 1
    assert "refused a request by 127.0.0.1" in refusals[0]


@pytest.mark.parametrize("job_id", ["lk-2", "../x", None, {"a": 1}])
def test_cancel__a_job_that_there_is_not(job_id, source):
    async def ask(served):
        return await served.post({"job": job_id, "token": served.page.token})

    assert on(source, ask, actions=True).code == 404
    assert source.cancelled == []


def test_tokens__are_made_anew(source):
    async def ask(served):
        return served.page.token

    assert on(source, ask, actions=True) != on(source, ask, actions=True)


def test_close__takes_the_page_away(source):
    async def ask(served):
        served.page.close()
        return await served.get("largek")

    assert on(source, ask).code == 404
