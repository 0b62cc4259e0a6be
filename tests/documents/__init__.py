"""Tests of the documents: code runs, links resolve, and the site is usable."""
