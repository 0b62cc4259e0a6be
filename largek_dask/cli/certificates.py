"""TLS certificates by OpenSSL: of hosts, and of the folder of ``largek cluster slurm``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from largek_dask.errors import ClusterError, OutputError

__all__ = ["make", "provide"]

DAYS = 3650
"""Validity of authorities, and of the certificates for SLURM, which requeues jobs for years."""
INSECURE = (
    "or give --insecure: no TLS, so everybody with an account on the network of the nodes can run "
    "code as you"
)
# Not the machine's openssl.cnf, which may add extensions.
CONFIG = "[req]\ndistinguished_name=name\n[name]\n"


def make(out: Path, hosts: Sequence[Sequence[str]], at: str, days: int, renew: bool) -> list[str]:
    """Make certificates of one authority, which is made once, and return lines that say so.

    The first name of a host names its folder in ``out``; ``at`` is the folder of its files there.
    """
    for name, *_ in hosts:
        if (out / name / "node.pem").exists() and not renew:
            raise OutputError(f"{out / name} has a certificate: --renew replaces it")
    authority = out / "ca.pem", out / "ca.key"
    extensions: tuple[str, ...]
    lines = []
    if not any(path.exists() for path in authority):
        if renew:
            raise OutputError(f"there is no authority in {out}, so nothing to renew")
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        extensions = (
            "basicConstraints=critical,CA:TRUE,pathlen:0",
            "keyUsage=critical,keyCertSign,cRLSign",
        )
        _openssl(f"largek authority {datetime.now(UTC):%Y-%m-%d}", *authority, DAYS, extensions)
        lines.append(f"{authority[0]}: a new authority for ten years; keep {authority[1]} secret")
    if not all(path.exists() for path in authority):
        raise OutputError(
            f"{out} has only one of ca.pem and ca.key: restore the other, or use an empty folder"
        )
    for host in hosts:
        folder = out / host[0]
        # Processes of a cluster often connect by loopback.
        names = [f"{'IP' if _is_address(name) else 'DNS'}:{name}"
                 for name in dict.fromkeys((*host, "localhost", "127.0.0.1"))]  # fmt: skip
        extensions = (
            "basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature",
            "extendedKeyUsage=serverAuth,clientAuth", "authorityKeyIdentifier=keyid",
            f"subjectAltName={','.join(names)}",
        )  # fmt: skip
        folder.mkdir(mode=0o700, exist_ok=True)
        _openssl(host[0], folder / "node.pem", folder / "node.key", days, extensions, authority)
        shutil.copyfile(authority[0], folder / "ca.pem")
        (folder / "tls.yaml").write_text(_settings(at.rstrip("/")), encoding="utf-8")
        lines.append(f"{folder}: {', '.join(names)}, {days} days; copy it to {at} on {host[0]}")
    return lines


def _is_address(name: str) -> bool:
    return ":" in name or not name.strip("0123456789.")


def _openssl(
    subject: str,
    certificate: Path,
    key: Path,
    days: int,
    extensions: Sequence[str],
    authority: tuple[Path, Path] | None = None,
) -> None:
    """Write a key and its certificate, or leave the ones before as they are."""
    signer = () if authority is None else ("-CA", authority[0], "-CAkey", authority[1])
    new = [path.with_name(f"{path.name}.new") for path in (certificate, key)]
    command: list[str | Path] = [
        "openssl", "req", "-x509", "-config", "/dev/stdin", "-newkey", "ec",
        "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-sha256", *signer,
        "-days", str(days), "-subj", f"/CN={subject}", "-out", new[0], "-keyout", new[1],
    ]  # fmt: skip
    for extension in ("subjectKeyIdentifier=hash", *extensions):
        command += ["-addext", extension]
    try:
        done = subprocess.run(command, input=CONFIG, capture_output=True, text=True, umask=0o077)
        if done.returncode:
            words = " ".join(done.stderr.split())
            raise ClusterError(
                f"openssl, which must be 3 or newer, makes no {certificate}: {words}"
            )
        new[1].rename(key)
        new[0].rename(certificate)
    except FileNotFoundError as error:
        raise ClusterError(
            "there is no openssl on PATH, which makes certificates for TLS: load or install it"
        ) from error
    finally:
        for path in new:
            path.unlink(missing_ok=True)


def _settings(folder: str) -> str:
    """Return Dask's settings for certificates in a folder."""
    pair = {"cert": f"{folder}/node.pem", "key": f"{folder}/node.key"}
    tls = {role: dict(pair) for role in ("scheduler", "worker", "client")}
    comm = {"require-encryption": True, "tls": {"ca-file": f"{folder}/ca.pem", **tls}}
    # JSON, which is YAML.
    return json.dumps({"distributed": {"comm": comm}}, indent=2) + "\n"


def provide(home: str) -> str | None:
    """Make certificates in ``home/tls`` unless there are some; return a message if so.

    Only the owner can open ``home`` afterwards: who can write there can run code as its owner.
    """
    folder = Path(home, "tls")
    is_new = not folder.exists()
    try:
        os.chmod(home, 0o700)
        if is_new:
            _provide(home, folder)
        os.chmod(folder, 0o700)
        for path in folder.iterdir():
            if path.is_file():
                os.chmod(path, 0o600)
        opened = [path for path in (Path(home), folder / "node.key") if path.stat().st_mode & 0o77]
    except OSError as error:
        raise OutputError(
            f"certificates cannot be kept in {folder} ({error.strerror or error}): give a --home "
            f"of your own, {INSECURE}"
        ) from error
    if opened:
        raise OutputError(
            f"{opened[0]} can be read by others, as its file system keeps no permissions: give a "
            f"--home in another one, {INSECURE}"
        )
    return f"New certificates in {folder}" if is_new else None


def _provide(home: str, folder: Path) -> None:
    """Make certificates of a new authority; the folder has all of them or does not exist."""
    with tempfile.TemporaryDirectory(prefix=".largek-tls-", dir=home) as name:
        made = Path(name)
        try:
            make(made, [["largek"]], str(folder), DAYS, renew=False)
        except ClusterError as error:
            raise ClusterError(f"{error}, {INSECURE}") from error
        (made / "ca.key").rename(made / "largek" / "ca.key")
        (made / "largek").rename(folder)
