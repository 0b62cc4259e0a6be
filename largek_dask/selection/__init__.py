"""Choice of the number of clusters, and scores of a clustering: ``lk.suggest_k``, ``lk.scores``."""
