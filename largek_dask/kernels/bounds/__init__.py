"""Searches over few centres: bounds, groups, neighbours and lists."""
