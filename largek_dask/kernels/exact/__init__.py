"""Exact sums and statistics that do not depend on the order of the rows."""
