"""The package as a whole: layers, imports and the wheel."""
