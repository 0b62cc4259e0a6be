"""Faults on purpose.

``barrier`` holds up one chunk function inside a fit; ``rig`` starts a scheduler and workers as
processes that a supervisor brings back; ``moments`` are the places at which they may be struck;
``catalogue`` is the list of faults, each a small class; ``stores`` are file systems that fail.
``python -m tests.faults --minutes 30`` runs all of them and prints a table.
"""

from tests.faults.barrier import BarrierPasses, Killer, WithBarrier, barrier_chunk

__all__ = ["BarrierPasses", "Killer", "WithBarrier", "barrier_chunk"]
