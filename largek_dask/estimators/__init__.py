"""scikit-learn's interface: `KMeans` and `Mixture`; scores of labels."""
