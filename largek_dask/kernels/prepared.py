"""Forms of one set of centres that only some kinds of rows need, made once a process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from numpy.typing import NDArray

__all__ = ["Prepared"]

Form = TypeVar("Form")


class Prepared:
    """What was made of (k, d) centres so far, by the function that makes it."""

    __slots__ = ("_centers", "_lock", "_made")

    def __init__(self, centers: NDArray[Any]) -> None:
        self._centers = centers
        self._lock = threading.Lock()
        self._made: dict[Callable[[NDArray[Any]], Any], Any] = {}

    def get(self, make: Callable[[NDArray[Any]], Form]) -> Form:
        """``make(centers)``, made at the first call; other threads wait for it."""
        with self._lock:
            if make not in self._made:
                self._made[make] = make(self._centers)
            form: Form = self._made[make]
            return form
