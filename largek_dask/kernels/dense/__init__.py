"""Kernels for dense rows, such as the search for nearest centres."""
