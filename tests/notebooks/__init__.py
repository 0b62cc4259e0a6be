"""The notebooks, executed as they are."""
