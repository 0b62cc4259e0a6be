"""Tests, in the folders of what they test; `oracles/` has a plain numpy twin of every kernel."""
