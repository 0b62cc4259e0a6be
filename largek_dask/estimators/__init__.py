"""scikit-learn's face of the algorithms."""
