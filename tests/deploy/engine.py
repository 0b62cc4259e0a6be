"""`docker compose up` without an engine: services of the file, each in its own network namespace.

A service has a host of its own, as with Docker: loopback is its own, others find it by its name
while it runs, and it is started again when it ends. Limits of memory and processors are not there,
nor are published ports: services are asked from within their network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.deploy import composed
from tests.deploy.containers import Container, Image, called
from tests.deploy.running import ROOT
from tests.helpers.checks import eventually
from tests.helpers.needs import program

NET = "10.87.0"
PAUSE = 0.5
"""Seconds between two checks of health; the file's five would be time without anything done."""
OTHERS = {"store": ("weed", "the extra test")}
"""Programs of services of other images, with which these begin, and what has them here."""
KINDS = ("net", "uts")
"""Namespaces that a host is."""
WGET = """#!/opt/largek/bin/python
# What the store's own image has of it: wget -q -O FILE URL
import sys, urllib.request
quiet, out, file, url = sys.argv[1:]
assert (quiet, out) == ("-q", "-O")
open(file, "wb").write(urllib.request.urlopen(url, timeout=10).read())
"""


class Network:
    """A switch, and hosts on it, each a network namespace held by a process that only waits.

    Parameters
    ----------
    folder : Path
        Where ``hosts`` is written, which containers see as ``/etc/hosts``.
    stack : ExitStack
        Ends all of it.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.hosts = folder / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n")
        self._stack = stack
        # Docker's own name server answers at once, too.
        self.resolver = folder / "resolv.conf"
        self.resolver.write_text("nameserver 127.0.0.1\n")
        self._switch = self._namespace("switch")
        self._places: list[int] = []
        self._ip(self._switch, "link add lan type bridge")
        self._ip(self._switch, "link set lan up")

    def add(self, service: str, name: str) -> tuple[Sequence[str], int]:
        """A host: what commands in it begin with, and its number for :meth:`named`."""
        number = len(self._places)
        host = self._namespace(name)
        link = f"link add eth0 type veth peer name port{number} netns {self._switch}"
        self._ip(host, link)
        self._ip(self._switch, f"link set port{number} master lan up")
        self._ip(host, f"addr add {NET}.{number + 2}/24 dev eth0")
        self._ip(host, "link set eth0 up")
        # Nobody is there; but by its default route a process finds out its own address.
        self._ip(host, "route add default dev eth0")
        self._places.append(self.hosts.stat().st_size)
        with open(self.hosts, "a") as file:
            file.write(f"{NET}.{number + 2} {service} {name}\n")
        self.named(number, False)
        return ["nsenter", *(f"--{kind}=/proc/{host}/ns/{kind}" for kind in KINDS)], number

    def named(self, number: int, there: bool) -> None:
        """Whether others find the host by its name. One byte says so: nobody reads half a file."""
        with open(self.hosts, "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), NET[:1].encode() if there else b"#", self._places[number])

    def _namespace(self, name: str) -> int:
        """The process that holds a new network; it ends with this one, at the latest."""
        named = "echo $1 >/proc/sys/kernel/hostname; echo there; exec cat"
        holder = subprocess.Popen(
            ["unshare", *(f"--{kind}" for kind in KINDS), "sh", "-c", named, "holder", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

        def end() -> None:
            holder.communicate(timeout=60)

        self._stack.callback(end)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"there\n"
        self._ip(holder.pid, "link set lo up")
        return holder.pid

    @staticmethod
    def _ip(holder: int, command: str) -> None:
        ip = program("ip", "Debian's iproute2")
        called("nsenter", f"--net=/proc/{holder}/ns/net", ip, *command.split())


class Replica:
    """One container of a service: started, started again whenever it ends, killed, stopped."""

    def __init__(self, container: Container, host: Sequence[str], log: Path,
                 named: Callable[[bool], None]) -> None:  # fmt: skip
        self.container, self.host, self.log = container, host, log
        self.starts = 0
        self._named = named
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._supervise, name=f"engine of {log.stem}")
        self._thread.start()

    def _supervise(self) -> None:
        """`restart: unless-stopped`, with Docker's growing pauses."""
        pause = 0.1
        while not self._stopping.is_set():
            begun = time.monotonic()
            with open(self.log, "ab") as log:
                process = self.container.start(self.host, stdout=log, stderr=log)
            self._process = process
            self._named(True)
            self.starts += 1
            process.wait()
            self._named(False)
            pause = 0.1 if time.monotonic() - begun > 10 else min(2 * pause, 60)
            self._stopping.wait(pause)

    def kill(self) -> None:
        """SIGKILL for all of its processes at once; it is started again."""
        starts, process = self.starts, self._process
        assert process is not None
        assert process.poll() is None
        process.kill()
        eventually(lambda: self.starts > starts, f"{self.log.stem} to be started again")

    def end(self) -> None:
        """SIGKILL; it is not started again."""
        self._stopping.set()
        if self._process is not None:
            self._process.kill()
        self._thread.join(60)


class Engine:
    """What `docker compose up` does with the services that are ours, and with the store.

    Programs of other images, and `wget`, are put into ours.

    Parameters
    ----------
    image : Image
        The one that the Dockerfile makes.
    place : Path
        A folder with ``secrets``; volumes, logs and the list of hosts come there.
    stack : ExitStack
        Ends all of it.
    more : Mapping of str to str
        Variables that all services of ours have besides their own.
    """

    def __init__(
        self, image: Image, place: Path, stack: ExitStack, more: Mapping[str, str]
    ) -> None:
        self.image, self.place, self.more = image, place, more
        self.replicas: dict[str, list[Replica]] = {}
        self._network = Network(place, stack)
        self._hosts: dict[str, tuple[Sequence[str], int]] = {}
        (place / "volumes").mkdir()
        (place / "wget").write_text(WGET)
        (place / "wget").chmod(0o755)
        given = {**composed.example(), "LARGEK_SECRETS": str(place / "secrets")}
        self.document = composed.loaded(given)
        stack.callback(self._end)

    # --- what `docker compose` does ---------------------------------------------------------------

    def up(self, name: str) -> None:
        """Start a service that does not run, after those that it depends on."""
        if name in self.replicas:
            return
        service = self.document["services"][name]
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_completed_successfully":
                self.complete(other)
            else:
                assert how["condition"] == "service_healthy"
                self.up(other)
        assert service["restart"] == "unless-stopped"
        made = self.replicas[name] = []
        for number in range(int(service.get("scale", 1))):
            enter, host = self._host(name, number)
            made.append(
                Replica(
                    self.container(name, number), enter, self.log(name, number),
                    lambda there, host=host: self._network.named(host, there),
                )
            )  # fmt: skip
        self.wait_healthy(name)

    def complete(self, name: str) -> None:
        """Run a service to its end."""
        for other in self.document["services"][name]["depends_on"]:
            self.up(other)
        code, printed = self.container(name).run(inside=self._host(name)[0])
        assert code == 0, printed

    def wait_healthy(self, name: str) -> None:
        """Wait until the checks of all of its containers say so, as long as the file lets them."""
        told = self.document["services"][name]["healthcheck"]
        longest = seconds(told["start_period"]) + told["retries"] * seconds(told["interval"])
        until = time.monotonic() + longest
        for number in range(len(self.replicas[name])):
            while not self.healthy(name, number):
                late = f"{name} is not healthy after {longest:g} s\n{self.tails()}"
                assert time.monotonic() < until, late
                # A check is a process: asked without a pause, it would take the time of others.
                time.sleep(PAUSE)

    def healthy(self, name: str, number: int = 0) -> bool:
        """What the service's own check says, asked in the service's own surroundings."""
        told = self.document["services"][name]["healthcheck"]
        kind, *test = told["test"]
        assert kind == "CMD"
        container = self.container(name, number, command=test)
        try:
            code, _ = container.run(seconds(told["timeout"]), self._host(name, number)[0])
        except subprocess.TimeoutExpired:
            return False
        return code == 0

    # --- for tests --------------------------------------------------------------------------------

    def container(self, name: str, number: int = 0, command: Sequence[str] = ()) -> Container:
        """A container of a service, or another command in its surroundings."""
        service = self.document["services"][name]
        assert_is_what_a_container_has(service)
        mounts = {
            "/etc/hosts": (self._network.hosts, "ro"),
            "/etc/resolv.conf": (self._network.resolver, "ro"),
        }
        for target, source in composed.mounted(service, self.document).items():
            if source.startswith((".", "/")):
                mounts[target] = ((ROOT / source).resolve(), "ro")
            elif source != "memory":
                volume = self.place / "volumes" / (source or f"{name}-{number}-scratch")
                if not volume.exists():
                    # The image has a folder there which is this user's, and so is the volume.
                    volume.mkdir()
                    shutil.chown(volume, *map(int, service["user"].split(":")))
                mounts[target] = (volume, "rw")
        environment = dict(service.get("environment", {}))
        if name in OTHERS:
            found = Path(program(*OTHERS[name])).resolve()
            mounts[f"/usr/bin/{OTHERS[name][0]}"] = (found, "ro")
            mounts["/usr/bin/wget"] = (self.place / "wget", "ro")
        else:
            environment.update(self.more)
        begin = service.get("entrypoint", OTHERS.get(name, ())[:1])
        whole = [*begin, *service.get("command", ())]
        return Container(self.image, command or whole, environment, mounts, service["user"])

    @contextmanager
    def beside(
        self, name: str, command: Sequence[str], log: Path
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Another command in the surroundings of a service that does not run."""
        with open(log, "wb") as file:
            process = self.container(name, command=command).start(
                self._host(name)[0], stdout=file, stderr=file
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait(60)

    def wait(self, reached: Callable[[], Any], what: str, longest: float = 120) -> None:
        """Wait for something; where it does not come, the logs of all services are told, too."""
        try:
            eventually(reached, what, longest)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tails()}") from error

    def log(self, name: str, number: int = 0) -> Path:
        """Where a container's output goes."""
        return self.place / f"{name}-{number}.log"

    def tails(self) -> str:
        """The ends of all logs."""
        found = [(path.name, path.read_text(errors="replace"))
                 for path in sorted(self.place.glob("*.log"))]  # fmt: skip
        return "\n".join(f"--- {name}\n{text[-2500:]}" for name, text in found)

    def _host(self, name: str, number: int = 0) -> tuple[Sequence[str], int]:
        """The host of a container; it stays when the container is started again."""
        key = f"{name}-{number}"
        if key not in self._hosts:
            self._hosts[key] = self._network.add(name, key)
        return self._hosts[key]

    def _end(self) -> None:
        for name in reversed(list(self.replicas)):
            for one in self.replicas.pop(name):
                one.end()


def seconds(text: str) -> float:
    """A duration of the file."""
    [number] = re.findall(r"^(\d+)s$", text)
    return float(number)


def assert_is_what_a_container_has(service: Mapping[str, Any]) -> None:
    """``Container`` is fixed in these; the file has to say the same."""
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp:size=256m,mode=1777"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
