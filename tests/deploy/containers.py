"""An image built without an engine, and processes in it, started as an engine would.

Buildah builds where no engine runs, but cannot start containers everywhere. So a container is here
what the kernel makes of it: namespaces for mounts and processes, a root that cannot be written, a
user without capabilities.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deploy.running import ROOT
from tests.helpers import needs
from tests.helpers.needs import program

BASE = "LARGEK_BASE"
"""A variable: a tarball of the Debian that images are built on; it is made where it is not there,
in about a minute, and taken again in the next run."""

SCRIPT = r"""
set -eu
root=$1 shift_by=$2; shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777,size=256m tmpfs "$root/tmp"
while [ "$shift_by" -gt 0 ]; do
    mount --bind "$1" "$root$2"
    [ "$3" = rw ] || mount -o "remount,bind,$3" "$root$2"
    shift 3; shift_by=$((shift_by - 1))
done
mount -o remount,bind,ro "$root"
# Not by exec: this shell is the process 1 that an engine's init would be, and is told when the
# process outside ends, which whoever changes users is not.
chroot "$root" "$@" || exit $?
"""


def called(*command: str | Path, seconds: float = 840, **options: Any) -> str:
    """What a program prints; it has to succeed."""
    done = subprocess.run(
        [str(one) for one in command], capture_output=True, text=True, timeout=seconds, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def base(folder: Path) -> Path:
    """A tarball of a Debian with Python; that of the variable, if there is one."""
    kept = Path(os.environ.get(BASE) or folder / "base.tar")
    if not kept.is_file():
        release = dict(
            line.rstrip().split("=", 1)
            for line in Path("/etc/os-release").read_text().splitlines()
            if "=" in line
        )
        kept.parent.mkdir(parents=True, exist_ok=True)
        made = kept.with_suffix(f".{os.getpid()}.tar")
        called(
            program("mmdebstrap", "Debian's mmdebstrap"),
            "--variant=minbase",
            "--include=python3,python3-venv,ca-certificates",
            '--aptopt=Acquire::Languages "none"',
            "--dpkgopt=force-unsafe-io",
            *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")),
            release["VERSION_CODENAME"],
            made,
            # Where Python keeps bytecode here is no place in there.
            env={name: told for name, told in os.environ.items() if not name.startswith("PYTHON")},
        )
        made.rename(kept)
    return kept


@dataclass(frozen=True)
class Image:
    """A built image, and its files, mounted."""

    root: Path
    settings: Mapping[str, Any]
    """What it says to engines: `Env`, `User`, `WorkingDir`, `Cmd`, ..."""
    bytes: int
    kernels: Path
    """A folder of this machine where containers keep what they compile."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables that each process has."""
        return dict(one.split("=", 1) for one in self.settings["Env"])


@contextmanager
def built(folder: Path) -> Iterator[Image]:
    """Build the Dockerfile as it is, and mount what has come of it."""
    needs.root("an image is built and run")
    policy = folder / "policy.json"
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    store = [program("buildah", "Debian's buildah"), "--root", folder / "images"]
    store += ["--runroot", folder / "run"]
    trusting = ["--signature-policy", policy]
    containers = []

    def begun(name: str) -> str:
        containers.append(called(*store, "from", "--pull-never", *trusting, name).strip())
        return containers[-1]

    scratch = begun("scratch")
    called(*store, "add", scratch, base(folder), "/")
    called(*store, "commit", *trusting, scratch, "localhost/largek-base")
    called(
        *store, "build", *trusting, "--isolation", "chroot", "--network", "host",
        "--format", "docker", "--pull-never", "--target", "largek",
        # Kernels of all kinds of rows take minutes; containers share those that they need.
        "--build-arg", "KERNELS=no",
        "--build-arg", "BASE=localhost/largek-base", *authorities(folder),
        "-t", "localhost/largek", ROOT,
    )  # fmt: skip
    told = json.loads(called(*store, "inspect", "--type", "image", "localhost/largek"))
    container = begun("localhost/largek")
    try:
        root = Path(called(*store, "mount", container).strip())
        files = called("du", "-sxb", root).split()[0]
        kernels = folder / "kernels"
        kernels.mkdir()
        kernels.chmod(0o777)
        yield Image(root, told["Docker"]["config"], int(files), kernels)
    finally:
        called(*store, "umount", "--all")
        called(*store, "rm", *containers)


def authorities(folder: Path) -> list[str | Path]:
    """Options by which pip trusts, while it builds, whom this machine trusts."""
    bundle = Path(os.environ.get("PIP_CERT") or "/etc/ssl/certs/ca-certificates.crt")
    if not bundle.is_file():
        return []
    (folder / "pip.conf").write_text("[global]\ncert = /etc/largek-authorities.pem\n")
    return [
        "--volume", f"{bundle}:/etc/largek-authorities.pem:ro",
        "--volume", f"{folder}/pip.conf:/etc/pip.conf:ro",
    ]  # fmt: skip


@dataclass(frozen=True)
class Container:
    """What one service is: a command in an image, with its mounts, variables and user."""

    image: Image
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, tuple[Path, str]] = field(default_factory=dict)
    """Where in the container -> what of this machine, and `ro` or `rw`."""
    user: str = "1000:1000"

    def start(self, inside: Sequence[str] = (), **options: Any) -> subprocess.Popen[bytes]:
        """Start it; it ends, with all that it has started, when the process here is killed.

        A command that starts others elsewhere, such as ``nsenter``, is ``inside``.
        """
        mounts = {"/opt/largek/cache": (self.image.kernels, "rw"), **self.mounts}
        for target, (source, _) in mounts.items():
            place = self.image.root / target.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                place.mkdir(exist_ok=True)
            else:
                place.touch()
        user, group = self.user.split(":")
        variables = {**self.image.environment, **self.environment}
        folder = self.image.settings.get("WorkingDir") or "/"
        return subprocess.Popen(
            [
                # Killed, too, where whoever started it is.
                "setpriv", "--pdeathsig", "KILL", *inside,
                "unshare", "--mount", "--pid", "--fork", "--kill-child",
                "bash", "-c", SCRIPT, "container", str(self.image.root), str(len(mounts)),
                *(word for target, (source, how) in mounts.items()
                  for word in (str(source), target, how)),
                "setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups",
                "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all",
                "env", "-i", "-C", folder,
                *(f"{name}={value}" for name, value in variables.items()),
                *self.command,
            ],
            stdin=subprocess.DEVNULL, **options,
        )  # fmt: skip

    def run(self, seconds: float = 120, inside: Sequence[str] = ()) -> tuple[int, str]:
        """Its exit code, and all that it has printed."""
        begun = self.start(inside, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            printed, _ = begun.communicate(timeout=seconds)
        finally:
            begun.kill()
            begun.wait()
        return begun.returncode, printed.decode()
