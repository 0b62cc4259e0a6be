"""Documents: code on their pages runs, links lead somewhere, and the site can be used."""
