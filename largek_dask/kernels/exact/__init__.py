"""Exact sums and statistics, whose bits do not depend on the order of addition."""
