"""Nearest centres of sparse rows."""
