"""Jobs on a Dask cluster that go on when the notebook that submitted them is closed.

- The client's process: ``client.py``, ``job.py``; ``lines.py`` and ``terminal.py`` show a job.
- The scheduler: ``plugin.py`` answers. ``jobs.py`` is what may be asked, ``submissions.py`` what a
  submit checks, ``queue.py`` which job is next, ``running.py`` and ``fitting.py`` one run of it.
- Storage: ``job_table.py`` has the jobs of a store. ``tenure.py`` and ``lease.py`` say who may
  write, ``places.py`` which folders are the same.
"""
