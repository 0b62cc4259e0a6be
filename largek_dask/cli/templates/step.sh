#!/bin/bash
# One worker of largek, started again whenever it ends before its time; workers.sbatch has srun
# run this, once for each task. It ends with 75 where SLURM asks it to end, or its time limit is near.

say() { echo "largek: $(date '+%F %T') $(hostname): $*"; }

# What Dask's worker does with it, SLURM has asked of it already.
ending=
trap 'ending=1' TERM

if [ -r "$LARGEK_HOME/site.env" ]; then . "$LARGEK_HOME/site.env"; fi
{{setup}}
if ! version=$(python3 -c 'from largek_dask.version import __version__; print(__version__)'); then
    say "there is no largek_dask for $(command -v python3): load it in $LARGEK_HOME/site.env"
    exit 1
fi
options=()
interface={{interface}}
if [ -n "$interface" ]; then
    if ! [ -e "/sys/class/net/$interface" ]; then
        say "there is no interface $interface; give one of $(ls -x /sys/class/net)"
        exit 1
    fi
    options+=(--interface "$interface")
fi
name=$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID-$SLURM_PROCID
scratch=$LARGEK_SCRATCH/$SLURM_PROCID
mkdir -p "$scratch"
export OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 OMP_NUM_THREADS=1
# Compiled once for all workers and all their turns, a folder for each kind of processor.
export DASK_LARGEK__KERNELS__CACHE_DIR="${DASK_LARGEK__KERNELS__CACHE_DIR:-$LARGEK_HOME}"
# 90 % of what SLURM gives this task, in bytes.
memory=$((${SLURM_MEM_PER_NODE:-{{node_mem}}} * 1048576 / ${SLURM_NTASKS:-1} * 9 / 10))

file=$LARGEK_HOME/jobs/scheduler.json
said() { sed -n "s|.*\"$1\": \"\([^\"]*\)\".*|\1|p" "$file" 2>/dev/null; }

# Why there is no scheduler to go to yet; nothing if there is one.
why_not() {
    local address
    if ! [ -s "$file" ]; then
        echo "there is no $file yet"
        return
    fi
    address=$(said address)
    address=${address#*://}
    if ! timeout 5 bash -c "exec 3<>/dev/tcp/${address%:*}/${address##*:}" 2>/dev/null; then
        echo "nobody answers at $address, which $file says"
    elif [ "$(said version)" != "$version" ]; then
        echo "the scheduler has largek_dask $(said version), and here is $version: install one" \
            "version for all, and see $LARGEK_HOME/site.env"
    fi
}

# Whether this node has a folder of its own by that name: SLURM knows which job the scheduler is.
other_folder() {
    local job
    job=$(squeue --noheader --states=RUNNING --name="largek-scheduler:$LARGEK_HOME" --format=%A)
    if [ -n "$job" ] && [ "$job" != "$(said slurm_job)" ]; then
        echo ". Job $job of SLURM runs as the scheduler, and says nothing in that file: if it stays" \
            "so, this node sees another folder than that job. --home must be one that all share"
    fi
}

# Seconds until SLURM ends this job.
time_left() {
    local left days=0 hours minutes seconds
    # Not by SLURM_JOB_ID, which is for one of the array's jobs the number of all.
    left=$(squeue --noheader --job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" --format=%L \
        2>/dev/null)
    if [[ $left == *-* ]]; then days=${left%%-*} left=${left#*-}; fi
    IFS=: read -r hours minutes seconds <<<"$left"
    # Short ones have no hours.
    if [ -z "$seconds" ]; then seconds=$minutes minutes=$hours hours=0; fi
    if [[ $seconds =~ ^[0-9]+$ ]]; then
        echo $((10#$days * 86400 + 10#$hours * 3600 + 10#$minutes * 60 + 10#$seconds))
    else
        # There is no limit, or nobody who could tell.
        echo 31536000
    fi
}

# A worker that is asked to end does so at once, but not each time: Dask may wait for half a minute
# for its connection to close, which is longer than most sites have of grace.
end_in_time() {
    local until=$((SECONDS + 10))
    while kill -0 "$1" 2>/dev/null && [ $SECONDS -lt $until ]; do sleep 0.2; done
    kill -KILL "$1" 2>/dev/null
}

# Five to nine minutes before that, so that workers do not go all at once.
last=$((SECONDS + $(time_left) - 300 - RANDOM % 240))

waited=$SECONDS say_next=$((SECONDS + 30))
while [ -z "$ending" ]; do
    if [ $SECONDS -ge $last ]; then exit 75; fi
    # The scheduler writes this file; it removes it with the next job.
    if [ -e "$LARGEK_HOME/jobs/idle" ]; then
        say "there has been no job for a while: this worker ends"
        exit 0
    fi
    reason=$(why_not)
    # What was asked there may have been ended itself.
    if [ -n "$ending" ]; then break; fi
    if [ -n "$reason" ]; then
        if [ $SECONDS -ge $say_next ]; then
            say "waiting for the scheduler: $reason$(other_folder)"
            say_next=$((SECONDS + 60))
        fi
        # First soon, as it may just begin.
        sleep $((SECONDS - waited < 60 ? 1 : 5))
        continue
    fi
    secured=()
    if [ -n "$(said cert)" ]; then
        secured=(--tls-ca-file "$(said ca_file)" --tls-cert "$(said cert)" --tls-key "$(said key)")
        export DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=True
    fi
    say "worker $name: ${SLURM_CPUS_PER_TASK:-1} threads, $((memory / 1048576)) MiB"
    python3 -m dask worker --scheduler-file "$file" --name "$name" --no-nanny \
        --nthreads "${SLURM_CPUS_PER_TASK:-1}" --memory-limit "$memory" \
        --local-directory "$scratch" --dashboard-address "{{worker_dashboard}}" \
        --death-timeout 60 --lifetime $((last - SECONDS)) "${options[@]}" "${secured[@]}" &
    # `wait` ends at a signal, too.
    while kill -0 $! 2>/dev/null; do
        # Also one that was started just when this was asked to end, and has not heard of it.
        if [ -n "$ending" ]; then end_in_time $!; fi
        wait $!
        code=$?
    done
    if [ -z "$ending" ]; then say "the worker has ended with $code"; sleep 1; fi
    waited=$SECONDS say_next=$((SECONDS + 30))
done
exit 75
