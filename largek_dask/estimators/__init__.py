"""Estimators with the interface of scikit-learn: ``KMeans``, ``Mixture`` and their variants."""
