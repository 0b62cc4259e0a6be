"""Jobs on a Dask cluster that go on when the notebook that submitted them is closed.

``client.py`` and ``job.py`` run in the client's process; ``plugin.py`` and ``jobs.py`` answer them
on the scheduler. ``queue.py`` has the jobs in memory (``job_state.py``) and begins them, and
``runner.py`` runs one. ``store.py`` has the records, and ``lease.py`` the right to write.
"""
