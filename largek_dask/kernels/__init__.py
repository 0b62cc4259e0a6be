"""Numba kernels: numpy arrays in, arrays out; no I/O, clock, randomness or Dask."""
