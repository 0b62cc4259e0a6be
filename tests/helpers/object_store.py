"""An object store that speaks S3, on this machine: SeaweedFS, as in ``docker-compose.yml``."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from largek_dask.driver.storage import Folder
from tests.helpers.needs import program

PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
         "filer.port", "filer.port.grpc", "s3.port.grpc", "s3.port")  # fmt: skip
SECONDS = 60.0
"""Until a server that was started has stored a first object, at most; usually ten."""


class ObjectStore:
    """A server, which can be stopped and started again with what it holds.

    Attributes
    ----------
    address : tuple of str and int
    options : dict
        Storage options of its URLs; it asks for no key.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        ports = self._reserve()
        self._ports = [f"-{name}={port}" for name, port in zip(PORTS, ports, strict=True)]
        self.address = ("127.0.0.1", ports[-1])
        url = f"http://127.0.0.1:{ports[-1]}"
        self.options: dict[str, Any] = {"endpoint_url": url, "key": "any", "secret": "any"}

    def _reserve(self) -> range:
        """Find free ports, apart from those that the kernel gives to clients."""
        for first in range(20_000, 32_000, 10):
            held = [socket.socket() for _ in ("", *PORTS)]
            try:
                for port, one in enumerate(held, first):
                    one.bind(("127.0.0.1", port))
            except OSError:
                free = False
            else:
                # It stays bound, so that no other test takes the ports after it.
                self._held, free = held.pop(0), True
            for one in held:
                one.close()
            if free:
                return range(first + 1, first + 1 + len(PORTS))
        raise OSError("no ports are free between 20,000 and 32,000")

    def start(self) -> None:
        """Start it, and wait until it stores an object."""
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    program("weed", "the extra test"), "-logtostderr", "server", "-s3",
                    f"-dir={self._folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *self._ports,
                    "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false",
                    "-volume.max=0", "-master.volumeSizeLimitMB=64", "-master.telemetry=false",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        until = time.monotonic() + SECONDS
        while True:
            assert self._process.poll() is None, (self._folder / "log").read_text()
            try:
                self.bucket("started")
                Folder("s3://started", self.options).publish("x", b"x")
                return
            except Exception:
                assert time.monotonic() < until, (self._folder / "log").read_text()
                time.sleep(0.1)

    def bucket(self, name: str) -> None:
        """Make a bucket, unless it is there."""
        Folder(f"s3://{name}", self.options).fs.makedirs(name, exist_ok=True)

    def stop(self) -> None:
        """Kill it: ended in peace, it would take half a minute."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Stop it for good."""
        self.stop()
        self._held.close()
