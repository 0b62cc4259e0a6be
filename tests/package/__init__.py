"""Tests of the whole package: layers, imports and the wheel."""
