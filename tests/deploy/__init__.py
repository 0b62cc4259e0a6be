"""Files of `deploy/`, each tried as its users start it."""
