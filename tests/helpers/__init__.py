"""Helpers that tests in several folders use."""
