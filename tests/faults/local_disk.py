"""A crash at every change of a local disk: the process ends there, for good.

A child process runs the job and is gone at its n-th change below the job's folders, without any
``finally``; another one goes on. Python's audit events tell of every file that is opened for
writing, renamed, linked or removed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import dask

from largek_dask.driver.stopping import ENDS
from largek_dask.driver.storage import Folder
from largek_dask.model import load_model
from largek_dask.service import queue
from largek_dask.service.jobs import Jobs
from largek_dask.service.store import Records
from tests.faults.inprocess import QUICK, Small, make_small, smalls

DIED = 9
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def _changes(event: str, args: tuple[Any, ...], below: str) -> bool:
    """Whether an audit event is a change of a file below a folder."""
    if event == "open":
        path, _, flags = args
        return isinstance(path, str) and path.startswith(below) and bool(flags & WRITES)
    if event in ("os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir"):
        return any(str(path).startswith(below) for path in args[:2])
    return False


def _run(folder: Path, small: Small, dies_at: int | None) -> None:
    """In the child: submit the job, or go on with it, and wait for its end."""
    count = 0

    def audit(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        if _changes(event, args, str(folder)):
            if count == dies_at:
                os._exit(DIED)
            count += 1

    sys.addaudithook(audit)
    queue.TICK_SECONDS = 0.01
    with dask.config.set(QUICK):
        jobs = Jobs(Records(Folder(str(folder / "store"))), lambda: None, "a")
        jobs.start()
        found = jobs.listed()
        job_id = (
            found[0]["id"]
            if found
            else jobs.submit(small.document(str(folder / "out")), {}, "somebody")
        )
        until = time.monotonic() + 120
        while (state := jobs.status(job_id)["state"]) not in ENDS:
            assert time.monotonic() < until, f"the job is {state} after 120 s"
            time.sleep(0.002)
        # Here the last files are written.
        jobs.close(20.0)
    if state == "finished":
        # In this process: whoever forks must not have zarr's threads.
        (folder / "digest").write_text(load_model(str(folder / "out" / "model.zarr")).digest())
    os._exit(0 if state == "finished" else 1)


def run_and_die(folder: Path, small: Small, dies_at: int | None) -> int:
    """Run a job in a child; its exit status (``DIED`` if it came to that change)."""
    pid = os.fork()
    if pid == 0:
        try:
            _run(folder, small, dies_at)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def crash_at_every_change(folder: Path, small: Small, every: int = 1) -> int:
    """Die at one change after the other, go on each time; how many changes there are.

    Has to be called in a process without threads, since it forks.
    """
    assert run_and_die(folder / "clean", small, None) == 0
    expected = (folder / "clean" / "digest").read_text()
    number = 0
    while True:
        place = folder / str(number)
        status = run_and_die(place, small, number)
        assert status in (0, DIED), f"change {number}: exit status {status}"
        assert run_and_die(place, small, None) == 0, f"after change {number} it does not go on"
        assert (place / "digest").read_text() == expected, (
            f"after change {number} the model is another one"
        )
        if status == 0:
            return number
        number += every


def main() -> None:
    """``python -m tests.faults.local_disk FOLDER [EVERY]``."""
    folder = Path(sys.argv[1])
    every = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    # In a child as well, for the same reason.
    if os.fork() == 0:
        make_small(folder)
        os._exit(0)
    assert os.wait()[1] == 0
    for name, small in smalls(folder).items():
        n = crash_at_every_change(folder / name, small, every)
        print(f"{name}: {n} changes of a local disk")


if __name__ == "__main__":
    main()
