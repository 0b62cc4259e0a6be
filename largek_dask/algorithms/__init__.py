"""One paper, one file or folder."""
