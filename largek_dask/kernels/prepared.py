"""Forms of one set of centres for each kind of rows, made once per process when needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from numpy.typing import NDArray

__all__ = ["Prepared"]

Form = TypeVar("Form")


class Prepared:
    """Cache of forms made from (k, d) centres, by the function that makes them."""

    __slots__ = ("_centers", "_lock", "_made")

    def __init__(self, centers: NDArray[Any]) -> None:
        self._centers = centers
        # A form may be made of another one.
        self._lock = threading.RLock()
        self._made: dict[Callable[..., Any], Any] = {}

    def get(self, make: Callable[..., Form], *more: Any) -> Form:
        """Return ``make(centers, *more)``, made at the first call; other threads wait for it."""
        with self._lock:
            if make not in self._made:
                self._made[make] = make(self._centers, *more)
            form: Form = self._made[make]
            return form
