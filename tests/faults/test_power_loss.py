"""A machine loses power at any moment, and with it whatever was not synced to its disk.

A child process runs jobs on real files; its system calls are recorded, and replayed up to a moment
with unsynced data and names left out. Whatever the child had said by then has to be there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.faults.power import COMMITS, CRASHES, drill
from tests.faults.promises import PROGRAMS, SAID, Program, Said, make_data, read_said, small_steps
from tests.faults.rig import ROOT
from tests.faults.system_calls import calls, record
from tests.faults.unsynced import CUT, FATES, HOLE, NOTHING, WHOLE, ZEROS, History, Names, Tree, lay
from tests.helpers import needs

# It needs strace. A child without cached kernels compiles them, and all its calls are recorded.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclasses.dataclass
class Recorded:
    """A program that was run once, and its disk."""

    program: Program
    disk: Path
    history: History
    lines: list[tuple[int, bytes]]
    """What it said, and when that began."""
    checked: set[bytes] = dataclasses.field(default_factory=set)
    """Hashes of trees that were checked, with what had been said."""

    @classmethod
    def of(cls, program: Program, disk: Path, log: Path) -> Recorded:
        """Read the record."""
        said = calls(log, disk.parent / SAID)
        lines = [(call.begin, call.text(0)) for call in said if call.name == "write"]
        return cls(program, disk, History(disk, calls(log, disk)), lines)

    @property
    def moments(self) -> list[int]:
        """Moments after each change, and after each thing that was said."""
        return sorted({*self.history.moments, *(begin for begin, _ in self.lines)})

    def said(self, moment: int | None = None) -> Said:
        """Return what had been said by a moment; everything without one."""
        return read_said(
            b"".join(text for begin, text in self.lines if moment is None or begin <= moment)
        )

    def crash(
        self, moment: int, left_out: Collection[Names] = (), fates: Mapping[int, str] | None = None
    ) -> None:
        """Lose power at a moment, and check what is left."""
        said, tree = self.said(moment), self.history.tree(moment, left_out, fates)
        key = hashlib.sha256(repr((said, sorted(tree.items()))).encode()).digest()
        if key not in self.checked:
            lay(tree, self.disk)
            self.program.check(self.disk, said, self.said())
            self.checked.add(key)


@pytest.fixture(scope="module")
def strace():
    path = needs.program("strace", "Debian's package strace")
    tried = subprocess.run([path, "-o", "/dev/null", "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        needs.missing(f"strace may not trace here: {tried.stderr.strip()}")


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    """A folder in memory if there is one: syncs are recorded, nobody has to wait for a disk."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path_factory.mktemp("power")
        return
    with tempfile.TemporaryDirectory(prefix="largek-power-", dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def recorded(strace, memory):
    """Every program, by its name."""
    folder = memory
    for name in ("data", *PROGRAMS):
        (folder / name / "disk").mkdir(parents=True)
    make_data(folder / "data")
    log = folder / "log"
    module = "tests.faults.promises"
    record([sys.executable, "-m", module, str(folder / "data"), str(folder)], log, ROOT)
    found = {
        name: Recorded.of(kind(folder / "data"), folder / name / "disk", log)
        for name, kind in PROGRAMS.items()
    }
    for each in found.values():
        # Nothing escapes the record: without a crash it gives the disk as it is.
        assert each.history.tree(each.moments[-1]) == tree_of(each.disk)
    with small_steps():
        yield found


def tree_of(folder: Path) -> Tree:
    found = {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
    }
    return {"": None, **found}


def lose_power(data: st.DataObject, each: Recorded) -> None:
    """Lose power at a moment and with losses that hypothesis draws."""
    moment = data.draw(st.sampled_from(each.moments), "moment")
    names, files = each.history.unsynced(moment)
    # A journal loses the last names, other file systems any of them.
    n_kept = data.draw(st.sampled_from([0, len(names)]) | st.integers(0, len(names)), "names kept")
    others = data.draw(st.sets(st.integers(0, max(0, len(names) - 1)), max_size=6), "but not")
    left_out = [name for i, name in enumerate(names) if (i >= n_kept) != (i in others)]
    usual = data.draw(st.sampled_from(FATES), "data")
    fates = dict.fromkeys(files, usual)
    if files:
        of_some = st.dictionaries(st.sampled_from(files), st.sampled_from(FATES), max_size=4)
        fates |= data.draw(of_some, "other data")
    note(f"left out: {left_out}; data: {fates}")
    each.crash(moment, left_out, fates)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("names_too", [False, True], ids=["names without data", "nothing"])
def test_what_was_said_is_there__of_what_is_not_synced_as_little_as_can_be(
    recorded, name, names_too
):
    each = recorded[name]
    assert each.lines
    for moment, _ in each.lines:
        names, files = each.history.unsynced(moment)
        each.crash(moment, names if names_too else (), dict.fromkeys(files, NOTHING))


# Each try takes a second: what is found is told as it is.
UNSHRUNK = settings(phases=[Phase.generate], suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", PROGRAMS)
@settings(UNSHRUNK, max_examples=30)
@given(data=st.data())
def test_power_is_lost_at_any_moment(recorded, name, data):
    lose_power(data, recorded[name])


# --- a real file system ---------------------------------------------------------------------------


@pytest.mark.timeout(1800)
def test_a_disk_is_copied_while_jobs_run(tmp_path):
    """With the journal's usual interval; ``python -m tests.faults.power`` has a long one, too."""
    # Containers of CI may have no such devices either.
    if subprocess.run(["losetup", "--find"], capture_output=True).returncode != 0:
        pytest.skip("file systems are mounted by root only, on loop devices")
    needs.program("mkfs.ext4", "Debian's package e2fsprogs")
    losses = list(drill(tmp_path, COMMITS[0]))
    assert [loss.kind for loss in losses] == list(CRASHES)
    assert [loss.n_unfinished for loss in losses] == [1, 1, 0]
    assert losses[1].step > losses[0].step


# --- the model of a disk --------------------------------------------------------------------------


CARELESS = """
import os, sys
folder = sys.argv[1]
os.mkdir(f"{folder}/inner")
with open(f"{folder}/inner/x.part", "wb") as file:
    file.write(b"some ")
    file.flush()
    file.write(b"bytes")
    SYNC_FILE
os.rename(f"{folder}/inner/x.part", f"{folder}/inner/x")
SYNC_INNER
SYNC_OUTER
"""
SYNC_FILE = "file.flush(); os.fsync(file.fileno())"
SYNC_INNER = 'os.fsync(os.open(f"{folder}/inner", os.O_RDONLY))'
SYNC_OUTER = "os.fsync(os.open(folder, os.O_RDONLY))"


def history_of(tmp_path: Path, script: str, **syncs: str) -> History:
    """Record a script in which some syncs are made."""
    for what in ("SYNC_FILE", "SYNC_INNER", "SYNC_OUTER"):
        script = script.replace(what, syncs.get(what, "pass"))
    disk = tmp_path / "disk"
    disk.mkdir()
    record([sys.executable, "-c", script, str(disk)], tmp_path / "log", ROOT)
    return History(disk, calls(tmp_path / "log", disk))


def worst(history: History) -> Tree:
    """Return the tree in which all is lost that can be."""
    names, files = history.unsynced(sys.maxsize)
    return history.tree(sys.maxsize, names, dict.fromkeys(files, NOTHING))


def test_without_a_sync_anything_may_be_lost(strace, tmp_path):
    history = history_of(tmp_path, CARELESS)
    end = history.moments[-1]
    names, (file,) = history.unsynced(end)
    made, created, renamed = names
    assert history.tree(end) == {"": None, "inner": None, "inner/x": b"some bytes"}
    assert worst(history) == {"": None}
    contents = {
        WHOLE: b"some bytes",
        NOTHING: b"",
        ZEROS: bytes(10),
        CUT: b"some ",
        HOLE: bytes(5) + b"bytes",
    }
    for fate, content in contents.items():
        assert history.tree(end, (), {file: fate})["inner/x"] == content
    assert "inner/x.part" in history.tree(end, [renamed])
    assert set(history.tree(end, [created])) == {"", "inner", "inner/x"}
    assert set(history.tree(end, [created, renamed])) == {"", "inner"}
    assert set(history.tree(end, [made])) == {""}


def test_what_is_synced_stays__each_by_a_sync_of_its_own(strace, tmp_path):
    every = {"SYNC_FILE": SYNC_FILE, "SYNC_INNER": SYNC_INNER, "SYNC_OUTER": SYNC_OUTER}
    whole: Tree = {"": None, "inner": None, "inner/x": b"some bytes"}
    lost_without: dict[str, Tree] = {
        "": whole,
        "SYNC_FILE": {**whole, "inner/x": b""},
        "SYNC_INNER": {"": None, "inner": None},
        "SYNC_OUTER": {"": None},
    }
    for number, (missing, left) in enumerate(lost_without.items()):
        (tmp_path / str(number)).mkdir()
        made = {what: how for what, how in every.items() if what != missing}
        assert worst(history_of(tmp_path / str(number), CARELESS, **made)) == left


THREADS = """
import os, sys, threading
folder = sys.argv[1]
def work(number):
    for i in range(20):
        os.makedirs(f"{folder}/{i}", exist_ok=True)
        with open(f"{folder}/{i}/{number}", "wb") as file:
            file.write(b"%d" % number)
        os.link(f"{folder}/{i}/{number}", f"{folder}/{i}/{number}.too")
        os.unlink(f"{folder}/{i}/{number}")
    with open(f"{folder}/all", "ab") as file:
        file.write(b".")
threads = [threading.Thread(target=work, args=[n]) for n in range(4)]
for t in threads: t.start()
for t in threads: t.join()
with open(f"{folder}/all", "r+b") as file:
    file.seek(1); file.write(b"x"); file.truncate(3)
"""


def test_threads_that_do_everything_at_once(strace, tmp_path):
    history = history_of(tmp_path, THREADS)
    found = tree_of(tmp_path / "disk")
    assert found["all"] == b".x."
    assert len(found) == 2 + 20 * 5
    assert history.tree(sys.maxsize) == found
