"""Nearest centres of dense rows, and other computations on dense rows."""
