"""A job of largek in one allocation of SLURM: a scheduler, this script, and workers, by srun.

In one environment that all nodes see; "." is the checkout of largek_dask, or write the path of its
wheel:

    pip install . dask-jobqueue

Change what is marked as yours, and submit it with two tasks more than workers:

    sbatch -n 18 -c 8 --mem-per-cpu=8G -t 12:00:00 --wrap='srun -c 8 python runner.py'

All of it ends with the time limit, or when the allocation is preempted. Started again, it goes on
with the job from its last checkpoint. To have that done by SLURM, take `largek cluster slurm`
(deploy/README.md, "SLURM").
"""

import asyncio
import os

from dask_jobqueue.slurm import SLURMRunner
from distributed.utils import json_load_robust

import largek_dask as lk

FOLDER = "/shared/me/largek"  # yours: a folder that all nodes see, for jobs and models
ROWS = "/shared/me/rows.zarr"  # yours: rows that `largek ingest` has written there
RUN, CLUSTERS = "run1", 1000  # yours: a name for this run, and how many clusters

SERVICE = {
    "preload": ["largek_dask.service.preload"],
    "preload_argv": [["--largek-store", f"{FOLDER}/jobs"]],
    "dashboard_address": "127.0.0.1:0",
}
THREADS = int(os.environ["SLURM_CPUS_PER_TASK"])
WORKER = {
    "nthreads": THREADS,
    "memory_limit": THREADS * int(os.environ["SLURM_MEM_PER_CPU"]) * 2**20 * 9 // 10,
    "local_directory": os.environ.get("TMPDIR", "/tmp"),
}


class Runner(SLURMRunner):
    """Waits for a whole scheduler file: dask-jobqueue 0.9 reads what is half written, and ends."""

    async def get_scheduler_address(self) -> str:
        """Where this allocation's scheduler is."""
        found = await asyncio.to_thread(json_load_robust, self.scheduler_file)
        return found["address"]


def main() -> None:
    """Be what the number of this task says; as the script, submit the job or go on with it."""
    os.makedirs(FOLDER, exist_ok=True)
    where = FOLDER + "/scheduler-{job_id}.json"
    # Only the second task comes into the block.
    with (
        Runner(scheduler_file=where, scheduler_options=SERVICE, worker_options=WORKER) as all_,
        lk.connect(all_.scheduler_address) as service,
    ):
        begun = service.jobs(name=RUN)
        job = begun[-1] if begun else service.submit(
            ROWS, n_clusters=CLUSTERS, output=f"{FOLDER}/{RUN}", name=RUN
        )  # fmt: skip
        job.watch()
        print(job.result())


if __name__ == "__main__":
    main()
