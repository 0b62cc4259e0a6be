"""Digests of small fits by every algorithm: no change of bits goes unseen.

``python -m tests.digests`` compares all of them with ``golden.json``, ``--write`` writes it anew. A
change of bits is a change of the product: CHANGELOG.md and the commit message say it.
"""
