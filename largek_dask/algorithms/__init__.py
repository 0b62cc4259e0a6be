"""Algorithms for k-means and mixture models."""
