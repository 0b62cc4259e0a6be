"""DNS rebinding and long bodies: what the page refuses before it reads a request."""

from __future__ import annotations

import asyncio
import json
import socket

import dask
import pytest
import yaml

from largek_dask.service.web.hosts import MOST_BODY, Hosts
from tests.service.web.sources import MadeUp, started, step
from tests.service.web.test_web import on, plain

FOREIGN = [
    "evil.example",
    "evil.example:8787",
    "evil.example.",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "evillocalhost",
    "127.0.0.1:evil",
    "[::1].evil.example",
    "127.0.0",
    "0x7f.0.0.1",
]
EVERY_ADDRESS = [
    "largek",
    "largek?job=lk-1",
    "largek/data/jobs.json",
    "largek/data/job.json?job=lk-1",
    "largek/figure?job=lk-1&panel=cost",
    "largek/static/{style}",
]


@pytest.fixture
def source() -> MadeUp:
    found = MadeUp()
    found.add("lk-1", name="a secret name")
    found.tell("lk-1", started(), *map(step, range(1, 30)))
    return found


def accepted(host: str, address: str | None = None, hosts: object = ()) -> bool:
    with dask.config.set({"largek.observe.hosts": hosts}):
        return asyncio.run(Hosts(lambda: address).accepts(host))


@pytest.mark.parametrize(
    "host",
    [
        # At the machine itself, or by ``ssh -L 9000:127.0.0.1:8787``: also through a Jupyter server
        # reached so, as jupyter-server-proxy and JupyterLab's panel of Dask forward ``Host``.
        *("localhost", "localhost:9000", "LOCALHOST:8888", "localhost.", "me.localhost:8888"),
        *("127.0.0.1", "127.0.0.1:8787", "127.1.2.3:1", "[::1]", "[::1]:8787"),
        # By address: a port of Docker, a pod's address as a probe of Kubernetes asks.
        *("10.0.0.5:8787", "192.168.1.7", "203.0.113.9", "[fe80::1]:8787", "[2001:db8::1]"),
        # By the machine's name: a node of a site, also by Open OnDemand's /rnode/NAME/PORT/.
        *(socket.gethostname(), f"{socket.getfqdn().upper()}:8787"),
    ],
)
def test_a_name_that_no_web_site_can_have__is_accepted(host):
    assert accepted(host)


@pytest.mark.parametrize("host", [*FOREIGN, "", ":8787", "[::1", "a b", "::1", "@127.0.0.1"])
def test_a_name_that_a_web_site_can_have__is_not(host):
    assert not accepted(host)
    assert not accepted(host, address="http://10.0.0.5:8787/status")


def test_the_announced_name__is_accepted():
    hub = "https://hub.example.org/user/ann/proxy/8787/status"
    assert accepted("hub.example.org", address=hub)
    assert accepted("Hub.example.org:443", address=hub)
    assert not accepted("evil.hub.example.org", address=hub)
    assert accepted("big-machine:8799", address="big-machine")
    assert not accepted("evil.example", address="/user/ann/proxy/8787/status")


@pytest.mark.parametrize(
    "hosts",
    [
        ["hub.example.org"],
        ("other", "HUB.example.org."),
        "hub.example.org",
        "other, hub.example.org",
        ["https://hub.example.org:8000/hub"],
        ["hub.example.org:443"],
        [".example.org"],
        ["*"],
        "*",
    ],
    ids=str,
)
def test_configured_names(hosts):
    assert accepted("hub.example.org", hosts=hosts)
    assert accepted("hub.example.org:8443", hosts=hosts)
    for_any = "*" in hosts
    assert accepted("hub.evil", hosts=hosts) == for_any
    assert accepted("hub.example.org.evil", hosts=hosts) == for_any
    assert accepted("a.hub.example.org", hosts=hosts) == (for_any or hosts == [".example.org"])


@pytest.mark.parametrize("hosts", [None, [], "", ["[::1", 5, None, "a b"]], ids=str)
def test_configured_nonsense__accepts_nothing_more(hosts):
    assert not accepted("evil.example", hosts=hosts)
    assert accepted("localhost", hosts=hosts)


@pytest.mark.parametrize("host", FOREIGN[1:3])
def test_no_address_of_the_page_answers_a_foreign_name(host, source):
    async def ask(served):
        paths = [path.format(style=served.page.files.style) for path in EVERY_ADDRESS]
        return [
            (await served.get(path), await served.get(path, Host=host)) for path in paths
        ], await served.post({"job": "lk-1", "token": served.page.token}, Host=host)

    answers, cancel = on(source, ask, actions=True)
    assert {own.code for own, _ in answers} == {200}
    for refused in (*(foreign for _, foreign in answers), cancel):
        assert refused.code == 403
        text = plain(refused).decode()
        assert "largek.observe.hosts" in text
        assert "DASK_LARGEK__OBSERVE__HOSTS=" in text
        assert "secret name" not in text
        assert refused.headers["Content-Type"].startswith("text/plain")
    assert source.cancelled == []


def test_the_refusal_names_the_line_that_accepts(source):
    async def ask(served):
        refused = await served.get("largek", Host="hub.example.org:8000")
        text = plain(refused).decode()
        assert "largek.observe.hosts" in text
        (line,) = [line for line in text.splitlines() if line.startswith("    ")]
        assert yaml.safe_load(line) == {"largek": {"observe": {"hosts": ["hub.example.org"]}}}
        name, _, value = text.split()[-1].partition("=")
        given = dask.config.collect_env({name: value})["largek"]["observe"]["hosts"]
        with dask.config.set({"largek.observe.hosts": given}):
            return refused.code, (await served.get("largek", Host="hub.example.org:8000")).code

    assert on(source, ask) == (403, 200)


# --- bodies ---------------------------------------------------------------------------------------


async def begin(served, path: str, host: str = "127.0.0.1", **headers: str) -> bytes:
    """The answer to a POST of which only the head is ever sent, until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.split(":")[2][:-1]))
    told = {"Host": host, "Content-Type": "application/json", "Sec-Fetch-Site": "same-origin"}
    lines = [f"{name}: {value}" for name, value in {**told, **headers}.items()]
    writer.write("\r\n".join([f"POST /{path} HTTP/1.1", *lines, "", ""]).encode())
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("path", ["largek/cancel", "largek", "largek/data/jobs.json"])
@pytest.mark.parametrize("length", [MOST_BODY + 1, 10**9, "9" * 5_000, "a", "-1"], ids=str)
def test_a_body_that_is_too_long__is_refused_unread(path, length, source):
    answer = on(source, lambda s: begin(s, path, **{"Content-Length": str(length)}), actions=True)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert f"The body may have at most {MOST_BODY} bytes".encode() in answer


@pytest.mark.parametrize("path", ["largek/cancel", "largek"])
def test_a_body_without_a_length__is_refused_unread(path, source):
    async def ask(served):
        return await begin(served, path, **{"Transfer-Encoding": "chunked"}), served.page.token

    answer, _ = on(source, ask, actions=True)
    assert answer.startswith(b"HTTP/1.1 411 ")
    assert b"Content-Length is required" in answer


def test_the_longest_body__is_taken(source):
    async def ask(served):
        body = json.dumps({"job": "lk-1", "token": served.page.token})
        return (await served.post(body + " " * (MOST_BODY - len(body)))).code

    assert on(source, ask, actions=True) == 200
    assert [job for job, _ in source.cancelled] == ["lk-1"]
