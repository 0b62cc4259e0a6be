"""Tests, in the folders of what they test; `oracles.py` has a plain numpy twin of every kernel."""
