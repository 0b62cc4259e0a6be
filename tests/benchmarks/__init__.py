"""Tests that compare the tables in the documents with the committed results."""
