"""Promises of the whole package: for every algorithm, kind of rows, and mistake."""
