"""Number of clusters, scores, near-duplicates: ``suggest_k``, ``scores``, ``near_duplicates``."""
