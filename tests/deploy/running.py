"""Programs and processes for tests of ``deploy/``: found, started, and ended by their ids."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

TOOLS = "LARGEK_DEPLOY_ENV"
"""A variable: the environment that has the extra ``deploy``, where that is another one."""


def program(name: str, package: str) -> str:
    """Where a program is; the test is skipped where it is not, and fails in CI."""
    folders = [os.environ.get(TOOLS, ""), sys.prefix]
    found = shutil.which(name, path=os.pathsep.join(str(Path(f) / "bin") for f in folders if f))
    found = found or shutil.which(name)
    if found is None:
        missing = f"{name} is not here: {package} has it"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{missing}, and .ci/run installs that")
        pytest.skip(missing)
    return found


def free_port() -> int:
    """A port of this machine that nobody has now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
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
