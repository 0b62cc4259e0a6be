"""A job of largek from a notebook or a script, with workers that dask-jobqueue submits to SLURM.

Where it runs, such as a login node, and where workers run, in one environment that all nodes see;
"." is the checkout of largek_dask, or write the path of its wheel:

    pip install . dask-jobqueue

Have jobqueue.yaml beside this file, change in both what is marked as yours, and start it by:

    DASK_CONFIG=jobqueue.yaml python jobqueue.py

The scheduler is in this process, and with it the job: both live and die with the notebook or the
script. So this is for hours, not for days. Started again, it goes on with the job from its last
checkpoint. For days take `largek cluster slurm`: there the scheduler is a job of SLURM, too, which
is queued again whenever it was ended (deploy/README.md, "SLURM").
"""

from dask_jobqueue import SLURMCluster

import largek_dask as lk

FOLDER = "/shared/me/largek"  # yours: a folder that all nodes see, for jobs and models
ROWS = "/shared/me/rows.zarr"  # yours: rows that `largek ingest` has written there
RUN, CLUSTERS = "run1", 1000  # yours: a name for this run, and how many clusters

SERVICE = {
    "preload": ["largek_dask.service.preload"],
    "preload_argv": [["--largek-store", f"{FOLDER}/jobs"]],
    "dashboard_address": "127.0.0.1:0",
}


def main() -> None:
    """Submit the job, or find that of a run that was ended, and wait for its model."""
    with SLURMCluster(scheduler_options=SERVICE) as cluster:
        # No workers while there is no job; another one for each that reaches its lifetime.
        cluster.adapt(maximum_jobs=16)
        with lk.connect(cluster.scheduler_address) as service:
            begun = service.jobs(name=RUN)
            job = begun[-1] if begun else service.submit(
                ROWS, n_clusters=CLUSTERS, output=f"{FOLDER}/{RUN}", name=RUN
            )  # fmt: skip
            job.watch()
            print(job.result())


if __name__ == "__main__":
    main()
