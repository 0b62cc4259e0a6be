"""Plots of what a fit has told."""
