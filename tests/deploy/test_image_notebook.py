"""JupyterLab of `docker-compose.yml`: built, run, and worked in as a browser does.

By hand, as its packages take minutes to install: ``LARGEK_NOTEBOOK=yes pytest`` with this file.
"""

import os
from contextlib import ExitStack

import pytest

from tests.deploy.containers import built, called
from tests.deploy.engine import Engine
from tests.deploy.running import DEPLOY

BY_HAND = "LARGEK_NOTEBOOK"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(BY_HAND not in os.environ, reason=f"by hand only, with {BY_HAND}=yes"),
]

QUICK = {"DASK_LARGEK__DATA__READ_CHUNK_BYTES": "1"}

ASK = """
import sys, urllib.error, urllib.request as u
url, token = sys.argv[1:]
try:
    with u.urlopen(u.Request(url, headers={"Authorization": "token " + token}), timeout=30) as got:
        print(got.status, got.read().decode())
except urllib.error.HTTPError as error:
    print(error.code)
"""

BROWSER = """
import asyncio, json, sys, uuid
import urllib.request as u
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

token = {"Authorization": "token " + open("/run/secrets/jupyter_token").read()}
here = "127.0.0.1:8888/api/kernels"

async def main(code):
    asked = u.Request(f"http://{here}", b"{}", token, method="POST")
    kernel = json.load(u.urlopen(asked, timeout=60))["id"]
    page = await websocket_connect(HTTPRequest(f"ws://{here}/{kernel}/channels", headers=token))
    await page.write_message(json.dumps({
        "channel": "shell", "parent_header": {}, "metadata": {},
        "header": {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "version": "5.3",
                   "username": "", "session": uuid.uuid4().hex},
        "content": {"code": code, "silent": False, "stop_on_error": True},
    }))
    while (answer := json.loads(await page.read_message()))["msg_type"] != "execute_reply":
        content = answer["content"]
        if answer["msg_type"] == "stream":
            print(content["text"], end="", flush=True)
        if answer["msg_type"] in ("display_data", "execute_result"):
            print("shown as", sorted(content["data"]), flush=True)
    print("reply", answer["content"]["status"], answer["content"].get("traceback", ""))

asyncio.run(asyncio.wait_for(main(sys.argv[1]), 280))
"""
"""What JupyterLab's page does with a cell: its kernel is asked by a web socket."""

CELL = """
import os
import numpy as np
import largek_dask as lk

open("of-mine.txt", "w").write("kept")
x = np.random.default_rng(0).standard_normal((3_000, 4)).astype(np.float32)
lk.ingest(x, "s3://largek/cell/x.zarr", chunk_rows=500, progress=False)
with lk.connect(os.environ["DASK_SCHEDULER_ADDRESS"], timeout="60s") as service:
    job = service.submit("s3://largek/cell/x.zarr", n_clusters=5, output="s3://largek/cell/model",
                         random_state=0)
    model = job.result("200s")
    print("digest", model.digest(), flush=True)
    display(job)
    display(model)
    display(job.plot())
print("alone", lk.KMeans(5, random_state=0).fit("s3://largek/cell/x.zarr").model_.digest())
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    place = tmp_path_factory.mktemp("composed")
    called(DEPLOY / "compose" / "secrets.sh", place / "secrets")
    with ExitStack() as stack:
        image = stack.enter_context(built(tmp_path_factory.mktemp("image"), "notebook"))
        engine = Engine(image, place, stack, QUICK)
        engine.up("worker")
        engine.up("jupyter")
        yield engine


def test_it_says_what_the_service_does(engine):
    settings = engine.image.settings
    assert settings["Cmd"] == engine.document["services"]["jupyter"]["command"]
    assert (settings["User"], settings["WorkingDir"]) == ("1000:1000", "/notebooks")


def test_only_the_token_of_the_file_is_let_in(engine):
    token = (engine.place / "secrets" / "jupyter_token").read_text()

    def answer(path, given):
        url = f"http://127.0.0.1:8888{path}"
        return engine.said("jupyter", "python", "-c", ASK, url, given).strip()

    assert answer("/api/status", token).startswith("200 ")
    assert "JupyterLab" in answer("/lab", token)
    for wrong in ("", token[:-1], "x"):
        assert answer("/api/status", wrong) == "403"
        assert answer("/api/contents", wrong) == "403"
    assert token not in engine.tails(), "whoever reads logs would have it"


def test_a_cell_submits_a_job_and_shows_it(engine):
    printed = engine.said("jupyter", "python", "-c", BROWSER, CELL, seconds=300)
    told = dict(line.split(" ", 1) for line in printed.splitlines() if " " in line)
    assert told.get("reply", "").strip() == "ok", f"{printed}\n{engine.tails()}"
    assert told["digest"] == told["alone"], printed
    assert printed.count("shown as") == 3, printed
    # What is written beside notebooks outlives the container.
    assert (engine.place / "volumes" / "notebooks" / "of-mine.txt").read_text() == "kept"
    assert "Traceback" not in engine.log("jupyter").read_text(), engine.tails()
