"""Cached properties that can be dropped and recomputed."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar


class Recomputable:
    """Base class with cached properties that depend only on the fields.

    Cached properties are not pickled; :meth:`forget` drops them, and the next access recomputes
    them.
    """

    _cached: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        own = {name for name, value in vars(cls).items() if isinstance(value, cached_property)}
        cls._cached = cls._cached | own

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._cached}

    @property
    def has_cached(self) -> bool:
        return not self._cached.isdisjoint(self.__dict__)

    def forget(self) -> None:
        for name in self._cached:
            self.__dict__.pop(name, None)
