"""Searches that compare each row with only a few centres."""
