"""Searches that compare rows with few centres: bounds, groups, neighbours and lists."""
