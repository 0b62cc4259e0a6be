"""The page of jobs on a scheduler's HTTP server."""
