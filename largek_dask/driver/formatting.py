"""Format numbers and text for people."""

from __future__ import annotations


def printable(text: object) -> str:
    """Replace control characters, which could forge a line or control a terminal, by spaces."""
    words = str(text)
    # This is a fast path, because a page contains thousands of texts.
    return words if words.isprintable() else "".join(c if c.isprintable() else " " for c in words)


def short_number(value: float, digits: int = 6) -> float:
    """Round ``8641.2345678`` to ``8641.23``; whole numbers become integers."""
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() else short


def count_of(n: int, noun: str) -> str:
    """Format a count with its noun, such as ``1 chunk`` or ``1,234 chunks``."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def human_count(value: float) -> str:
    """Format ``2_500_000`` as ``2.5M``."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


def human_seconds(s: float) -> str:
    """Format ``3700`` as ``1 h 01 min``."""
    if s < 60:
        return f"{s:.2g} s" if s < 10 else f"{s:.0f} s"
    if s < 3600:
        return f"{int(s // 60)} min {int(s % 60):02d} s"
    return f"{int(s // 3600)} h {int(s % 3600 // 60):02d} min"
