"""Notices of jobs: what is worth one, where they go, that they arrive though much is against it."""

from __future__ import annotations

import hashlib
import hmac
import json
import queue
import ssl
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import dask
import pytest

import largek_dask as lk
from largek_dask.driver.storage import Folder
from largek_dask.errors import ParameterError
from largek_dask.observe.showing import Seen, facts
from largek_dask.service import notices, targets
from largek_dask.service.jobs import Jobs
from largek_dask.service.known import KnownJob, Waiting
from largek_dask.service.lease import Contender, Keeper
from largek_dask.service.lines import line_of
from largek_dask.service.notice import Notice
from largek_dask.service.notices import PAUSES, Notices
from largek_dask.service.places import Places
from largek_dask.service.spec import JobSpec
from largek_dask.service.store import Record, Records, Result
from largek_dask.service.targets import targets_of
from tests.deploy.test_tls import make, signed
from tests.helpers.checks import eventually, join
from tests.service.conftest import begun, wait_until

SECRET = "sesame-open-7"
SOON = 0.3
"""Seconds of a try that is to be in vain."""


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


class Post(SimpleNamespace):
    """A request that has arrived: ``path``, ``headers``, ``body``."""

    @property
    def told(self):
        return json.loads(self.body)


class Receiver:
    """A server on loopback that keeps what it is sent, and answers as ``answers`` say in turn.

    A number is a status, a text where it redirects to, ``"hang"`` and ``"drip"`` what they say.
    """

    def __init__(self, host="127.0.0.1"):
        self.posts = []
        self.answers = queue.SimpleQueue()
        self.always = 204
        self.let_go = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.posts.append(Post(path=self.path, headers=self.headers, body=body))
                try:
                    answer = receiver.answers.get_nowait()
                except queue.Empty:
                    answer = receiver.always
                receiver.answer(self, answer)

            do_GET = do_POST

            def log_message(self, *_):
                """Nothing is written to the terminal."""

        self.server = ThreadingHTTPServer((host, 0), Handler)
        self.server.daemon_threads = True
        # Who breaks off, as one that is refused does, is no error.
        self.server.handle_error = lambda *_: None
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def answer(self, handler, answer):
        if answer == "hang":
            assert self.let_go.wait(120.0)
            answer = 204
        if answer == "drip":
            while not self.let_go.wait(0.02):
                try:
                    handler.wfile.write(b"H")
                    handler.wfile.flush()
                except OSError:
                    return
            return
        handler.send_response(307 if isinstance(answer, str) else answer)
        if isinstance(answer, str):
            handler.send_header("Location", answer)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    def url(self, path="/hook/T0k3n-in-the-path", scheme="http"):
        host, port = self.server.server_address
        return f"{scheme}://{host}:{port}{path}"

    def speak_tls(self, folder):
        """With the certificate of a folder that `deploy/tls/make.sh` has written, from now on."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "node.pem", folder / "node.key")
        self.server.socket = context.wrap_socket(
            self.server.socket, server_side=True, do_handshake_on_connect=False
        )

    def close(self):
        self.let_go.set()
        self.server.shutdown()
        self.server.server_close()
        join(self.thread)


@pytest.fixture
def make_receiver(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "*")
    made = []

    def make(*host):
        made.append(Receiver(*host))
        return made[-1]

    yield make
    for receiver in made:
        receiver.close()


@pytest.fixture
def receiver(make_receiver):
    return make_receiver()


@pytest.fixture
def quick(monkeypatch):
    """Jobs are looked at often, and a try may take long on a machine with much to do."""
    monkeypatch.setattr(notices, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(targets, "TRY_SECONDS", 60.0)


def sent(target, body=b'{"a": 1}', notice_id="lk-1.1.finished"):
    return target.send(body, notice_id)


def configured(**by_name):
    return dask.config.set({"largek.service.notify": by_name})


# --- one try at a target --------------------------------------------------------------------------


def test_hook__has_the_body_the_id_and_a_signature_of_the_body(receiver, monkeypatch, quick):
    monkeypatch.setenv("LAB_SECRET", SECRET)
    asked = {"url": receiver.url(), "secret": {"env": "LAB_SECRET"}}
    target = targets_of({"lab": asked})["lab"]
    body = json.dumps({"text": "öß"}).encode()
    assert sent(target, body) == (True, "answered 204")
    (post,) = receiver.posts
    assert (post.path, post.body) == ("/hook/T0k3n-in-the-path", body)
    assert post.headers["Content-Type"] == "application/json"
    assert post.headers["Largek-Notice"] == "lk-1.1.finished"
    expected = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert post.headers["Largek-Signature"] == f"sha256={expected}"
    assert SECRET not in str(post.headers)
    without = targets_of({"lab": {"url": receiver.url()}})["lab"]
    assert sent(without).is_delivered
    assert receiver.posts[1].headers["Largek-Signature"] is None


def test_hook__its_address_may_be_a_variable_and_is_not_told(receiver, monkeypatch, quick):
    monkeypatch.setenv("LAB_HOOK", receiver.url())
    target = targets_of({"lab": {"url": {"env": "LAB_HOOK"}}})["lab"]
    assert sent(target).is_delivered
    assert target.place == f"http://127.0.0.1:{receiver.server.server_port}"
    assert "T0k3n" not in target.place


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_hook__whatever_is_not_taken_is_not_delivered(receiver, quick, status):
    receiver.always = status
    target = targets_of({"lab": {"url": receiver.url()}})["lab"]
    assert sent(target) == (False, f"answered {status}")


def test_hook__a_redirect_is_not_followed(receiver, make_receiver, quick):
    elsewhere = make_receiver()
    receiver.always = elsewhere.url("/metadata")
    target = targets_of({"lab": {"url": receiver.url()}})["lab"]
    assert sent(target) == (False, "answered 307, a redirect, and none is followed")
    receiver.always = receiver.url("/loop")
    assert not sent(target).is_delivered
    assert [post.path for post in receiver.posts] == ["/hook/T0k3n-in-the-path"] * 2
    assert elsewhere.posts == []


@pytest.mark.parametrize("how", ["hang", "drip"])
def test_hook__a_target_that_does_not_come_to_an_end_is_left(receiver, monkeypatch, how):
    monkeypatch.setattr(targets, "TRY_SECONDS", SOON)
    receiver.always = how
    target = targets_of({"lab": {"url": receiver.url()}})["lab"]
    assert sent(target) == (False, f"no answer within {SOON:g} s")
    if how == "drip":
        # The connection is closed, or it would be written to for as long as the server likes.
        names = [thread.name for thread in threading.enumerate()]
        eventually(
            lambda: "largek-post" not in [thread.name for thread in threading.enumerate()],
            f"the end of the request ({names})",
        )
        assert not receiver.let_go.is_set()


def test_hook__nobody_is_there(receiver, quick):
    url = receiver.url()
    receiver.close()
    target = targets_of({"lab": {"url": url}})["lab"]
    delivered, answer = sent(target)
    assert not delivered
    assert answer.startswith("ConnectionRefusedError")
    assert "T0k3n" not in answer


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    out = tmp_path_factory.mktemp("tls")
    make("--out", out, "lab,127.0.0.2", "late,127.0.0.2", "other")
    make("--out", out / "foreign", "lab,127.0.0.2")
    signed(out, "late", -3, -1)
    return out


REFUSED = "its certificate is refused"
UNKNOWN = "unable to get local issuer certificate; SSL_CERT_FILE of the scheduler may name a file"


@pytest.mark.parametrize(
    ("host", "authority", "told"),
    [
        ("lab", "ca.pem", "answered 204"),
        ("late", "ca.pem", f"{REFUSED}: certificate has expired"),
        ("other", "ca.pem", f"{REFUSED}: IP address mismatch, certificate is not valid for '127.0"),
        ("lab", "foreign/ca.pem", f"{REFUSED}: {UNKNOWN} with its authority"),
    ],
)
def test_hook__by_https_only_with_a_certificate_that_is_trusted(
    certificates, make_receiver, monkeypatch, quick, host, authority, told
):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / authority))
    # No address that a certificate has by itself.
    receiver = make_receiver("127.0.0.2")
    receiver.speak_tls(certificates / host)
    target = targets_of({"lab": {"url": receiver.url(scheme="https")}})["lab"]
    delivered, answer = sent(target)
    assert answer.startswith(told)
    assert delivered == (host == "lab" and authority == "ca.pem") == bool(receiver.posts)


def test_a_certificate_that_is_refused_is_told_at_once(
    open_jobs, document, certificates, make_receiver, monkeypatch, quick, logged
):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.pem"))
    receiver = make_receiver("127.0.0.2")
    receiver.speak_tls(certificates / "late")
    with configured(lab={"url": receiver.url(scheme="https")}):
        jobs = open_jobs()
        job_id = jobs.submit(document(notify=["lab"], max_iter=1), {}, "me")
        told = f"{REFUSED}: certificate has expired"
        eventually(lambda: [each["answer"] for each in notices_of(jobs, job_id)] == [told], "a try")
        eventually(lambda: any(f"target lab: {told}" in line for line in logged), "a warning")
        about = ("notice", f"finished to lab: waiting, tried 1 time: {told}")
        assert about in facts(Seen(jobs.status(job_id)))
    assert receiver.posts == []


def test_command__gets_the_json_as_input_and_no_shell(tmp_path, monkeypatch, quick):
    monkeypatch.chdir(tmp_path)
    odd = "a; touch b $HOME `id`"
    target = targets_of({"mail": {"command": ["tee", odd]}})["mail"]
    body = json.dumps({"text": "x" * 4_000}).encode()
    delivered, answer = sent(target, body)
    assert delivered
    assert answer.startswith("exit code 0: xxx")
    assert [path.name for path in tmp_path.iterdir()] == [odd]
    assert (tmp_path / odd).read_bytes() == body


def test_command__that_fails_says_how(quick):
    script = "echo 'no such\033[2J mailbox' >&2; exit 3"
    target = targets_of({"mail": {"command": ["sh", "-c", script]}})["mail"]
    delivered, answer = sent(target, b"{}" * 2_000)
    assert not delivered
    assert answer.startswith("exit code 3: no such")
    assert answer.isprintable()


def is_alive(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_command__that_hangs_is_killed_with_all_that_it_has_started(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "TRY_SECONDS", 1.0)
    pids = tmp_path / "pids"
    script = 'sleep 600 & echo $! $$ > "$0"; wait'
    target = targets_of({"mail": {"command": ["sh", "-c", script, str(pids)]}})["mail"]
    # On a machine with much to do it may be killed before it has said anything.
    for _ in range(60):
        assert sent(target) == (False, "killed, as it had not ended after 1 s")
        if pids.exists() and (found := [int(pid) for pid in pids.read_text().split()]):
            break
    assert len(found) == 2
    eventually(lambda: not any(map(is_alive, found)), "the end of both")


def test_command__that_talks_without_end_is_killed(monkeypatch):
    monkeypatch.setattr(targets, "TRY_SECONDS", SOON)
    target = targets_of({"mail": {"command": ["yes"]}})["mail"]
    assert sent(target) == (False, f"killed, as it had not ended after {SOON:g} s")


# --- the configuration ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("lab", r"notify must be a mapping of names to targets.*got str"),
        ({"a b": {"url": "http://x"}}, r"notify\.a b: the name of a target must be of letters"),
        ({"lab": "http://x"}, r"notify\.lab must have either url"),
        ({"lab": {}}, r"notify\.lab must have either url"),
        ({"lab": {"url": "http://x", "command": ["x"]}}, r"notify\.lab must have either url"),
        ({"lab": {"url": "http://x", "scret": {"env": "A"}}}, r"notify\.lab must have either url"),
        ({"lab": {"url": "ftp://x/y"}}, r"notify\.lab\.url must be a whole address"),
        ({"lab": {"url": "x/y"}}, r"notify\.lab\.url must be a whole address"),
        ({"lab": {"url": "http://x:99999/"}}, r"notify\.lab\.url must be a whole address"),
        ({"lab": {"url": "http://x/\r\nHost: y"}}, r"notify\.lab\.url must be a whole address"),
        ({"lab": {"url": ["http://x"]}}, r"notify\.lab\.url must be a text, or {env: NAME}"),
        ({"lab": {"url": "http://me:pass-word@x/"}}, r"lab\.url has a user name or a password"),
        ({"lab": {"url": "http://x", "secret": "pass-word"}}, r"lab\.secret must be {env: NAME}"),
        ({"lab": {"url": "http://x", "secret": {"env": "LK_NO"}}}, r"lab\.secret: .* LK_NO: start"),
        ({"lab": {"url": "http://x", "secret": {"env": "LK_EMPTY"}}}, r"no variable LK_EMPTY"),
        ({"lab": {"url": "http://x", "secret": {"env": "a b"}}}, r"lab\.secret\.env must be"),
        ({"lab": {"command": "mail me"}}, r"lab\.command must be a list of texts"),
        ({"lab": {"command": []}}, r"lab\.command must be a list of texts"),
        ({"lab": {"command": [3]}}, r"lab\.command must be a list of texts"),
        ({"lab": {"command": ["no-such-program-7"]}}, r"no program 'no-such-program-7'"),
        ({"lab": {"command": ["sh"], "secret": {"env": "A"}}}, r"lab\.secret belongs to a url"),
    ],
)
def test_targets__what_is_wrong_is_said_and_no_value_repeated(monkeypatch, asked, told):
    monkeypatch.delenv("LK_NO", raising=False)
    monkeypatch.setenv("LK_EMPTY", "")
    with pytest.raises(ParameterError, match=told) as caught:
        targets_of(asked)
    assert "pass-word" not in str(caught.value)


def test_targets__are_looked_at_when_a_scheduler_starts(tmp_path):
    records = Records(Folder(str(tmp_path / "store")))
    with (
        configured(lab={"url": "http://127.0.0.1/", "secret": {"env": "LK_NOT_THERE"}}),
        pytest.raises(ParameterError, match=r"notify\.lab\.secret: .* LK_NOT_THERE"),
    ):
        Jobs(records, lambda: None, lambda event: None, "scheduler")


# --- what is worth a notice -----------------------------------------------------------------------


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watched(document, clock):
    """``job, notices, kept``: a job of which notices are noted when a test looks, and kept."""
    kept = []
    register = SimpleNamespace(loaded=threading.Event(), keep=lambda job: kept.append(job.record))
    register.loaded.set()
    with configured(lab={"url": "http://127.0.0.1:9/"}):
        watching = Notices(register, "scheduler-0", clock)
    spec = JobSpec.parse(document(notify=["lab"], storage_options={"key": {"memory": True}}))
    job = KnownJob(
        Record("lk-1", spec, "me", 0.0), Places.of(spec), {"key": SECRET}, watching.hear, True
    )
    register.jobs = lambda: (job,)
    return job, watching, kept


def noted(job):
    return [notice.id for notice in job.record.notices]


def test_waiting__for_more_than_ten_minutes_once_each_time(watched, clock):
    job, watching, kept = watched
    job.waiting = Waiting("storage", f"the disk is away, {SECRET}")
    watching.look()
    clock.now += 600.0
    watching.look()
    assert noted(job) == []
    clock.now += 1.0
    watching.look()
    watching.look()
    assert noted(job) == ["lk-1.1.waiting.1"]
    (notice,) = job.record.notices
    assert notice.text.startswith("job lk-1 has waited for 10 min")
    assert notice.text.endswith("for storage: the disk is away, ***")
    assert [record.notices for record in kept] == [(notice,)]
    job.waiting = None
    watching.look()
    job.waiting = Waiting("workers", "there are none")
    clock.now += 601.0
    watching.look()
    assert len(noted(job)) == 1, "another wait has just begun"
    clock.now += 601.0
    watching.look()
    assert noted(job) == ["lk-1.1.waiting.1", "lk-1.1.waiting.2"]


def test_waiting__one_that_goes_on_and_off_is_told_a_few_times(watched, clock):
    job, watching, _ = watched
    for _ in range(8):
        job.waiting = Waiting("storage", "away")
        watching.look()
        clock.now += 601.0
        watching.look()
        job.waiting = None
        watching.look()
    assert noted(job) == [f"lk-1.1.waiting.{n}" for n in range(1, notices.MOST_OF_KIND + 1)]


def runs(job, watching):
    job.running = True
    watching.look()
    job.feed({"event": "started", "run": 1})


def step(job, n, clock, seconds):
    clock.now += seconds
    job.feed({"event": "step", "step": n, "run": 1})


@pytest.mark.parametrize(("usual", "longest"), [(1.0, 600.0), (90.0, 900.0)])
def test_stalled__ten_times_as_long_as_usual_and_ten_minutes(
    watched, clock, usual, longest, monkeypatch
):
    job, watching, _ = watched
    monkeypatch.setattr("largek_dask.service.feed.STEP_SECONDS", 0.0)
    runs(job, watching)
    for n in range(1, 6):
        step(job, n, clock, 40 * usual if n == 3 else usual)
    clock.now += longest
    watching.look()
    assert noted(job) == []
    clock.now += 1.0
    watching.look()
    watching.look()
    assert noted(job) == ["lk-1.1.stalled.1"]
    assert "has taken no step for" in job.record.notices[0].text
    assert "one usually takes" in job.record.notices[0].text
    step(job, 6, clock, 1.0)
    clock.now += longest
    watching.look()
    assert len(noted(job)) == 1
    clock.now += 1.0
    watching.look()
    assert noted(job) == ["lk-1.1.stalled.1", "lk-1.1.stalled.2"]


def test_stalled__what_comes_on_without_a_step_is_not(watched, clock):
    job, watching, _ = watched
    runs(job, watching)
    # Before the first step a pass may take long, and says how far it is.
    for done in range(1, 9):
        clock.now += 300.0
        job.feed({"event": "progress", "done": done, "n_chunks": 9, "run": 1,
                  "time": f"2026-11-25T08:00:0{done}+00:00"})  # fmt: skip
        watching.look()
    step(job, 1, clock, 300.0)
    # So is it after the last one: labels are written.
    for rows in range(1, 30):
        clock.now += 300.0
        job.feed({"event": "labels", "rows": rows, "n_rows": 30, "run": 1})
        watching.look()
    assert noted(job) == []
    # Paused, it does not run at all.
    job.running = False
    clock.now += 10_000.0
    watching.look()
    job.running = True
    watching.look()
    clock.now += 599.0
    watching.look()
    assert noted(job) == []


def test_ends__of_this_run_only(watched):
    job, watching, _ = watched
    end = Result(job="lk-1", run=1, token=1, state="finished", stop_reason="tol", n_iter=7)
    for changes, ids in [
        ({"result": end.model_copy(update={"state": "cancelled"})}, []),
        ({"result": end, "run": 2}, []),
        ({"result": end}, ["lk-1.1.finished"]),
        (
            {"result": end, "run": 2, "failure": end.model_copy(
                update={"run": 2, "state": "failed", "error": "OSError", "message": "no"})},
            # That of the run before is still to be sent.
            ["lk-1.1.finished", "lk-1.2.failed"],
        ),
    ]:  # fmt: skip
        before = job.record
        job.change_now(**changes)
        watching.look()
        assert noted(job) == ids
        job.change_now(**{name: getattr(before, name) for name in changes})
    assert job.record.notices[1].text == "job lk-1 has failed: OSError: no"


def test_taken_over__is_told_once_a_claim(watched):
    job, watching, _ = watched
    event = {"event": "running", "run": 1, "token": 7, "owner": "scheduler-0"}
    job.feed(event)
    watching.look()
    assert noted(job) == []
    for _ in range(2):
        job.feed({**event, "taken_from": "scheduler-9"})
        watching.look()
    assert noted(job) == ["lk-1.1.taken-over.7"]
    assert "taken over by scheduler-0 from scheduler-9" in job.record.notices[0].text


def test_body__is_small_whatever_names_and_errors_are(watched, document):
    job, watching, _ = watched
    spec = job.record.spec.model_copy(update={"name": "😀" * 200, "output": "/" + "ü" * 4_000})
    failed = Result(
        job="lk-1", run=1, token=1, state="failed", error="ValueError",
        message=f"{SECRET} " + "\x00€" * 40_000,
    )  # fmt: skip
    job.record = replace(job.record, spec=spec, result=failed)
    watching.look()
    (notice,) = job.record.notices
    body = watching.body(job, notice)
    assert 2_000 < len(body) <= 4_096
    told = json.loads(body)
    assert told["id"] == "lk-1.1.failed"
    assert (told["kind"], told["job"], told["error"]) == ("failed", "lk-1", "ValueError")
    assert told["message"].startswith("*** ")
    assert told["message"].endswith("…")
    assert SECRET not in body.decode()
    assert len(notice.text) <= 600


def test_queue__of_a_target_is_bounded_and_nothing_is_lost(watched, clock, monkeypatch):
    job, watching, _ = watched
    monkeypatch.setattr(watching, "_senders", {})
    slow = notices._Sender(watching.targets["lab"], lambda *_: None)
    slow.queue = queue.Queue(1)
    watching._senders["lab"] = slow
    new = (Notice(id=f"n{n}", kind="waiting", target="lab", run=1, at=0.0, text="") for n in "abc")
    job.change_now(notices=(*new,))
    found = []
    for _ in range(3):
        watching.look()
        watching.look()
        _, notice = slow.queue.get_nowait()
        assert slow.queue.empty()
        found.append(notice.id)
        watching._settle(job, notice, targets.Outcome(True, "answered 204"))
        watching._in_flight.discard((notice.id, "lab"))
    assert found == ["na", "nb", "nc"]
    assert {notice.state for notice in job.record.notices} == {"sent"}


def test_record__of_a_job_that_is_removed_does_not_come_back(watched):
    job, _, _ = watched
    store = {}
    keep = lambda record: store.update({record.id: record})  # noqa: E731
    job.change_now(notices=())
    job.keep(keep)
    assert set(store) == {"lk-1"}
    job.forget(store.clear)
    job.change_now(notices=())
    job.keep(keep)
    assert store == {}


def test_lease__says_from_whom_it_was_taken(tmp_path):
    folder, clock = Folder(str(tmp_path / "job")), Clock()
    first = Contender(folder, "lk-1", "a", 10.0, clock=clock).claim()
    assert first.taken_from is None
    other = Contender(folder, "lk-1", "b", 10.0, clock=clock)
    assert other.claim() is None
    clock.now += 11.0
    second = other.claim()
    assert second.taken_from == "a"
    second.release()
    assert Contender(folder, "lk-1", "c", 10.0, clock=clock).claim().taken_from is None


# --- jobs that run --------------------------------------------------------------------------------


def notices_of(jobs, job_id):
    return jobs.status(job_id)["notices"]


def settled(jobs, job_id, n=1):
    """The notices of a job, once there are so many and none is pending."""

    def look():
        found = notices_of(jobs, job_id)
        is_done = len(found) >= n and all(each["state"] != "pending" for each in found)
        return found if is_done else None

    return eventually(look, f"{n} notices of job {job_id}")


@pytest.fixture
def lab(receiver, monkeypatch, quick):
    monkeypatch.setenv("LAB_SECRET", SECRET)
    with configured(lab={"url": receiver.url(), "secret": {"env": "LAB_SECRET"}}):
        yield receiver


def test_a_job_that_has_finished(open_jobs, document, lab, tmp_path, logged):
    told = []
    jobs = open_jobs(tell=told.append)
    with pytest.raises(ParameterError, match=r"no target 'lap' .* in its configuration: lab\."):
        jobs.submit(document(notify=["lap"]), {}, "me")
    assert jobs.all() == []
    assert not (tmp_path / "out").exists()
    job_id = jobs.submit(document(notify=["lab"], name="night", max_iter=2), {}, "me")
    (notice,) = settled(jobs, job_id)
    assert (notice["id"], notice["state"]) == (f"{job_id}.1.finished", "sent")
    assert (notice["tries"], notice["answer"]) == (1, "answered 204")
    (post,) = lab.posts
    body = post.told
    digest = jobs.status(job_id)["result"]["digest"]
    assert {name: body[name] for name in ("format", "id", "kind", "job", "name", "state")} == {
        "format": 1, "id": notice["id"], "kind": "finished", "job": job_id, "name": "night",
        "state": "finished",
    }  # fmt: skip
    assert body["text"] == f"job {job_id} (night) has finished: max_iter after 2 steps"
    assert (body["n_iter"], body["digest"], body["owner"]) == (2, digest, "me")
    eventually(lambda: told[-1]["event"] == "notice", "the event")
    assert told[-2]["event"] == "finished"
    assert (told[-1]["kind"], told[-1]["target"]) == ("finished", "lab")
    assert line_of(told[-1]).endswith("finished, sent to lab: answered 204")
    # Another scheduler does not send it again, nor one that looks for longer.
    assert jobs.close(120.0) == []
    later = open_jobs()
    assert notices_of(later, job_id) == [notice]
    without = later.submit(document("other", max_iter=1), {}, "me")
    wait_until(later, without, "finished")
    assert notices_of(later, without) == []
    assert len(lab.posts) == 1
    record = tmp_path / "store" / "jobs" / f"{job_id}.json"
    everything = [record.read_text(), *logged, json.dumps(told), json.dumps(later.all())]
    assert not [text for text in everything if SECRET in text or "T0k3n" in text]
    assert "notices" not in (tmp_path / "store" / "jobs" / f"{without}.json").read_text()


def test_tries__until_it_is_delivered(open_jobs, document, lab, clock, monkeypatch):
    lab.answers.put(500)
    lab.answers.put(503)
    jobs = open_jobs()
    monkeypatch.setattr(jobs.notices, "_clock", clock)
    job_id = jobs.submit(document(notify=["lab"], max_iter=1), {}, "me")
    eventually(lambda: [each["tries"] for each in notices_of(jobs, job_id)] == [1], "a try")
    assert notices_of(jobs, job_id)[0]["answer"] == "answered 500"
    clock.now += PAUSES[0] - 1.0
    assert not more_posts(jobs, lab.posts, 1)
    clock.now += 1.0
    eventually(lambda: [each["tries"] for each in notices_of(jobs, job_id)] == [2], "another")
    clock.now += PAUSES[1]
    (notice,) = settled(jobs, job_id)
    assert (notice["state"], notice["tries"]) == ("sent", 3)
    assert len({post.headers["Largek-Notice"] for post in lab.posts}) == 1
    assert len({post.body for post in lab.posts}) == 1


def more_posts(jobs, posts, n):
    """Whether more than ``n`` have come by the time that jobs have been looked at thrice more."""
    looks, look = [], jobs.notices.look
    jobs.notices.look = lambda: looks.append(look())
    eventually(lambda: len(looks) >= 3 and not jobs.notices._in_flight, "looks")
    jobs.notices.look = look
    return len(posts) > n


def test_tries__five_within_an_hour_and_no_more(open_jobs, document, lab, clock, logged):
    lab.always = 500
    jobs = open_jobs()
    jobs.notices._clock = clock
    begun_at = clock.now
    job_id = jobs.submit(document(notify=["lab"], max_iter=1), {}, "me")
    for n, pause in enumerate([*PAUSES, 0.0], start=1):
        eventually(
            lambda n=n: [each["tries"] for each in notices_of(jobs, job_id)] == [n], f"try {n}"
        )
        clock.now += pause
    assert clock.now - begun_at < 3_600.0
    (notice,) = settled(jobs, job_id)
    assert (notice["state"], notice["tries"], len(lab.posts)) == ("given up", 5, 5)
    clock.now += 100_000.0
    assert not more_posts(jobs, lab.posts, 5)
    eventually(
        lambda: any("is given up, target lab: answered 500" in line for line in logged), "it"
    )


def test_restart__what_was_not_delivered_is_tried_again(open_jobs, document, lab):
    lab.always = 500
    jobs = open_jobs()
    job_id = jobs.submit(document(notify=["lab"], max_iter=1), {}, "me")
    eventually(lambda: [each["tries"] for each in notices_of(jobs, job_id)] == [1], "a try")
    assert jobs.close(120.0) == []
    lab.always = 204
    later = open_jobs()
    (notice,) = settled(later, job_id)
    assert (notice["state"], notice["tries"]) == ("sent", 2)
    first, second = lab.posts
    assert first.headers["Largek-Notice"] == second.headers["Largek-Notice"] == notice["id"]


def test_restart__between_the_end_of_a_job_and_its_notice(
    open_jobs, document, lab, monkeypatch, tmp_path
):
    with monkeypatch.context() as patch:
        patch.setattr(Notices, "look", lambda self: None)
        jobs = open_jobs()
        job_id = jobs.submit(document(notify=["lab"], max_iter=1), {}, "me")
        wait_until(jobs, job_id, "finished")
        assert jobs.close(120.0) == []
    record = json.loads((tmp_path / "store" / "jobs" / f"{job_id}.json").read_text())
    assert record["result"] is not None
    assert "notices" not in record
    assert lab.posts == []
    later = open_jobs()
    assert [notice["state"] for notice in settled(later, job_id)] == ["sent"]
    assert [post.told["kind"] for post in lab.posts] == ["finished"]


def test_restart__without_the_target_is_given_up_in_the_end(open_jobs, document, lab, clock):
    lab.always = 500
    jobs = open_jobs()
    job_id = jobs.submit(document(notify=["lab"], max_iter=1), {}, "me")
    eventually(lambda: [each["tries"] for each in notices_of(jobs, job_id)] == [1], "a try")
    assert jobs.close(120.0) == []
    with configured():
        later = open_jobs(start=False)
        later.notices._clock = clock
        later.start()
        for n in range(2, 5):
            eventually(
                lambda n=n: [each["tries"] for each in notices_of(later, job_id)] == [n], f"try {n}"
            )
            clock.now += PAUSES[n - 1]
        (notice,) = settled(later, job_id)
    assert notice["state"] == "given up"
    assert "has no such target" in notice["answer"]


def test_a_job_that_fails_and_is_gone_on_with(open_jobs, document, lab, monkeypatch):
    def fail(self, passes, rng, state):
        raise ValueError("no luck " + "€" * 100_000)

    jobs = open_jobs()
    with monkeypatch.context() as patch:
        patch.setattr(lk.Lloyd, "step", fail)
        job_id = jobs.submit(document(notify=["lab"], name="😀" * 200, max_iter=1), {}, "me")
        settled(jobs, job_id)
    (post,) = lab.posts
    assert post.told["kind"] == "failed"
    assert post.told["error"] == "ValueError"
    assert len(post.body) <= 4_096
    jobs.resume(job_id, {}, {})
    eventually(lambda: len(lab.posts) == 2, "that of the second run")
    found = [notice["id"] for notice in settled(jobs, job_id)]
    assert found == [f"{job_id}.2.finished"], "those of an earlier run are let go"


def test_a_target_that_hangs_keeps_no_job_and_no_other_target_waiting(
    open_jobs, document, lab, tmp_path
):
    lab.always = "hang"
    told = tmp_path / "told.json"
    mail = {"command": ["sh", "-c", 'cat >> "$0"', str(told)]}
    with configured(lab={"url": lab.url()}, mail=mail):
        jobs = open_jobs()
        for n in range(2):
            both = document(f"out{n}", notify=["lab", "mail"], max_iter=1)
            job_id = jobs.submit(both, {}, "me")
            assert wait_until(jobs, job_id, "finished", "failed")["state"] == "finished"
            eventually(
                lambda job_id=job_id: told.exists() and job_id in told.read_text(),
                "the other notice",
            )
        assert len(lab.posts) == 1, "the first one hangs still"
        state = {notice["target"]: notice["state"] for notice in notices_of(jobs, job_id)}
        assert state["lab"] == "pending"
        lab.always = 204
        lab.let_go.set()
        settled(jobs, job_id, 2)


def test_taken_over__by_a_second_scheduler(open_jobs, document, slow_steps, lab, monkeypatch):
    awake, run = threading.Event(), Keeper.run

    def asleep(self):
        if self._lease.owner == "scheduler-0":
            assert awake.wait(120.0)
        run(self)

    monkeypatch.setattr(Keeper, "run", asleep)
    first = open_jobs()
    job_id = first.submit(document(notify=["lab"]), {}, "me")
    begun(first, job_id, 1)
    second = open_jobs()
    eventually(second._register.loaded.is_set, "the second has the store")
    begun(second, job_id, 1)
    eventually(lambda: lab.posts, "a notice")
    awake.set()
    text = lab.posts[0].told["text"]
    assert "was taken over by scheduler-1 from scheduler-0" in text
    assert lab.posts[0].told["kind"] == "taken-over"
    slow_steps.set()
    wait_until(second, job_id, "finished")


def test_delete__a_job_of_which_something_is_to_be_told(open_jobs, document, lab, tmp_path):
    lab.always = "hang"
    jobs = open_jobs()
    job_id = jobs.submit(document(notify=["lab"], max_iter=1), {}, "me")
    eventually(lambda: lab.posts, "a notice that hangs")
    wait_until(jobs, job_id, "finished")
    jobs.delete(job_id)
    lab.let_go.set()
    eventually(lambda: not jobs.notices._in_flight, "the end of it")
    assert Folder(str(tmp_path / "store" / "jobs")).names() == []


def test_try_out__says_what_came_back(open_jobs, lab):
    jobs = open_jobs()
    found = jobs.notices.try_out("lab")
    assert (found["delivered"], found["answer"]) == (True, "answered 204")
    assert found["place"] == f"http://127.0.0.1:{lab.server.server_port}"
    told = lab.posts[0].told
    assert (told["kind"], told["id"]) == ("test", found["id"])
    lab.always = 500
    assert jobs.notices.try_out("lab")["answer"] == "answered 500"
    assert lab.posts[1].told["id"] != told["id"]
    with pytest.raises(ParameterError, match=r"no target 'x' .*: lab\."):
        jobs.notices.try_out("x")
