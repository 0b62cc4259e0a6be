"""DCD-Bundle: every partition up to k in one fit, and what is certain of them."""

from __future__ import annotations
