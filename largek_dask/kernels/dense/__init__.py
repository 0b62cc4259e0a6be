"""Nearest centres of dense rows, and what else is computed of them."""
