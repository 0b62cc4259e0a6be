"""Measurements against public peers, and the documents' tables and figures made from them.

Each claim has one module, run as ``python -m benchmarks.NAME [--write]``. They share the harness:
:mod:`common` (processes, files), :mod:`sets` (rows), :mod:`curves` (our algorithms step by step),
:mod:`peers` (other libraries), :mod:`levels` (times to an energy), :mod:`pictures`, and
:mod:`tables` with :mod:`quotes` (documents).
"""
