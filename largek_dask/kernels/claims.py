"""Two processes that compile for one fit: what one of them has begun, the other does not begin.

Whoever is about to compile a function makes an empty file of its name in a folder that both know,
which only one of them can do. The other waits for the code, which comes by the kernel cache. It
waits for a process that is alive, and not for ever: then that function, and whatever else the other
one has begun, is compiled twice, to the same code.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from largek_dask.kernels.compiling import waiting

__all__ = ["Claims"]

PATIENCE = 60.0
"""Seconds to wait for what another process has begun; a function takes up to 3 s where that process
has a core to itself."""
_PAUSE = 0.003


class Claims:
    """What this process compiles, of two.

    Parameters
    ----------
    folder : Path
        In which both make their files; it begins empty.
    is_other_alive : callable
        Whether the other process can still end what it has begun.
    """

    def __init__(self, folder: Path, is_other_alive: Callable[[], bool]) -> None:
        self._folder = folder
        self._is_other_alive = is_other_alive
        self._own: set[str] = set()
        self._has_given_up = False
        """Whether something did not come in time: nothing else is waited for, then."""

    def take(self, path: Path) -> bool:
        """Whether to compile what is to be kept at `path`; False: it is there now.

        Asks meanwhile as :func:`~.compiling.asked_before` says, and raises what that raises.
        """
        if path.name in self._own:
            return True
        try:
            (self._folder / path.name).touch(exist_ok=False)
        except FileExistsError:
            return self._has_given_up or not self._comes(path)
        except OSError:  # the folder has gone: the other process as well
            return True
        self._own.add(path.name)
        return True

    def _comes(self, path: Path) -> bool:
        """Wait for what the other process has begun."""
        end = time.monotonic() + PATIENCE
        with waiting() as ask:
            while not path.exists():
                self._has_given_up = time.monotonic() > end
                if self._has_given_up or not self._is_other_alive():
                    return False
                ask()
                time.sleep(_PAUSE)
        return True
