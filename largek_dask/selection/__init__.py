"""Number of clusters, and scores of a clustering: ``lk.suggest_k`` and ``lk.scores``."""
