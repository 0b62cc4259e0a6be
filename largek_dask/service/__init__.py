"""Run jobs on a Dask cluster; jobs continue after the notebook that submitted them is closed.

``client.py`` and ``job.py`` run in the client's process; ``plugin.py`` and ``jobs.py`` answer
client requests on the scheduler. ``queue.py`` keeps the jobs in memory (``job_state.py``) and
starts each job in turn; ``runner.py`` runs one job. ``store.py`` stores job records; ``lease.py``
ensures that only one scheduler writes to a store or job.
"""
