"""scikit-learn's interface: `KMeans`."""
