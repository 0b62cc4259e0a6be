"""Tests, in the same folders as the package; `oracles/` has a numpy equivalent of each kernel."""
