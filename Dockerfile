# syntax=docker/dockerfile:1
# One image for scheduler and workers: docker build -t largek_dask .
# With JupyterLab, for notebooks: docker build -t largek_dask:latest-notebook --target notebook .
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
WORKDIR /source
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY largek_dask ./largek_dask
RUN python3 -m venv /opt/largek \
    && /opt/largek/bin/pip install --no-cache-dir --no-compile ".[s3,parquet,hdf5,metrics]"

# A fifth of all bytes is what nothing here imports or reads: packages' own tests, pip, Arrow's Flight
# and headers, and symbols for debuggers.
FROM build AS lean
COPY deploy/lean.py ./
RUN find /opt/largek/lib -type d -path "*/site-packages/*/tests" \
        -regex ".*/site-packages/\(numba\|pandas\|pyarrow\|scipy\|sklearn\)/.*" \
        -prune -exec rm -r {} + \
    && find /opt/largek/lib \( -path "*/site-packages/pip" -o -path "*/pyarrow/include" \
        -o -path "*/pyarrow/*flight*" \) \
        -prune -exec rm -r {} + \
    && python3 lean.py /opt/largek/lib

FROM ${BASE} AS largek
LABEL org.opencontainers.image.title="largek_dask" \
      org.opencontainers.image.description="Large-scale clustering on Dask" \
      org.opencontainers.image.licenses="BSD-3-Clause"
# By number, for Kubernetes' runAsNonRoot; the base need not have useradd.
RUN echo "largek:x:1000:1000::/home/largek:/usr/sbin/nologin" >> /etc/passwd \
    && echo "largek:x:1000:" >> /etc/group \
    && install -d -o 1000 -g 1000 /home/largek /scratch /store
COPY --from=lean /opt/largek /opt/largek
# Bytecode of all packages would be a tenth of the image. What a process has compiled of them is
# found by those after it, which so begin in half the time; nothing is kept where scratch is not to
# be written.
ENV PATH=/opt/largek/bin:$PATH \
    HOME=/home/largek \
    PYTHONPYCACHEPREFIX=/scratch/.bytecode \
    XDG_CACHE_HOME=/opt/largek/cache \
    OPENBLAS_NUM_THREADS=1 \
    OMP_NUM_THREADS=1 \
    LARGEK_HEALTH=http://127.0.0.1:8787/health
# Kernels that usual fits need are compiled here for the machine that builds. Where another
# processor needs others, they are compiled in memory, as the image cannot be written: an image for
# another kind of processor is made sooner, and is smaller, by --build-arg KERNELS=no.
ARG KERNELS=yes
RUN install -d /opt/largek/cache \
    && if [ "$KERNELS" = yes ]; then PYTHONDONTWRITEBYTECODE=1 largek warmup; fi \
    && chmod -R a+rX /opt/largek/cache
USER 1000:1000
WORKDIR /scratch
STOPSIGNAL SIGTERM
# Of a scheduler; LARGEK_HEALTH is the address of whatever else runs here.
HEALTHCHECK --interval=5s --timeout=15s --start-period=120s --retries=12 CMD ["python", "-c", \
    "import os, urllib.request as u; u.urlopen(os.environ[\"LARGEK_HEALTH\"], timeout=10)"]
CMD ["largek", "--help"]

FROM build AS build-notebook
RUN /opt/largek/bin/pip install --no-cache-dir --no-compile ".[plots]" "jupyterlab>=4.2"

FROM largek AS notebook
USER 0
COPY --from=build-notebook /opt/largek /opt/largek
RUN install -d -o 1000 -g 1000 /notebooks
USER 1000:1000
WORKDIR /notebooks
ENV HOME=/notebooks \
    LARGEK_HEALTH=http://127.0.0.1:8888/api
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--port=8888", "--no-browser"]

# What is built without --target.
FROM largek AS last
