"""Map-reduce over chunks: in this process, or on a Dask cluster."""
