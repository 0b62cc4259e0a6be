"""Compare this package with other libraries, and make the tables and figures in the documents.

Run a benchmark by ``python -m benchmarks.NAME [--write]``. All benchmarks share these modules:
:mod:`common` (processes, files), :mod:`sets` (data sets), :mod:`curves` (energies after each step),
:mod:`peers` (other libraries), :mod:`levels` (time to reach an energy), :mod:`pictures`, and
:mod:`tables` with :mod:`quotes` (documents).
"""
