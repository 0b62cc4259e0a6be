"""Jobs on a Dask cluster, which continue when the notebook that submitted them is closed.

``client.py`` and ``job.py`` run in the client's process; ``plugin.py`` and ``jobs.py`` answer their
requests on the scheduler. ``queue.py`` holds the jobs in memory (``job_state.py``) and starts them;
``runner.py`` runs one job. ``store.py`` stores records of jobs; ``lease.py`` manages the right to
write.
"""
