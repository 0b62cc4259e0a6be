# syntax=docker/dockerfile:1
# One image for scheduler, workers and notebooks: docker build -t largek_dask .
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md CHANGELOG.md LICENSE ./
COPY largek_dask ./largek_dask
RUN python3 -m venv /opt/largek \
    && /opt/largek/bin/pip install --no-cache-dir --no-compile ".[s3,parquet,hdf5,metrics]"

FROM ${BASE}
LABEL org.opencontainers.image.title="largek_dask" \
      org.opencontainers.image.description="Large-scale clustering on Dask" \
      org.opencontainers.image.licenses="BSD-3-Clause"
# By number, for Kubernetes' runAsNonRoot; the base need not have useradd.
RUN echo "largek:x:1000:1000::/home/largek:/usr/sbin/nologin" >> /etc/passwd \
    && echo "largek:x:1000:" >> /etc/group \
    && install -d -o 1000 -g 1000 /home/largek /scratch /store
COPY --from=build /opt/largek /opt/largek
ENV PATH=/opt/largek/bin:$PATH \
    HOME=/home/largek \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_CACHE_HOME=/opt/largek/cache \
    OPENBLAS_NUM_THREADS=1 \
    OMP_NUM_THREADS=1
# Kernels that usual fits need are compiled here for the machine that builds; where another
# processor needs others, they are compiled in memory, as the image cannot be written.
RUN largek warmup && chmod -R a+rX /opt/largek/cache
USER 1000:1000
WORKDIR /scratch
STOPSIGNAL SIGTERM
CMD ["largek", "--help"]
