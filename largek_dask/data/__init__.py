"""Rows from anywhere, chunk by chunk."""
