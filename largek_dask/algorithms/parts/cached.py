"""Cached properties that can be dropped and computed again."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar


class Recomputable:
    """Base of classes whose cached properties depend on their fields alone.

    Pickles leave these out, and :meth:`forget` drops them; access computes them again.
    """

    _cached: ClassVar[frozenset[str]] = frozenset()
    """Names of the cached properties."""

    def __init_subclass__(cls) -> None:
        own = {name for name, value in vars(cls).items() if isinstance(value, cached_property)}
        cls._cached = cls._cached | own

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._cached}

    @property
    def has_cached(self) -> bool:
        """True if a cached property is present."""
        return not self._cached.isdisjoint(self.__dict__)

    def forget(self) -> None:
        """Drop cached properties."""
        for name in self._cached:
            self.__dict__.pop(name, None)
