"""What mpi.sbatch starts in each process of MPI: a scheduler, a script, or a worker."""

import os

from dask.distributed import Client
from dask_mpi import initialize

import largek_dask as lk

FOLDER = "/shared/me/largek"  # yours: a folder that all nodes see, for jobs and models
ROWS = "/shared/me/rows.zarr"  # yours: rows that `largek ingest` has written there
RUN, CLUSTERS = "run1", 1000  # yours: a name for this run, and how many clusters

THREADS = int(os.environ["SLURM_CPUS_PER_TASK"])


def main() -> None:
    """Be what the rank of this process says; as the script, submit the job or go on with it."""
    # Only the second process comes back from it.
    initialize(
        worker_class="distributed.Worker",
        nthreads=THREADS,
        memory_limit=THREADS * int(os.environ["SLURM_MEM_PER_CPU"]) * 2**20 * 9 // 10,
        local_directory=os.environ.get("TMPDIR", "/tmp"),
        dashboard_address="127.0.0.1:0",
    )
    # Nothing can be preloaded by dask-mpi: so the scheduler is given its service by the script.
    with Client() as client, lk.connect(client, store=f"{FOLDER}/jobs") as service:
        begun = service.jobs(name=RUN)
        job = begun[-1] if begun else service.submit(
            ROWS, n_clusters=CLUSTERS, output=f"{FOLDER}/{RUN}", name=RUN
        )  # fmt: skip
        job.watch()
        print(job.result())


if __name__ == "__main__":
    main()
