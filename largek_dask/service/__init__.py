"""Jobs on a Dask cluster that go on when the notebook that submitted them is closed.

``client.py`` and ``job.py`` run in the client's process; ``plugin.py`` and ``jobs.py`` answer them
on the scheduler. ``queue.py`` begins jobs and ``runner.py`` runs one. ``store.py`` has the records,
``job_table.py`` and ``job_state.py`` the jobs in memory, and ``lease.py`` the right to write.
"""
