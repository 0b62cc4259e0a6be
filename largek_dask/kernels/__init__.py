"""Numba kernels on numpy arrays, without I/O, clock, randomness or Dask."""
