"""scikit-learn's interface: `KMeans` and `Mixture`."""
