"""Algorithms as their papers print them: one file per paper, with the paper's letters as names."""
