"""Read rows from arrays, files and stores, one chunk at a time."""
