"""Published algorithms, one file per paper: each reads beside the paper's pseudo-code."""
