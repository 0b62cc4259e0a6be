"""Web page of the jobs, on a scheduler's HTTP server."""
