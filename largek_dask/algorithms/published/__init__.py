"""Algorithms as published: one file per paper, with the paper's symbols as names."""
