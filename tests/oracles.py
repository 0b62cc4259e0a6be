"""Plain numpy twins of what the package computes, slow and easy to check by eye."""

from __future__ import annotations
