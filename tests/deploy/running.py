"""Processes for tests of ``deploy/``: started, and ended by their ids."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.needs import program

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

SLOW = """\
import os, time

import largek_dask.fault_injection as fault_injection

def wait(when, point, seconds={seconds}):
    until = time.monotonic() + seconds
    while (when, point) == ("before", "step") and os.path.exists({slow!r}):
        if time.monotonic() > until:
            break
        time.sleep(0.01)

fault_injection.watch(wait)
"""
"""Steps take longer while a file is there, so that a job lasts as long as it is to."""


def free_port() -> int:
    """A port of this machine that nobody has now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextlib.contextmanager
def process(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output goes to a file; ended by SIGTERM, and if need be by SIGKILL."""
    with open(log, "ab") as file:
        begun = subprocess.Popen(
            command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=env
        )
    try:
        yield begun
    finally:
        end(begun)


def end(begun: subprocess.Popen[bytes]) -> int:
    """The exit code after SIGTERM."""
    begun.terminate()
    try:
        return begun.wait(60)
    except subprocess.TimeoutExpired:
        begun.kill()
        begun.wait(60)
        raise


def quick_environment(**more: str) -> dict[str, str]:
    """This process's environment, with chunks as they are stored and short waits of the service."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "DASK_LARGEK__DATA__READ_CHUNK_BYTES": "1",
        "DASK_LARGEK__SERVICE__BEAT_SECONDS": "0.3",
        "DASK_LARGEK__SERVICE__PATIENCE_SECONDS": "1.5",
        **more,
    }


def slowing(folder: Path, seconds: float) -> Path:
    """A file that makes steps last so long; beside it, what makes Python heed it."""
    (folder / "python").mkdir()
    file = folder / "python" / "slow"
    file.touch()
    text = SLOW.format(slow=str(file), seconds=seconds)
    (folder / "python" / "sitecustomize.py").write_text(text)
    return file


def events(out: str | Path) -> list[dict[str, Any]]:
    """What a job has told so far, in the order of telling."""
    text = "".join(path.read_text() for path in sorted(Path(out, "events").glob("*.jsonl")))
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def steps(out: str | Path) -> list[int]:
    """Numbers of the steps that a job has told of."""
    with contextlib.suppress(FileNotFoundError):
        return [event["step"] for event in events(out) if event["event"] == "step"]
    return []


def make_certificate(folder: Path, at: str | None = None) -> None:
    """Make ``folder/tls`` as README.md says; by default its settings name the files there."""
    program("openssl", "Debian's openssl")
    text = (DEPLOY / "README.md").read_text().split("\n## TLS\n")[1]
    [code] = re.findall(r"```shell\n(mkdir .*?)```", text, re.S)
    folder.mkdir(exist_ok=True)
    (folder / "deploy").symlink_to(DEPLOY)
    subprocess.run(["bash", "-ec", code], cwd=folder, check=True, capture_output=True)
    settings = folder / "tls" / "tls.yaml"
    settings.write_text(settings.read_text().replace("/etc/largek/tls", at or f"{folder}/tls"))


def certificate_folder() -> str:
    """Return the folder in which ``tls.yaml`` expects certificates."""
    [found] = set(re.findall(r"(/[\w/]*)/\w+\.(?:pem|key)", (DEPLOY / "tls.yaml").read_text()))
    return str(found)
