"""Digests of small fits by every algorithm, which detect any change of results.

``python -m tests.digests`` compares all digests with ``golden.json``, and ``--write`` updates this
file. Describe every change of results in CHANGELOG.md and in the commit message.
"""
