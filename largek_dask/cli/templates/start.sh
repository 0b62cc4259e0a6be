if [ -r "$LARGEK_HOME/site.env" ]; then . "$LARGEK_HOME/site.env"; fi
if ! version=$(python3 -c 'from largek_dask.version import __version__; print(__version__)'); then
    say "$(command -v python3) cannot import largek_dask: load it in $LARGEK_HOME/site.env"
    exit 1
fi
options=()
{% if interface %}
if ! [ -e "/sys/class/net/{{ interface }}" ]; then
    say "there is no network interface {{ interface }}; use one of $(ls -x /sys/class/net)"
    exit 1
fi
options+=(--interface "{{ interface }}")
{% endif %}
export OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 OMP_NUM_THREADS=1
# All processes share one cache of compiled kernels, with a folder per kind of processor.
export DASK_LARGEK__KERNELS__CACHE_DIR="${DASK_LARGEK__KERNELS__CACHE_DIR:-$LARGEK_HOME}"
