"""Jobs on a Dask cluster, which continue when the notebook that submitted them is closed.

``client.py`` and ``job.py`` run in the client's process; ``plugin.py`` and ``jobs.py`` answer them
on the scheduler. ``queue.py`` holds the jobs in memory (``job_state.py``) and starts them;
``runner.py`` runs one. ``store.py`` stores their records; ``lease.py`` gives the right to write.
"""
