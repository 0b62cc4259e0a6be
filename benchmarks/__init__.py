"""Measurements against public peers; each writes its table into the documents."""
