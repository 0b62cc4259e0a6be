"""Tests that execute the notebooks unchanged."""
