# The service in two images out of one file:
#
#   docker build -t tilemlp:gpu .                  kernels for Hopper (sm_90a) and PyTorch with CUDA
#   docker build -t tilemlp:cpu --target cpu .     the same service without a GPU, x86-64
#
# Digests are left open, because a tag's digest depends on the day it was pulled: pin them with
# --build-arg CUDA_DEVEL_DIGEST=@sha256:... and its like (`docker buildx imagetools inspect TAG`).
ARG CUDA_TAG=13.0.2
ARG CUDA_DEVEL_DIGEST=
ARG CUDA_RUNTIME_DIGEST=
ARG CUDA_DEVEL_IMAGE=nvidia/cuda:${CUDA_TAG}-devel-ubuntu24.04${CUDA_DEVEL_DIGEST}
ARG CUDA_RUNTIME_IMAGE=nvidia/cuda:${CUDA_TAG}-runtime-ubuntu24.04${CUDA_RUNTIME_DIGEST}
ARG PYTHON_DIGEST=
ARG PYTHON_IMAGE=python:3.11-slim-bookworm${PYTHON_DIGEST}


# --- The kernels: needs nvcc, CMake and the pinned CUTLASS wheel; eight minutes and more on two cores.
FROM ${CUDA_DEVEL_IMAGE} AS kernels
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates cmake g++ make ninja-build python3 python3-pip \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY third_party third_party
# -DSWIGLU_BUILD_CUDA=OFF builds the library without kernels, and needs no nvcc.
ARG KERNEL_CMAKE_FLAGS=
# Two files at once: each takes up to 5.5 GB.
ARG KERNEL_JOBS=2
COPY csrc csrc
# hadolint ignore=DL3059,SC2086
RUN cmake -S csrc -B build/csrc -G Ninja -DSWIGLU_CUDA_JOBS=${KERNEL_JOBS} ${KERNEL_CMAKE_FLAGS} \
 && cmake --build build/csrc \
 && strip build/csrc/libswiglu.so
# What serves clients that repeat themselves.
COPY Makefile ./
RUN make lane && strip build/lane/liblane.so


# --- What both final stages are based on: Python and an init, nothing that compiles.
FROM ${PYTHON_IMAGE} AS cpu-base
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tilemlp

FROM ${CUDA_RUNTIME_IMAGE} AS gpu-base
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tilemlp


# --- The packages, from a lock with hashes, and apart from them the service itself, so that a change of
# ours leaves the large layer alone. PyTorch's headers and the tests in its wheel go: 200 MB that nothing
# here compiles against or runs.
FROM cpu-base AS cpu-packages
WORKDIR /src
COPY deploy/container/build.lock deploy/container/cpu.lock ./
# Where uv finds PyTorch's CPU wheel: PyPI's for x86-64 needs CUDA.
ARG TORCH_SOURCE=--torch-backend=cpu
# hadolint ignore=DL3003,SC2086
RUN python3 -m venv /build \
 && /build/bin/pip install --no-cache-dir --require-hashes -r build.lock \
 && /build/bin/uv venv --python python3 /opt/tilemlp \
 && /build/bin/uv pip install --no-cache --python /opt/tilemlp --compile-bytecode --require-hashes -r cpu.lock ${TORCH_SOURCE} \
 && cd /opt/tilemlp/lib/python3*/site-packages/torch \
 && rm -rf include test && find bin -type f ! -name torch_shm_manager -delete

FROM cpu-base AS cpu-lane
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ make \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Makefile ./
COPY csrc/lane csrc/lane
RUN make lane && strip build/lane/liblane.so

FROM cpu-packages AS cpu-service
COPY pyproject.toml README.md ./
COPY service service
RUN /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist . \
 && /build/bin/uv pip install --no-cache --python /opt/tilemlp --prefix /service --compile-bytecode --no-deps dist/*.whl
COPY --from=cpu-lane /src/build/lane/liblane.so ./
# Where service/workers/lane_library.py looks first: beside itself.
RUN install -m 0644 liblane.so /service/lib/python3*/site-packages/service/workers/

FROM gpu-base AS gpu-packages
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
ARG GPU_LOCK=deploy/container/gpu.lock
ARG GPU_TORCH_SOURCE=
COPY deploy/container/build.lock ${GPU_LOCK} ./
# hadolint ignore=DL3003,SC2086
RUN python3 -m venv /build \
 && /build/bin/pip install --no-cache-dir --require-hashes -r build.lock \
 && /build/bin/uv venv --python python3 /opt/tilemlp \
 && /build/bin/uv pip install --no-cache --python /opt/tilemlp --compile-bytecode --require-hashes -r "${GPU_LOCK##*/}" ${GPU_TORCH_SOURCE} \
 && cd /opt/tilemlp/lib/python3*/site-packages/torch \
 && rm -rf include test && find bin -type f ! -name torch_shm_manager -delete

FROM gpu-packages AS gpu-service
COPY pyproject.toml README.md ./
COPY service service
RUN /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist . \
 && /build/bin/uv pip install --no-cache --python /opt/tilemlp --prefix /service --compile-bytecode --no-deps dist/*.whl
COPY --from=kernels /src/build/csrc/libswiglu.so /src/build/lane/liblane.so ./
# Where service/kernels/library.py and service/workers/lane_library.py look first: beside themselves.
RUN install -m 0644 libswiglu.so /service/lib/python3*/site-packages/service/kernels/ \
 && install -m 0644 liblane.so /service/lib/python3*/site-packages/service/workers/


# --- The images. Both run as a user without a name in any other file, on a root that may be read-only
# (compose gives /tmp), with tini as process 1: it passes SIGTERM on and reaps.
FROM cpu-base AS cpu
COPY --from=cpu-packages /opt/tilemlp /opt/tilemlp
COPY --from=cpu-service /service /opt/tilemlp
COPY deploy/container/healthcheck.py /opt/tilemlp/
ENV PATH=/opt/tilemlp/bin:${PATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MLP_HOST=0.0.0.0
LABEL org.opencontainers.image.title="tilemlp" \
      org.opencontainers.image.description="SwiGLU MLPs of LLMs over HTTP, on the CPU"
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000
# SIGTERM drains: MLP_SHUTDOWN_GRACE_S, 30 s, so give it 40 s (docker run --stop-timeout 40).
STOPSIGNAL SIGTERM
# A large checkpoint takes minutes to load; the first success ends the start period.
HEALTHCHECK --interval=5s --timeout=4s --start-period=600s --retries=3 \
    CMD ["python", "-I", "-S", "/opt/tilemlp/healthcheck.py"]
ENTRYPOINT ["tini", "--", "tilemlp"]
CMD ["serve"]

FROM gpu-base AS gpu
COPY --from=gpu-packages /opt/tilemlp /opt/tilemlp
COPY --from=gpu-service /service /opt/tilemlp
COPY deploy/container/healthcheck.py /opt/tilemlp/
ENV PATH=/opt/tilemlp/bin:${PATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MLP_HOST=0.0.0.0
LABEL org.opencontainers.image.title="tilemlp" \
      org.opencontainers.image.description="SwiGLU MLPs of LLMs over HTTP, on fused Hopper kernels"
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=4s --start-period=600s --retries=3 \
    CMD ["python", "-I", "-S", "/opt/tilemlp/healthcheck.py"]
ENTRYPOINT ["tini", "--", "tilemlp"]
CMD ["serve"]
