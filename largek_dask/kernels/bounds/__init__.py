"""Searches that look at few centres: bounds, groups, neighbours and lists."""
