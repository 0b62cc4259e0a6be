"""Components shared by several algorithms."""
