"""Tests of guarantees for every algorithm, kind of rows, and user mistake."""
