"""Where notices may be sent: targets of the scheduler's configuration, and one try at one of them.

No client names an address or a command, only a target. A request goes to the address that is
configured and nowhere else: redirects are not followed.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import selectors
import shutil
import signal
import ssl
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from largek_dask.driver.words import printable
from largek_dask.errors import ParameterError
from largek_dask.redaction import redactor
from largek_dask.service.notice import MOST_ANSWER, shortened
from largek_dask.version import __version__

__all__ = ["Outcome", "Target", "targets_of"]

TRY_SECONDS = 5.0
"""How long a try may take, whatever a name server, a target or a command does."""
LOOK_SECONDS = 0.02
WHERE = "largek.service.notify"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
FIELDS = ("url", "secret", "command")
NO_AUTHORITY = (18, 19, 20, 21)
"""OpenSSL's numbers for a certificate whose authority this machine does not know."""


class Outcome(NamedTuple):
    """What came of a try."""

    is_delivered: bool
    answer: str
    """In words, without secrets."""


class Target(ABC):
    """Where notices may be sent.

    Parameters
    ----------
    name : str
        As jobs say it.
    place : str
        What may be told of where that is.
    hidden : list of str
        What may not.
    """

    def __init__(self, name: str, place: str, hidden: list[str]) -> None:
        self.name = name
        self.place = place
        self.hidden = hidden
        self._redact = redactor(hidden)

    def send(self, body: bytes, notice_id: str) -> Outcome:
        """Try once, for ``TRY_SECONDS`` at most; raises nothing."""
        try:
            is_delivered, answer = self._try(body, notice_id)
        except Exception as error:
            # Whatever it is: others are waiting for their notices.
            is_delivered, answer = False, f"{type(error).__name__}: {error}"
        told = " ".join(printable(self._redact(answer)).split())
        return Outcome(is_delivered, shortened(told, MOST_ANSWER))

    @abstractmethod
    def _try(self, body: bytes, notice_id: str) -> Outcome:
        """Try once; whatever is raised means that it is not delivered."""


# --- an address -----------------------------------------------------------------------------------


class Hook(Target):
    """An address that is sent the JSON by POST."""

    def __init__(self, name: str, url: str, secret: str | None) -> None:
        parts = urlsplit(url)
        place = f"{parts.scheme}://{parts.netloc}"
        path = url.removeprefix(place).strip("/")
        # Whoever knows the whole address of a hook may be able to post there.
        hidden = [text for text in (secret, path) if text]
        super().__init__(name, place, hidden)
        self._url = url
        self._secret = secret

    def _try(self, body: bytes, notice_id: str) -> Outcome:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"largek_dask/{__version__}",
            "Largek-Notice": notice_id,
        }
        if self._secret is not None:
            digest = hmac.new(self._secret.encode(), body, "sha256").hexdigest()
            headers["Largek-Signature"] = f"sha256={digest}"
        post = _Post(Request(self._url, body, headers, method="POST"), TRY_SECONDS)
        post.start()
        post.join(TRY_SECONDS)
        found = post.outcome
        post.cut()
        return found or Outcome(False, _silent())


def _silent() -> str:
    return f"no answer within {TRY_SECONDS:g} s"


class _Post(threading.Thread):
    """One request, in a thread that can be left behind: a target may answer letter by letter."""

    def __init__(self, request: Request, seconds: float) -> None:
        super().__init__(name="largek-post", daemon=True)
        self.outcome: Outcome | None = None
        """None: there is none yet."""
        self._request = request
        self._seconds = seconds
        self._sockets: list[Any] = []

    def run(self) -> None:
        """Send it; nothing but the status of the answer is read."""
        opener = OpenerDirector()
        # Neither redirects nor errors are handled: every status is an answer.
        for handler in (ProxyHandler(), _Http(self._sockets), _Https(self._sockets)):
            opener.add_handler(handler)
        try:
            with opener.open(self._request, timeout=self._seconds) as answer:
                self.outcome = _answered(answer.status)
        except (OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            self.outcome = Outcome(False, _failed(reason))

    def cut(self) -> None:
        """End a request that nobody waits for any more."""
        for each in tuple(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(2)


def _failed(reason: object) -> str:
    """Why a request had no answer, in words."""
    if isinstance(reason, TimeoutError):
        return _silent()
    if not isinstance(reason, ssl.SSLCertVerificationError):
        return f"{type(reason).__name__}: {reason}"
    told = str(reason.verify_message).rstrip(".")
    if reason.verify_code in NO_AUTHORITY:
        told += "; SSL_CERT_FILE of the scheduler may name a file with its authority"
    return f"its certificate is refused: {told}"


def _answered(status: int) -> Outcome:
    if 300 <= status < 400:
        return Outcome(False, f"answered {status}, a redirect, and none is followed")
    return Outcome(200 <= status < 300, f"answered {status}")


class _Http(HTTPHandler):
    """Keeps the connection that is made in a list."""

    def __init__(self, sockets: list[Any]) -> None:
        super().__init__()
        self._sockets = sockets

    def http_open(self, req: Request) -> Any:
        """Called by the opener."""
        return self.do_open(_kept(HTTPConnection, self._sockets), req)


class _Https(HTTPSHandler):
    """The same over TLS, by the authorities of the machine, or of ``SSL_CERT_FILE``."""

    def __init__(self, sockets: list[Any]) -> None:
        super().__init__()
        self._sockets = sockets

    def https_open(self, req: Request) -> Any:
        """Called by the opener."""
        kind = _kept(HTTPSConnection, self._sockets)
        return self.do_open(kind, req, context=ssl.create_default_context())


def _kept(kind: Any, sockets: list[Any]) -> Any:
    class Kept(kind):  # type: ignore[misc]  # one of two classes
        def connect(self) -> None:
            super().connect()
            sockets.append(self.sock)

    return Kept


# --- a command ------------------------------------------------------------------------------------


class Program(Target):
    """A command of the scheduler's machine that is given the JSON as its input; no shell."""

    def __init__(self, name: str, command: list[str]) -> None:
        super().__init__(name, command[0], [])
        self._command = command

    def _try(self, body: bytes, notice_id: str) -> Outcome:
        until = time.monotonic() + TRY_SECONDS
        with subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                assert process.stdin is not None
                # All of it fits into a pipe, whether or not it is read.
                with contextlib.suppress(BrokenPipeError), process.stdin:
                    process.stdin.write(body)
                last_words = _heard(process, until)
                code = process.poll()
            finally:
                if process.poll() is None:
                    # With all that it has started.
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
        if code is None:
            return Outcome(False, f"killed, as it had not ended after {TRY_SECONDS:g} s")
        said = last_words.decode(errors="replace").strip()
        return Outcome(code == 0, f"exit code {code}" + (f": {said}" if said else ""))


def _heard(process: subprocess.Popen[bytes], until: float) -> bytes:
    """What a command says last, until it has ended or time is over; no more of it is kept."""
    assert process.stdout is not None
    heard, number = b"", process.stdout.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(number, selectors.EVENT_READ)
        is_open, is_over = True, False
        while not is_over:
            is_over = process.poll() is not None or time.monotonic() >= until
            # What it has started may hold the pipe open after its end.
            while is_open and selector.select(0.0 if is_over else LOOK_SECONDS):
                data = os.read(number, 1 << 16)
                heard = (heard + data)[-MOST_ANSWER:]
                is_open = bool(data)
                if time.monotonic() >= until:
                    break
            if not is_open and not is_over:
                time.sleep(LOOK_SECONDS)
    return heard


# --- the configuration ----------------------------------------------------------------------------


def targets_of(configured: Any) -> dict[str, Target]:
    """The targets of a configuration, by name.

    Parameters
    ----------
    configured : mapping or None
        Of each name ``url`` and perhaps ``secret``, or ``command``; see ``largek_dask.config``.

    Raises
    ------
    ParameterError
        One of them is wrong; says which, and what of it. No value is repeated.
    """
    if configured is None:
        return {}
    if not isinstance(configured, Mapping):
        raise ParameterError(
            f"{WHERE} must be a mapping of names to targets, such as lab: {{url: ...}}, got "
            f"{type(configured).__name__}."
        )
    return {str(name): _target(name, asked) for name, asked in configured.items()}


def _target(name: Any, asked: Any) -> Target:
    where = f"{WHERE}.{printable(str(name))[:80]}"
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise ParameterError(
            f"{where}: the name of a target must be of letters, digits, '.', '_' and '-', at most "
            "64 of them."
        )
    known = isinstance(asked, Mapping) and set(asked) <= set(FIELDS)
    if not known or ("url" in asked) == ("command" in asked):
        raise ParameterError(
            f"{where} must have either url, with a secret or without, or command, and nothing else."
        )
    if "url" in asked:
        url = _checked_url(where, _value(f"{where}.url", asked["url"]))
        given = asked.get("secret")
        if given is not None and not isinstance(given, Mapping):
            raise ParameterError(
                f"{where}.secret must be {{env: NAME}}, the name of a variable in the scheduler's "
                "environment: it is never part of the configuration itself."
            )
        return Hook(name, url, None if given is None else _value(f"{where}.secret", given))
    if "secret" in asked:
        raise ParameterError(f"{where}.secret belongs to a url: a command needs none, remove it.")
    return Program(name, _checked_command(where, asked["command"]))


def _value(where: str, given: Any) -> str:
    """A text, or that of an environment variable."""
    if isinstance(given, Mapping) and set(given) == {"env"}:
        variable = given["env"]
        if not isinstance(variable, str) or VARIABLE.fullmatch(variable) is None:
            raise ParameterError(f"{where}.env must be the name of an environment variable.")
        if not os.environ.get(variable):
            raise ParameterError(
                f"{where}: the environment of the scheduler has no variable {variable}: start it "
                "with that one."
            )
        return os.environ[variable]
    if not isinstance(given, str):
        raise ParameterError(f"{where} must be a text, or {{env: NAME}}.")
    return given


def _checked_url(where: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or not url.isascii() or not url.isprintable() or " " in url:
        raise ParameterError(
            f"{where}.url must be a whole address, such as https://host/path, in plain letters."
        )
    if "@" in urlsplit(url).netloc:
        raise ParameterError(
            f"{where}.url has a user name or a password before the '@', which is not sent: use a "
            "secret, or an address that needs none."
        )
    return url


def _checked_command(where: str, command: Any) -> list[str]:
    is_list = isinstance(command, list | tuple) and command
    if not is_list or not all(isinstance(word, str) and "\0" not in word for word in command):
        raise ParameterError(
            f"{where}.command must be a list of texts, such as [/usr/local/bin/tell, --quietly]: "
            "the program and its arguments, no line for a shell."
        )
    if shutil.which(command[0]) is None:
        raise ParameterError(
            f"{where}.command: there is no program {printable(command[0])[:200]!r} that the "
            "scheduler may run: install it there, or give its whole path."
        )
    return list(command)
