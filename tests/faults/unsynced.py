"""A model of a disk that forgets what was not synced: all trees that a loss of power may leave.

A history is made of recorded system calls. At any moment of it some changes are durable: data of a
file that ``fsync`` of that file has covered, and names in a folder that ``fsync`` of that folder
has covered. POSIX promises no more, and of all other changes any selection may be on the disk:
:meth:`History.tree` leaves out those that it is asked to.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from tests.faults.system_calls import Call, File, Text

Tree = dict[str, bytes | None]
"""Contents of files by their paths below the root; None for a folder."""

WHOLE, NOTHING, ZEROS, CUT, HOLE = "whole", "nothing", "zeros", "cut", "hole"
FATES = (WHOLE, NOTHING, ZEROS, CUT, HOLE)
"""What may become of a file's data that are not durable: written; left out; the file has its size,
and zeros; the second half of the bytes is left out; the first half are zeros."""

_WRITES = ("write", "writev", "pwrite64", "pwritev", "pwritev2")
_SYNCS = ("fsync", "fdatasync", "sync", "syncfs")
_ON_FILES = (*_WRITES, "lseek", "ftruncate", "fsync", "fdatasync")
_OPENS = ("open", "openat", "creat")
_RENAMES = ("rename", "renameat", "renameat2")
ROOT = 0


@dataclasses.dataclass(frozen=True)
class Change:
    """A change that is durable once one of its nodes has been synced after it ended."""

    end: int
    nodes: frozenset[int]
    """The file whose data change, or the folders whose names do."""


@dataclasses.dataclass(frozen=True)
class Names(Change):
    """A node gets a name, loses one, or both at once."""

    node: int
    gained: tuple[int, str] | None
    """Folder and name."""
    lost: tuple[int, str] | None


@dataclasses.dataclass(frozen=True)
class Data(Change):
    """Bytes of a file are written, or its size is set where there are none."""

    offset: int
    data: bytes | None

    def applied(self, content: bytearray, stop: int | None = None) -> None:
        """Change the content, by the first ``stop`` bytes of the data only if that is given."""
        data = b"" if self.data is None else self.data[:stop]
        if self.data is None or len(content) < self.offset:
            content[self.offset :] = bytes(max(0, self.offset - len(content)))
        content[self.offset : self.offset + len(data)] = data


class History:
    """All changes below a folder, in their order.

    Parameters
    ----------
    root : Path
        The folder; what lies in it before the first call is durable, and must be nothing.
    calls : iterable of Call
    """

    def __init__(self, root: Path, calls: Iterable[Call]) -> None:
        self._root = str(root)
        self._names: dict[tuple[int, str], int] = {}
        """Nodes by folder and name, as the process sees them."""
        self._folders = {ROOT}
        self._content_size: dict[int, int] = {}
        self._offsets: dict[tuple[int, int], int] = {}
        """Offsets of open files, by node and number."""
        self._n_nodes = 1
        self.changes: list[Change] = []
        self.syncs: list[tuple[int, int, int | None]] = []
        """Begin, end, and node of every sync; None for all nodes."""
        waiting: list[Call] = []
        # A thread's call may have had its effect long before it was seen to return.
        for call in sorted(calls, key=lambda call: call.begin):
            waiting = [late for late in (*waiting, call) if not self._take(late)]
        assert not waiting, f"calls about files that there are not: {waiting[:3]}"
        self.moments = sorted(change.end for change in self.changes)

    # --- reading system calls ---------------------------------------------------------------------

    def _take(self, call: Call) -> bool:
        """Note what a call changes; False if it is about a name that is not there yet."""
        try:
            self._note(call)
        except KeyError:
            return False
        return True

    def _note(self, call: Call) -> None:
        if call.name in _ON_FILES and (call.file.deleted or not self._is_inside(call.file.path)):
            return
        if call.name in _SYNCS:
            self._sync(call)
        elif call.name in _OPENS:
            self._open(call)
        elif call.name in _WRITES:
            self._write(call)
        elif call.name == "lseek":
            self._seek(call)
        elif call.name in ("ftruncate", "truncate"):
            self._resize(call)
        elif call.name in ("mkdir", "mkdirat"):
            self._link(call, self._place(self._paths(call)[0]), self._new(is_folder=True))
        elif call.name in ("link", "linkat"):
            old, new = (self._place(path) for path in self._paths(call))
            self._link(call, new, self._names[old])
        elif call.name in _RENAMES:
            self._rename(call)
        elif call.name in ("unlink", "unlinkat", "rmdir"):
            self._unlink(call)
        else:
            raise AssertionError(f"a change of a file that is not modelled: {call}")

    def _paths(self, call: Call) -> list[str]:
        """The paths that a call was given, made absolute by the folders before them."""
        paths, folder = [], ""
        for arg in call.args:
            if isinstance(arg, File):
                folder = arg.path
            elif isinstance(arg, Text):
                paths.append(os.path.join(folder, os.fsdecode(arg.value)))
        return paths

    def _place(self, path: str) -> tuple[int, str]:
        """Folder and name of a path below the root; KeyError if there is no such folder."""
        inner = os.path.relpath(os.path.normpath(path), self._root)
        assert not inner.startswith(".."), f"{path} is not below {self._root}"
        *folders, name = inner.split("/")
        node = ROOT
        for folder in folders:
            node = self._names[node, folder]
        return node, name

    def _node(self, path: str) -> int:
        return ROOT if path == self._root else self._names[self._place(path)]

    def _is_inside(self, path: str) -> bool:
        return path == self._root or path.startswith(self._root + "/")

    def _new(self, *, is_folder: bool) -> int:
        node = self._n_nodes
        self._n_nodes += 1
        if is_folder:
            self._folders.add(node)
        else:
            self._content_size[node] = 0
        return node

    def _link(self, call: Call, place: tuple[int, str], node: int) -> None:
        self._names[place] = node
        self.changes.append(Names(call.end, frozenset([place[0]]), node, place, None))

    def _rename(self, call: Call) -> None:
        old, new = (self._place(path) for path in self._paths(call))
        node = self._names.pop(old)
        self._names[new] = node
        self.changes.append(Names(call.end, frozenset([old[0], new[0]]), node, new, old))

    def _unlink(self, call: Call) -> None:
        place = self._place(self._paths(call)[0])
        node = self._names.pop(place)
        self.changes.append(Names(call.end, frozenset([place[0]]), node, None, place))

    def _open(self, call: Call) -> None:
        path = self._paths(call)[0]
        writes = call.name == "creat" or any(call.has(f"O_{how}") for how in ("WRONLY", "RDWR"))
        # A file without a name is lost with its process.
        if not writes or not self._is_inside(path) or call.has("O_TMPFILE"):
            return
        assert not any(call.has(f"O_{how}") for how in ("SYNC", "DSYNC")), call
        place = self._place(path)
        node = self._names.get(place)
        if node is None:
            node = self._new(is_folder=False)
            self._link(call, place, node)
        elif (call.name == "creat" or call.has("O_TRUNC")) and self._content_size[node]:
            self._change(call, node, 0, None)
        self._offsets[node, call.result] = -1 if call.has("O_APPEND") else 0

    def _write(self, call: Call) -> None:
        file = call.file
        node = self._node(file.path)
        data = b"".join(arg.value for arg in call.args if isinstance(arg, Text))[: call.result]
        if call.name.startswith("p"):
            offset = int(str(call.args[-1], 0))
        elif (offset := self._offsets[node, file.number]) == -1:
            offset = self._content_size[node]
        else:
            self._offsets[node, file.number] += call.result
        self._change(call, node, offset, data)

    def _seek(self, call: Call) -> None:
        key = self._node(call.file.path), call.file.number
        # What was opened to be read only is not followed.
        if self._offsets.get(key, -1) != -1:
            self._offsets[key] = call.result

    def _resize(self, call: Call) -> None:
        path = call.file.path if call.name == "ftruncate" else self._paths(call)[0]
        self._change(call, self._node(path), int(str(call.args[-1]), 0), None)

    def _change(self, call: Call, node: int, offset: int, data: bytes | None) -> None:
        size = self._content_size[node]
        self._content_size[node] = offset if data is None else max(size, offset + len(data))
        self.changes.append(Data(call.end, frozenset([node]), offset, data))

    def _sync(self, call: Call) -> None:
        if call.name in ("sync", "syncfs"):
            self.syncs.append((call.begin, call.end, None))
        else:
            self.syncs.append((call.begin, call.end, self._node(call.file.path)))

    # --- after a loss of power --------------------------------------------------------------------

    def unsynced(self, moment: int) -> tuple[list[Names], list[int]]:
        """Return changes of names, and files with changes of data, that a moment's end may lose."""
        covered = self._covered(moment)
        lost = [change for change in self._until(moment) if not covered(change)]
        names = [change for change in lost if isinstance(change, Names)]
        files = {node: None for change in lost if isinstance(change, Data) for node in change.nodes}
        return names, list(files)

    def _until(self, moment: int) -> list[Change]:
        return [change for change in self.changes if change.end <= moment]

    def _covered(self, moment: int) -> Callable[[Change], bool]:
        """Tell of changes whether they are durable at a moment."""
        since: dict[int | None, int] = {}
        for begin, end, node in self.syncs:
            if end <= moment:
                since[node] = max(begin, since.get(node, -1))

        def covers(change: Change) -> bool:
            return any(change.end < since.get(node, -1) for node in (None, *change.nodes))

        return covers

    def tree(
        self, moment: int, left_out: Collection[Names] = (), fates: Mapping[int, str] | None = None
    ) -> Tree:
        """Return what is on the disk.

        Parameters
        ----------
        moment : int
            After the changes that end there; one of ``moments``.
        left_out : collection of Names
            Changes that are lost; they must be unsynced.
        fates : mapping
            One of ``FATES`` for every unsynced file; those that it lacks are whole.
        """
        covered = self._covered(moment)
        assert not any(covered(change) for change in left_out), "it is durable"
        lost = set(map(id, left_out))
        names: dict[tuple[int, str], int] = {}
        data: dict[int, list[Data]] = {}
        for change in self._until(moment):
            if isinstance(change, Data):
                (node,) = change.nodes
                data.setdefault(node, []).append(change)
            elif isinstance(change, Names) and id(change) not in lost:
                if change.lost is not None and names.get(change.lost) == change.node:
                    del names[change.lost]
                if change.gained is not None:
                    names[change.gained] = change.node
        contents = {
            node: _content(data.get(node, []), covered, (fates or {}).get(node, WHOLE))
            for node in set(names.values()) - self._folders
        }
        inner: dict[int, list[tuple[str, int]]] = {}
        for (folder, name), node in names.items():
            inner.setdefault(folder, []).append((name, node))
        tree: Tree = {}
        found = [("", ROOT)]
        while found:
            path, node = found.pop()
            if node in self._folders:
                tree[path] = None
                names_there = inner.get(node, ())
                found += [(f"{path}/{name}".lstrip("/"), each) for name, each in names_there]
            else:
                tree[path] = contents[node]
        return tree


def _content(changes: list[Data], covered: Callable[[Change], bool], fate: str) -> bytes:
    """Return a file's bytes, with a fate for those that are not durable."""
    content = bytearray()
    pending = [change for change in changes if not covered(change)]
    for change in changes:
        if covered(change):
            change.applied(content)
    if fate == NOTHING:
        return bytes(content)
    n_bytes = sum(len(change.data or b"") for change in pending)
    middle = n_bytes // 2
    if fate in (WHOLE, CUT):
        left = n_bytes if fate == WHOLE else middle
        for change in pending:
            change.applied(content, stop=left)
            left -= len(change.data or b"")
            if left <= 0 and fate == CUT:
                break
        return bytes(content)
    left = n_bytes if fate == ZEROS else middle
    for change in pending:
        length = len(change.data or b"")
        zeros = min(length, max(0, left))
        left -= length
        data = None if change.data is None else bytes(zeros) + change.data[zeros:]
        dataclasses.replace(change, data=data).applied(content)
    return bytes(content)


def lay(tree: Tree, folder: Path) -> None:
    """Replace a folder by a tree."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in sorted(tree):
        content = tree[path]
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
