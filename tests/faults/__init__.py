"""Tests that inject faults into processes, disks and networks.

``barrier``
    Holds up one chunk function inside a fit.
``rig``
    Starts a scheduler and workers as processes, and a supervisor that brings them back.
``moments``
    The places at which they may be struck, and orders to wait there.
``catalogue``
    The faults: each a small class with ``inject`` and ``heal``. To add one, write such a class
    and put it into ``FAULTS``.
``broadcasts``
    Workers that die while something large is on its way to them.
``drill``, ``deaths``, ``moved``
    Drills: workers of a job that die again and again, schedulers that die and are followed by
    others elsewhere. ``python -m tests.faults.deaths --n 50`` and ``python -m tests.faults.moved
    --n 30`` print how long jobs stood still.
``system_calls``, ``unsynced``, ``promises``
    System calls of a child, a disk that forgets what they have not synced, and programs that say
    what they have written: what is left after a loss of power at any moment.
``power``
    The same on a real file system whose image is copied while jobs run, by root:
    ``python -m tests.faults.power --n 6``.
``cases``, ``strikes``
    Jobs, and what becomes of one that is struck.
``stores``, ``inprocess``
    A file system that fails, and jobs on it in one process.
``local_disk``, ``deadly``, ``long``
    A process that ends at any change of a disk, a file that kills its readers, and scenarios
    that take minutes.

``python -m tests.faults --minutes 30`` does all of it and prints a table.
"""

from tests.faults.barrier import BarrierPasses, Killer, WithBarrier, barrier_chunk

__all__ = ["BarrierPasses", "Killer", "WithBarrier", "barrier_chunk"]
