"""The page over HTTP: handlers for a tornado application that hand out bytes which are ready.

On a scheduler it is Dask's own HTTP server that they are added to. Nothing is computed there for
whoever looks: answers are made by the thread of :class:`~largek_dask.observe.desk.Desk`. All
addresses are relative, so that the page works behind proxies, and below any prefix.
"""

from __future__ import annotations

import asyncio
import gzip
import hmac
import json
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tornado import web

from largek_dask.driver.formatting import printable
from largek_dask.errors import JobNotFoundError
from largek_dask.observe import pages
from largek_dask.observe.desk import MOST_SEARCH, PAGE_JOBS, Answer, Desk, Key, Source
from largek_dask.observe.hosts import GuardedHandler, Hosts

__all__ = ["PATH", "Page", "install"]

logger = logging.getLogger(__name__)

PATH = "largek"
"""The page's name, below whatever prefix."""
THEMES = ("light", "dark")
WORD = re.compile(r"[A-Za-z0-9_.-]{1,80}")
"""What names of jobs and panels are made of."""
"""What ends of a part of an axis are written as."""
POLICY: Mapping[str, str] = {
    "default-src": "'none'",
    "script-src": "'self'",
    # BokehJS sets styles of what it draws, and has its icons in addresses; it runs no other script.
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
}
"""What a page may load and do."""


class Page:
    """The page on one HTTP server, until it is closed.

    Parameters
    ----------
    application : tornado.web.Application
    prefix : str
        Where the server's own pages are, such as ``/`` or ``/proxy/``.
    source : Source
        Who has the jobs.
    hosts : Hosts
        Names under which the page is shown.
    actions : bool
        Whether whoever can open the page may cancel jobs.
    home : str, optional
        Relative address of the pages that this one is among.
    """

    def __init__(
        self,
        application: web.Application,
        prefix: str,
        source: Source,
        hosts: Hosts,
        *,
        actions: bool = False,
        home: str | None = None,
    ) -> None:
        self.token = secrets.token_urlsafe(24) if actions else None
        self.files = pages.Files()
        self.desk = Desk(source, self.files.draws, self.files.prepare)
        self.home = home
        self._application = application
        root = re.escape("/" + prefix.strip("/") + "/" if prefix.strip("/") else "/")
        shared = {"page": self, "hosts": hosts}
        application.add_handlers(
            ".*$",
            [
                (rf"{root}{PATH}", Html, shared),
                (rf"{root}{PATH}/data/jobs\.json", Jobs, shared),
                (rf"{root}{PATH}/data/job\.json", Job, shared),
                (rf"{root}{PATH}/figure", Figure, shared),
                (rf"{root}{PATH}/static/([A-Za-z0-9._-]+)", Static, shared),
                (rf"{root}{PATH}/cancel", Cancel, shared),
            ],
        )
        # Tornado puts what is added last but one, before what answers for every host.
        self._rule = application.default_router.rules[-2]
        self.desk.start()

    def close(self) -> None:
        """Take the page away again."""
        self.desk.close()
        if self._rule in self._application.default_router.rules:
            self._application.default_router.rules.remove(self._rule)


def install(
    application: web.Application,
    prefix: str,
    source: Source,
    hosts: Hosts,
    navigation: list[str] | None = None,
    *,
    actions: bool = False,
) -> Page:
    """Put the page on an HTTP server that runs, or is about to.

    Parameters
    ----------
    application : tornado.web.Application
    prefix : str
        Where the server's own pages are.
    source : Source
        Who has the jobs.
    hosts : Hosts
        Names under which the page is shown.
    navigation : list of str, optional
        Names of pages that other pages show as links; this one is added, once.
    actions : bool
        Whether whoever can open the page may cancel jobs.
    """
    home = navigation[0] if navigation else None
    page = Page(application, prefix, source, hosts, actions=actions, home=home)
    if navigation is not None and PATH not in navigation:
        navigation.append(PATH)
    return page


class Handler(GuardedHandler):
    """What all handlers have in common."""

    def initialize(self, page: Page, hosts: Hosts) -> None:  # type: ignore[override]
        """Called by tornado."""
        super().initialize(hosts)
        self.page = page

    def set_default_headers(self) -> None:
        """Nothing is guessed, sent on, or kept by whoever is in between."""
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "private, no-cache")

    def word(self, name: str) -> str:
        """An argument that is a name."""
        value = self.get_query_argument(name, "")
        if WORD.fullmatch(value) is None:
            raise web.HTTPError(404, reason="Not Found")
        return value

    def send(self, body: bytes, tag: str, kind: str, status: int = 200) -> None:
        """Send compressed bytes, or that they are known already."""
        self.set_header("Etag", tag)
        self.set_header("Vary", "Accept-Encoding")
        if status == 200 and self.check_etag_header():
            self.set_status(304)
            return
        self.set_status(status)
        self.set_header("Content-Type", kind)
        if "gzip" in self.request.headers.get("Accept-Encoding", ""):
            self.set_header("Content-Encoding", "gzip")
        else:
            body = gzip.decompress(body)
        self.finish(body)

    async def send_answer(self, key: Key) -> None:
        """Send what the desk has to say."""
        found = await self.answer(key)
        self.send(found.body, found.tag, "application/json; charset=utf-8", found.status)

    async def answer(self, key: Key) -> Answer:
        """What the desk has to say."""
        try:
            return await self.page.desk.answer(key)
        except TimeoutError:
            raise web.HTTPError(503, reason="No Answer In Time") from None

    def write_error(self, status_code: int, **about: Any) -> None:
        """In words, without anything of the program."""
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish({"error": self._reason})


class Html(Handler):
    """The page: the list, or one job."""

    async def get(self) -> None:
        """Send it; of a job that there is not, a page that says so."""
        job_id = self.get_query_argument("job", "")
        is_framed = self.get_query_argument("frame", "") != ""
        status, kind = 200, "job" if job_id else "list"
        if job_id:
            found = None
            if WORD.fullmatch(job_id) is not None:
                found = await self.answer(("known", job_id))
                # It is made while the browser reads this and asks.
                self.page.desk.expect(("job", job_id))
            if found is None or found.status == 404:
                status, kind = 404, "lost"
        policy = dict(POLICY)
        if self.page.token is not None:
            # A page with buttons is not shown inside another one that could hide what is pressed.
            policy["frame-ancestors"] = "'self'"
        told = "; ".join(f"{name} {value}" for name, value in policy.items())
        self.set_header("Content-Security-Policy", told)
        body = pages.shell(
            kind,
            self.page.files,
            job_id=job_id,
            home=None if is_framed else self.page.home,
            is_framed=is_framed,
            token=self.page.token,
        )
        self.send(gzip.compress(body, 5, mtime=0), f'"{pages.digest(body)}"',
                  "text/html; charset=utf-8", status)  # fmt: skip


class Jobs(Handler):
    """The list as data."""

    async def get(self) -> None:
        """At most 50 jobs from number ``from`` on of those that ``search`` finds."""
        search = printable(self.get_query_argument("search", ""))[:MOST_SEARCH]
        begin = self.get_query_argument("from", "0")
        if not re.fullmatch(r"[0-9]{1,9}", begin):
            raise web.HTTPError(400, reason="from has to be a whole number")
        await self.send_answer(("jobs", search, str(int(begin) // PAGE_JOBS * PAGE_JOBS)))


class Job(Handler):
    """A job as data."""

    async def get(self) -> None:
        """All that is shown of it."""
        await self.send_answer(("job", self.word("job")))


class Figure(Handler):
    """A chart without data, from which BokehJS draws."""

    async def get(self) -> None:
        """That of a panel."""
        theme = self.get_query_argument("theme", THEMES[0])
        if theme not in THEMES:
            raise web.HTTPError(400, reason=f"theme has to be {' or '.join(THEMES)}")
        axis = self.get_query_argument("x", "")
        log = "log" if self.get_query_argument("log", "") else ""
        if axis and WORD.fullmatch(axis) is None:
            raise web.HTTPError(400, reason="x has to be the name of an axis")
        key = ("figure", self.word("job"), self.word("panel"), theme, axis, log)
        await self.send_answer(key)


class Static(Handler):
    """Files of a version: a browser asks for each once."""

    async def get(self, name: str) -> None:
        """A file by its name, in which its version is."""
        if self.page.files.is_known(name):
            # That of Bokeh may still be compressed.
            body, kind = await asyncio.to_thread(self.page.files.read, name)
            self.set_header("Cache-Control", "public, max-age=31536000, immutable")
            self.send(body, f'"{name}"', kind)
            return
        raise web.HTTPError(404, reason="Not Found")


class Cancel(Handler):
    """The one thing that can be done from the page, where that is allowed."""

    ALLOWED: ClassVar[Sequence[str]] = ("same-origin",)

    async def post(self) -> None:
        """Ask a job to end."""
        who = self.request.remote_ip or "somebody"
        given = self._given()
        if given is None:
            logger.warning("largek's page refused that %s cancels a job", who)
            raise web.HTTPError(403, reason="Not Allowed")
        job_id = str(given.get("job"))
        if WORD.fullmatch(job_id) is None:
            raise web.HTTPError(404, reason="Not Found")
        logger.info("largek's page: %s cancels job %s", who, job_id)
        try:
            state = await asyncio.to_thread(self.page.desk.source.cancel, job_id, who)
        except JobNotFoundError as error:
            raise web.HTTPError(404, reason="Not Found") from error
        self.finish({"state": state})

    def _given(self) -> dict[str, Any] | None:
        """What is asked; None if that is not allowed."""
        headers, token = self.request.headers, self.page.token
        if token is None or headers.get("Sec-Fetch-Site") not in self.ALLOWED:
            return None
        if headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            return None
        try:
            given = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        if not isinstance(given, dict) or not isinstance(given.get("token"), str):
            return None
        return given if hmac.compare_digest(given["token"].encode(), token.encode()) else None
