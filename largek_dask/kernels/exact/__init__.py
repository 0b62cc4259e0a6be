"""Sums and statistics without rounding, so that no order of adding changes a bit."""
