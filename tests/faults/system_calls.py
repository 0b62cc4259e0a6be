"""Record the system calls by which a process and its children change files, by strace."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

CHANGES = (
    "open,openat,openat2,creat,write,writev,pwrite64,pwritev,pwritev2,truncate,ftruncate,fallocate,"
    "lseek,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,"
    "rmdir,sendfile,copy_file_range,splice,fsync,fdatasync,sync,syncfs"
)
"""System calls that change files or names, or make them durable.

Not ``mmap``, of which compilers do very many: what is changed by a mapping is not on record.
"""
LONGEST = 1 << 24
"""Bytes of one write that are recorded."""

_CALL = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+|\?)(.*)", re.DOTALL)
_BEGUN = re.compile(r"(\d+) +(\w+)\((.*) <unfinished \.\.\.>", re.DOTALL)
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_TOKEN = re.compile(
    r'"(?P<text>(?:\\x[0-9a-f]{2})*)"(?P<cut>\.\.\.)?'
    r"|(?P<fd>AT_FDCWD|\d+)<(?P<path>(?:\\x[0-9a-f]{2})*)>(?P<deleted>\(deleted\))?"
    r"|(?P<word>[^\s,\"<>\[\]{}]+)"
)


@dataclasses.dataclass(frozen=True)
class Text:
    """A string that was passed: a path, or bytes to be written."""

    value: bytes


@dataclasses.dataclass(frozen=True)
class File:
    """An open file that was passed."""

    number: int
    """-1 for the current folder."""
    path: str
    deleted: bool


@dataclasses.dataclass(frozen=True)
class Call:
    """A system call that succeeded."""

    begin: int
    """Line of the record in which it began."""
    end: int
    """Line in which it returned; another call that began later did so after this one."""
    name: str
    args: tuple[Text | File | str, ...]
    result: int
    opened: str
    """Path of the file that it returned, if any."""

    def text(self, number: int) -> bytes:
        """Return the number-th of the strings."""
        return [arg.value for arg in self.args if isinstance(arg, Text)][number]

    @property
    def file(self) -> File:
        """The open file that it is about."""
        return next(arg for arg in self.args if isinstance(arg, File))

    def has(self, word: str) -> bool:
        """Whether a flag was given."""
        return any(isinstance(arg, str) and word in arg.split("|") for arg in self.args)


def record(command: Sequence[str], log: Path, folder: Path, seconds: float = 500.0) -> None:
    """Run a command in a folder to its end; record its system calls and those of its children."""
    strace = (
        "strace", "--follow-forks", "--seccomp-bpf", "--decode-fds=path", "--strings-in-hex=all",
        f"--string-limit={LONGEST}", "--quiet=attach,exit,personality",
        "--signal=none", f"--trace={CHANGES}", "-o", str(log),
    )  # fmt: skip
    done = subprocess.run(
        [*strace, *command], cwd=folder, timeout=seconds, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"


def calls(log: Path, below: Path) -> Iterator[Call]:
    """Read the recorded calls that concern files below a folder, in the order of their ends."""
    wanted = "".join(f"\\x{byte:02x}" for byte in str(below).encode())
    begun: dict[str, tuple[int, str]] = {}
    with open(log, encoding="ascii", errors="replace") as lines:
        for number, line in enumerate(lines):
            begin = number
            if match := _BEGUN.match(line):
                begun[match[1]] = (number, f"{match[1]} {match[2]}({match[3]}")
                continue
            if match := _RESUMED.match(line):
                begin, head = begun.pop(match[1])
                line = head + match[3]
            if wanted in line or " sync() " in line:
                call = _call(line, begin, number)
                if call is not None:
                    yield call


def _call(line: str, begin: int, end: int) -> Call | None:
    match = _CALL.match(line)
    assert match is not None, f"strace wrote something unknown: {line[:300]}"
    _, name, args, result, rest = match.groups()
    if result == "?" or int(result) < 0:
        return None
    opened = re.match(r"<((?:\\x[0-9a-f]{2})*)>", rest)
    path = "" if opened is None else _bytes(opened[1]).decode()
    return Call(begin, end, name, tuple(_args(args)), int(result), path)


def _args(text: str) -> Iterator[Text | File | str]:
    for match in _TOKEN.finditer(text):
        if match["text"] is not None:
            assert match["cut"] is None, "a write is longer than what is recorded of it"
            yield Text(_bytes(match["text"]))
        elif match["fd"] is not None:
            number = -1 if match["fd"] == "AT_FDCWD" else int(match["fd"])
            yield File(number, _bytes(match["path"]).decode(), match["deleted"] is not None)
        else:
            yield match["word"]


def _bytes(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))
