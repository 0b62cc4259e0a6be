"""Tests that use the files in `deploy/` as users do."""
