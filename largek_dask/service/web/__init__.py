"""Web page that lists jobs, on a scheduler's HTTP server."""
