"""Measurements against public peers, and the documents' tables and figures made from them."""
