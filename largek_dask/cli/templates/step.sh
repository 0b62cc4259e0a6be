#!/bin/bash
# Run one worker of largek, and restart it if it ends too early. Run by workers.sbatch.
# The exit code is 75 after a signal from SLURM, or near the time limit.

say() { echo "largek: $(date '+%F %T') $(hostname): $*"; }

# SLURM also sends this signal to Dask's worker.
ending=
trap 'ending=1' TERM

{% include "start.sh" %}
name=$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID
# 90 % of this job's memory, in bytes.
memory=$((${SLURM_MEM_PER_NODE:-{{ mem }}} * 1048576 * 9 / 10))

file=$LARGEK_HOME/jobs/scheduler.json
said() { sed -n "s|.*\"$1\": \"\([^\"]*\)\".*|\1|p" "$file" 2>/dev/null; }

# Print why there is no scheduler to connect to; print nothing if there is one.
why_not() {
    local address
    if ! [ -s "$file" ]; then
        echo "$file does not exist yet"
        return
    fi
    address=$(said address)
    address=${address#*://}
    if ! timeout 5 bash -c "exec 3<>/dev/tcp/${address%:*}/${address##*:}" 2>/dev/null; then
        echo "there is no answer from $address, the address in $file"
    elif [ "$(said version)" != "$version" ]; then
        echo "the scheduler has largek_dask $(said version), but this node has $version: install" \
            "one version everywhere, and check $LARGEK_HOME/site.env"
    fi
}

# Print advice if SLURM runs a scheduler that has not written to this node's folder.
other_folder() {
    local job
    job=$(squeue --noheader --states=RUNNING --name="largek-scheduler:$LARGEK_HOME" --format=%A)
    if [ -n "$job" ] && [ "$job" != "$(said slurm_job)" ]; then
        echo ". SLURM job $job runs the scheduler, but has not written this file: if this" \
            "persists, this node sees another folder. --home must be a folder that all nodes share"
    fi
}

# Print the seconds until SLURM ends this job; one year if there is no limit or no answer.
time_left() {
    squeue --noheader --job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" --format=%L 2>/dev/null |
        awk -F '[-:]' '/^[0-9]/ { for (i = 1; i <= NF; i++) s = s * (NF == 4 && i == 2 ? 24 : 60) + $i
            found = 1 } END { print found ? s : 31536000 }'
}

# A worker usually ends at once, but Dask may wait for half a minute for a connection to close,
# which is longer than the grace time of most sites.
end_in_time() {
    local until=$((SECONDS + 10))
    while kill -0 "$1" 2>/dev/null && [ $SECONDS -lt $until ]; do sleep 0.2; done
    kill -KILL "$1" 2>/dev/null
}

# End five to nine minutes before the limit, so that workers do not end all at once.
last=$((SECONDS + $(time_left) - 300 - RANDOM % 240))

waited=$SECONDS say_next=$((SECONDS + 30))
while [ -z "$ending" ]; do
    if [ $SECONDS -ge $last ]; then exit 75; fi
    reason=$(why_not)
    # The signal may also have interrupted the check.
    if [ -n "$ending" ]; then break; fi
    if [ -n "$reason" ]; then
        if [ $SECONDS -ge $say_next ]; then
            say "waiting for the scheduler: $reason$(other_folder)"
            say_next=$((SECONDS + 60))
        fi
        # Check often in the first minute, in which the scheduler usually starts.
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
        --local-directory "$LARGEK_SCRATCH" --dashboard-address "{{ worker_dashboard }}" \
        --death-timeout 60 --lifetime $((last - SECONDS)) "${options[@]}" "${secured[@]}" &
    # `wait` also returns when a signal arrives.
    while
        # Also end a worker that started too late to receive the signal.
        if [ -n "$ending" ]; then end_in_time $!; fi
        wait $!
        code=$?
        kill -0 $! 2>/dev/null
    do :; done
    if [ -z "$ending" ]; then say "the worker ended with exit code $code"; sleep 1; fi
    waited=$SECONDS say_next=$((SECONDS + 30))
done
exit 75
