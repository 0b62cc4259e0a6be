"""Sums and statistics without rounding, whose bits do not depend on the order of adding."""
