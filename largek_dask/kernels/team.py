"""Share the parts of a compiled function among threads that wait in compiled code.

A waiting thread watches a word in memory without holding the GIL, so it begins a part within
microseconds. To start another Python thread takes about 100 microseconds.

The words of ``control`` (int64) are in several cache lines:

- ``STATE``: the number of the call, a bit that is set while threads may join, and the number of
  threads that have joined.
- ``NEXT``: the number of parts that have been started.
- ``LEFT``: the number of joined threads that have finished.
- ``PARTS``, ``PART``, ``DATA``, ``MOST``: the number of parts, the addresses of the compiled
  function and of its arguments, and the maximum number of joined threads.
- ``CALLS``: threads stop waiting when this word changes.

Memory order: the caller writes the description of a call and then opens it by a store to ``STATE``
(release). Another thread loads ``STATE`` (acquire), reads ``MOST``, and joins by a compare-and-set
(acquire and release) that fails if ``STATE`` has changed, so the description that it reads belongs
to this call. After its last part it adds one to ``LEFT`` (release). The caller closes the call by
an atomic operation on ``STATE``, which returns the final number of joined threads, and waits until
``LEFT`` (acquire) equals this number. Then all results are visible to the caller, and the
description may change.
"""

from __future__ import annotations

from collections.abc import Callable

from largek_dask.kernels.atomics import (
    add,
    call_part,
    clear,
    describing,
    load,
    pause,
    replace,
    store,
)
from largek_dask.kernels.jit import njit

STATE, NEXT, LEFT, PARTS, PART, DATA, MOST, CALLS, WORDS = 0, 8, 16, 24, 25, 26, 27, 32, 40
MOST_JOINED = (1 << 11) - 1
OPEN, CALL = 1 << 11, 1 << 12
UNLIMITED = 1 << 62


def opening(function: Callable[..., None]) -> Callable[..., None]:
    """Compile ``function(part, thread, *arguments)``, whose parts threads may share.

    The result ``begin(control, data, n_parts, most, *arguments)`` opens a call of the parts 0 to
    ``n_parts - 1`` for up to ``most`` other threads. ``data`` is the address of `DATA_BYTES` bytes.
    ``thread`` is 0 for the caller, and less than or equal to ``most`` for other threads. The
    function must neither raise errors nor allocate arrays.
    """
    describe = describing(njit(internal=True, refcounts=False)(function))

    @njit
    def begin(control, data, n_parts, most, *arguments):
        control[PART] = describe(data, arguments)
        control[DATA], control[PARTS], control[MOST] = data, n_parts, most
        store(control, NEXT, 0)
        store(control, LEFT, 0)
        store(control, STATE, (control[STATE] // CALL + 1) * CALL + OPEN)

    return begin


@njit
def work(control, turn, thread):
    """Compute parts; return True if no parts are left, and False after ``turn`` parts."""
    n, function, data = control[PARTS], control[PART], control[DATA]
    for _ in range(turn):
        part = add(control, NEXT, 1)
        if part >= n:
            return True
        call_part(function, data, part, thread)
    return False


@njit
def end(control, spins):
    """Close the call; return True if all joined threads have finished, after some waiting."""
    joined = clear(control, STATE, OPEN) & MOST_JOINED
    for _ in range(spins):
        if load(control, LEFT) == joined:
            return True
        pause()
    return False


@njit
def cancel(control):
    """Start no more parts."""
    store(control, NEXT, UNLIMITED)


@njit
def may_join(control, seen):
    """Return True if a call is open that another thread may join, and it is not call ``seen``."""
    state = load(control, STATE)
    room = (state & MOST_JOINED) < control[MOST]
    return state & OPEN != 0 and state // CALL != seen and room


@njit
def serve(control, seen, calls, spins):
    """Join calls until none is opened for a while, or ``CALLS`` changes.

    Returns the number of the last call that was joined; the argument ``seen`` is that of an earlier
    call.
    """
    idle = 0
    while idle < spins:
        state = load(control, STATE)
        joined = state & MOST_JOINED
        if state & OPEN and state // CALL != seen and joined < control[MOST]:
            if replace(control, STATE, state, state + 1):
                seen = state // CALL
                work(control, UNLIMITED, joined + 1)
                add(control, LEFT, 1)
            idle = 0
        elif load(control, CALLS) != calls:
            break
        else:
            pause()
            idle += 1
    return seen
