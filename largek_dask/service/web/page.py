"""HTTP handlers for the page of jobs, in the tornado application of a scheduler.

A thread makes each response once for all concurrent viewers. All URLs are relative, so that the
page works behind proxies and below any URL prefix.
"""

from __future__ import annotations

import asyncio
import gzip
import hmac
import json
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from tornado import web

from largek_dask.errors import JobNotFoundError, LargekError, NoModelError, ParameterError
from largek_dask.plots.figures import item
from largek_dask.service.jobs import Jobs
from largek_dask.service.web import render
from largek_dask.service.web.hosts import MOST_BODY, Hosts, refusal

logger = logging.getLogger(__name__)

PATH = "largek"
"""Path of the page below the URL prefix."""
FRESH_SECONDS = 1.5
"""Maximum age of cached content in seconds; browsers request content every two seconds."""
MOST_CONTENTS = 64
"""Maximum number of cached responses; the least recently used one is dropped first."""
TIMEOUT_SECONDS = 20.0
THEMES = ("light", "dark")
WORD = re.compile(r"[A-Za-z0-9_.-]{1,80}")
"""Pattern of job ids and panel names."""
# BokehJS requires inline styles and icons in data URLs, but no further scripts.
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' "
          "data:; connect-src 'self'; base-uri 'none'; form-action 'self'")  # fmt: skip
REPORT_POLICY = ("sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
                 "base-uri 'none'; form-action 'none'")  # fmt: skip
NOT_FOUND = {
    "title": "No such job",
    "html": "<h1>No such job</h1><p>There is no job with this id here. It may have been deleted, "
    "or belong to another scheduler.</p><p><a href='largek'>All jobs</a></p>",
}
Key = tuple[Any, ...]


class Content(NamedTuple):
    body: bytes
    value: Mapping[str, Any]
    status: int = 200

    @classmethod
    def of(cls, value: Mapping[str, Any], status: int = 200) -> Content:
        """Create content from a value, as JSON without its ``panels``."""
        sent = {name: part for name, part in value.items() if name != "panels"}
        text = json.dumps(sent, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
        return cls(render.packed(text.encode("utf-8", "replace")), value, status)


class Contents:
    """Cache of responses by key; a thread makes each response once for all concurrent viewers."""

    def __init__(self) -> None:
        # Use one thread: more threads would hold Python's GIL longer and delay the event loop.
        self._pool = ThreadPoolExecutor(1, "largek-page")
        self._made: OrderedDict[Key, tuple[float, asyncio.Future[Content]]] = OrderedDict()
        self._failed: set[Key] = set()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def get(self, key: Key, make: Callable[[], Mapping[str, Any]]) -> Content:
        """Return content, from the cache if fresh; raise HTTP error 503 after a timeout."""
        loop = asyncio.get_running_loop()
        begun, future = self._made.get(key, (0.0, None))
        if future is None or (future.done() and loop.time() - begun >= FRESH_SECONDS):
            future = loop.run_in_executor(self._pool, self._content, key, make)
            self._made[key] = loop.time(), future
        self._made.move_to_end(key)
        while len(self._made) > MOST_CONTENTS:
            self._made.popitem(last=False)
        try:
            return await asyncio.wait_for(asyncio.shield(future), TIMEOUT_SECONDS)
        except TimeoutError:
            raise web.HTTPError(503, reason="Timed Out") from None

    def _content(self, key: Key, make: Callable[[], Mapping[str, Any]]) -> Content:
        try:
            return Content.of(make())
        except (LargekError, OSError) as error:
            missing = isinstance(error, JobNotFoundError | NoModelError)
            status = 404 if missing else 400 if isinstance(error, ParameterError) else 503
            return Content.of({"error": str(error)}, status)
        except Exception as error:
            if key not in self._failed and len(self._failed) < MOST_CONTENTS:
                self._failed.add(key)
                logger.exception("The page of jobs cannot show %r", key)
            return Content.of({"error": f"this page cannot be shown: {type(error).__name__}"}, 500)


class Page:
    """Page of jobs on the HTTP server of a dashboard.

    ``prefix`` is the URL path of Dask's pages, such as ``/proxy/``. ``navigation`` lists the pages
    in the dashboard's navigation bar, to which this page is added once. ``actions`` lets viewers
    cancel jobs.
    """

    def __init__(
        self,
        application: web.Application,
        prefix: str,
        source: Jobs,
        hosts: Hosts,
        navigation: list[str],
        *,
        actions: bool = False,
    ) -> None:
        self.token = secrets.token_urlsafe(24) if actions else ""
        self.files = render.Files()
        self.source = source
        self.home = navigation[0]
        if PATH not in navigation:
            navigation.append(PATH)
        self.contents, self.reports = Contents(), Contents()
        self._application = application
        root = re.escape("/" + prefix.strip("/") + "/" if prefix.strip("/") else "/")
        shared = {"page": self, "hosts": hosts}
        handlers = {
            "": PageHandler,
            r"/data/(jobs?)\.json": DataHandler,
            "/figure": FigureHandler,
            "/report": ReportHandler,
            "/static/([A-Za-z0-9._-]+)": StaticHandler,
            "/cancel": CancelHandler,
        }
        application.add_handlers(
            ".*$", [(f"{root}{PATH}{end}", handler, shared) for end, handler in handlers.items()]
        )
        # Tornado inserts new rules before the last rule, which matches every host.
        self._rule = application.default_router.rules[-2]

    def close(self) -> None:
        for part in (self.contents, self.reports):
            part.close()
        if self._rule in self._application.default_router.rules:
            self._application.default_router.rules.remove(self._rule)

    async def jobs(self, sort: str) -> Content:
        make = partial(render.jobs_content, sort=sort)
        return await self.contents.get(("jobs", sort), lambda: make(self.source.listed()))

    async def job(self, job_id: str) -> Content:
        make = partial(render.job_content, can_cancel=bool(self.token))
        return await self.contents.get(("job", job_id), lambda: make(*self.source.view(job_id)))


@web.stream_request_body
class BaseHandler(web.RequestHandler):
    """Base of all handlers, which refuses unknown host names and long request bodies."""

    def initialize(self, page: Page, hosts: Hosts) -> None:
        self.page, self._hosts = page, hosts
        self.body = b""

    async def prepare(self) -> None:
        """Check a request, and refuse it before its body is read."""
        self.request.connection.set_max_body_size(MOST_BODY)  # type: ignore[union-attr]
        if not await self._hosts.accepts(self.request.host):
            self.set_status(403)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(refusal(self.request.host))
            return
        if "Transfer-Encoding" in self.request.headers:
            raise web.HTTPError(411, reason="Content-Length is required")
        length = self.request.headers.get("Content-Length", "0")
        if not re.fullmatch("[0-9]{1,9}", length) or int(length) > MOST_BODY:
            raise web.HTTPError(413, reason=f"The body may have at most {MOST_BODY} bytes")

    def data_received(self, chunk: bytes) -> None:
        self.body += chunk

    def set_default_headers(self) -> None:
        """Forbid browsers to guess content types, send referrers or cache responses."""
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "private, no-cache")

    def word(self, name: str) -> str:
        """Return a query argument that is a valid name, or raise HTTP error 404."""
        value = self.get_query_argument(name, "")
        if WORD.fullmatch(value) is None:
            raise web.HTTPError(404, reason="Not Found")
        return value

    def sort(self) -> str:
        sort = self.get_query_argument("sort", "")
        if sort and sort.removeprefix("-") not in render.COLUMNS:
            raise web.HTTPError(400, reason=f"sort must be one of {', '.join(render.COLUMNS)}")
        return sort

    def send(self, body: bytes, kind: str, status: int = 200) -> None:
        """Send compressed bytes; tornado omits the body if the browser already has this content."""
        self.set_status(status)
        self.set_header("Vary", "Accept-Encoding")
        self.set_header("Content-Type", f"{kind}; charset=utf-8")
        if "gzip" in self.request.headers.get("Accept-Encoding", ""):
            self.set_header("Content-Encoding", "gzip")
        else:
            body = gzip.decompress(body)
        self.finish(body)

    def send_json(self, content: Content) -> None:
        self.send(content.body, "application/json", content.status)

    def send_html(self, html: bytes, policy: str, status: int = 200) -> None:
        self.set_header("Content-Security-Policy", policy)
        self.send(render.packed(html), "text/html", status)

    def write_error(self, status_code: int, **about: Any) -> None:
        """Send the reason of an error as JSON, without internal details."""
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish({"error": self._reason})


class PageHandler(BaseHandler):
    """Serve the HTML page with a list of jobs or one job."""

    async def get(self) -> None:
        """Send the page, or a 404 page for an unknown job."""
        page, job_id = self.page, self.get_query_argument("job", "")
        content, data = None, ""
        if not job_id:
            content = await page.jobs(sort := self.sort())
            data = f"{PATH}/data/jobs.json?sort={sort}"
        elif WORD.fullmatch(job_id) is not None:
            content = await page.job(job_id)
            data = f"{PATH}/data/job.json?job={job_id}"
        if content is None or content.status == 404:
            value, job_id, data = NOT_FOUND, "", ""
        else:
            # If there is no content yet, the script in the page requests it again.
            value = {"title": "Jobs", "html": "", **content.value}
        bokeh = f"{PATH}/static/{page.files.bokeh}" if job_id else ""
        html = render.whole_page(value, page, data=data, job=job_id, bokeh=bokeh)
        # Prevent clickjacking if the page has buttons.
        policy = f"{POLICY}; frame-ancestors 'self'" if page.token else POLICY
        self.send_html(html, policy, 200 if data else 404)


class DataHandler(BaseHandler):
    """Serve the list of jobs or one job as JSON."""

    async def get(self, kind: str) -> None:
        if kind == "jobs":
            self.send_json(await self.page.jobs(self.sort()))
        else:
            self.send_json(await self.page.job(self.word("job")))


class FigureHandler(BaseHandler):
    """Serve a chart without data, as JSON for BokehJS."""

    async def get(self) -> None:
        job_id, kind = self.word("job"), self.word("panel")
        theme = self.get_query_argument("theme", "light")
        if theme not in THEMES:
            raise web.HTTPError(400, reason="unknown theme")
        job = await self.page.job(job_id)
        panel = job.value.get("panels", {}).get(kind)
        if panel is None or not panel.series:
            raise web.HTTPError(404, reason="Not Found")
        key = "figure", job_id, kind, theme
        self.send_json(await self.page.contents.get(key, lambda: item(panel, theme) or {}))


class ReportHandler(BaseHandler):
    """Serve the report about a job's model."""

    async def get(self) -> None:
        make = partial(self.page.source.report, self.word("job"))
        content = await self.page.reports.get(make.args, lambda: {"html": make()})
        if content.status != 200:
            self.send_json(content)
        else:
            self.send_html(content.value["html"].encode(), REPORT_POLICY)


class StaticHandler(BaseHandler):
    """Serve static files; names contain a version, so browsers may cache files forever."""

    async def get(self, name: str) -> None:
        # Use a thread, because compressing BokehJS at the first request takes time.
        if (body := await asyncio.to_thread(self.page.files.read, name)) is None:
            raise web.HTTPError(404, reason="Not Found")
        self.set_header("Cache-Control", "public, max-age=31536000, immutable")
        self.send(body, "text/css" if name.endswith(".css") else "text/javascript")


class CancelHandler(BaseHandler):
    """Cancel a job, the only action of the page, if ``observe.actions`` is true."""

    async def post(self) -> None:
        who = self.request.remote_ip or "an unknown address"
        if (job_id := self._job_id()) is None:
            logger.warning("The page of jobs refused a request by %s to cancel a job", who)
            raise web.HTTPError(403, reason="Forbidden")
        logger.info("The page of jobs accepted a request by %s to cancel job %s", who, job_id)
        try:
            state = await asyncio.to_thread(self.page.source.cancel, job_id, who)
        except JobNotFoundError as error:
            raise web.HTTPError(404, reason="Not Found") from error
        self.finish({"state": state})

    def _job_id(self) -> str | None:
        """Return the id of the job to cancel; None if the request is not allowed."""
        headers, token = self.request.headers, self.page.token
        if not token or headers.get("Sec-Fetch-Site") != "same-origin":
            return None
        if headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            return None
        try:
            given = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        if not isinstance(given, dict) or not isinstance(given.get("token"), str):
            return None
        if not hmac.compare_digest(given["token"].encode(), token.encode()):
            return None
        job_id = str(given.get("job"))
        if WORD.fullmatch(job_id) is None:
            raise web.HTTPError(404, reason="Not Found")
        return job_id
