"""Jobs on a Dask cluster that go on when the notebook that submitted them is closed."""
