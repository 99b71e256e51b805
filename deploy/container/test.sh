#!/usr/bin/env bash
# The container test, `make container-test`: builds both images of the Dockerfile with podman, then
# runs tests/deploy/test_container.py against the real docker-compose.yml. Needs no Docker engine.
#
# Stand-ins, so that it needs no registry of images: Debian bookworm with its
# Python for the python and CUDA images, Debian's Prometheus for Prometheus's own. So what this shows
# is that the files build, start, serve and stop; not that NVIDIA's images fit, nor anything of a GPU.
#
#   CONTAINER_TEST_KERNELS=1   compile the kernels with the nvcc in CUDA_HOME (else: the library
#                              without kernels, which `make kernels` builds in full)
#   CONTAINER_TEST_RECORD=1    build the CPU image without a cache, and write results.json
#   CONTAINER_TEST_DIR=DIR     storage of images, kept for the next run; build/container by default
#   TORCH_SOURCE='--find-links DIR'   where uv finds PyTorch's CPU wheel
set -euo pipefail
cd "$(dirname "$0")/../.."
here=deploy/container
work=$(realpath -m "${CONTAINER_TEST_DIR:-build/container}")
cuda_home=${CUDA_HOME:-/usr/local/cuda}
export PATH=$PWD/.venv/bin:$PATH
say() { echo "[$SECONDS s] $*"; }

main() {
  local rc=0
  $here/install-podman.sh || rc=$?
  # 3: it cannot be installed here, which is no failure of what is tested; the reason stands above.
  if [ $rc = 3 ]; then
    echo "container test: skipped"
    exit 0
  fi
  [ $rc = 0 ] || exit $rc
  configure
  base_image
  build_images
  # Namespaces of its own: the stack's processes, mounts, bridges and rules go away with them, however
  # the test ends.
  unshare --net --mount --pid --fork --kill-child --mount-proc "$here/test.sh" inner "$@"
  say "container test: passed"
}

configure() {
  mkdir -p "$work"
  export CONTAINERS_CONF=$work/containers.conf CONTAINERS_STORAGE_CONF=$work/storage.conf
  # podman asks for higher limits than a sandboxed root may set.
  cat > "$CONTAINERS_CONF" <<CONF
[containers]
default_ulimits = ["nofile=$(ulimit -Hn):$(ulimit -Hn)", "nproc=32768:32768"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "$work/run/libpod"
[network]
network_backend = "netavark"
network_config_dir = "$work/networks"
CONF
  printf '[storage]\ndriver = "overlay"\ngraphroot = "%s/storage"\nrunroot = "%s/run/storage"\n' \
    "$work" "$work" > "$CONTAINERS_STORAGE_CONF"
}

# Debian with Python, and with the host's certificates and pip settings, for hosts behind a proxy.
base_image() {
  podman image exists localhost/standin && return
  local etc=$work/etc bundle=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
  mkdir -p "$etc"
  printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' > "$etc/pip.conf"
  mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3,python3-venv \
    --customize-hook="cp '$bundle' \"\$1/etc/ssl/certs/ca-certificates.crt\"" \
    --customize-hook="cp '$etc/pip.conf' \"\$1/etc/pip.conf\"" \
    bookworm "$work/base.tar"
  podman import --quiet --change 'ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt' \
    "$work/base.tar" localhost/standin > /dev/null
  rm "$work/base.tar"
  say "base image"
}

build_images() {
  local folder mounts=() torch_source=${TORCH_SOURCE:-}
  local kernel_flags=-DSWIGLU_BUILD_CUDA=OFF
  folder=$(local_torch)
  if [ -z "$torch_source" ] && [ -n "$folder" ]; then
    torch_source="--find-links $folder"
    mounts+=(--volume "$folder:$folder:ro")
  fi
  if [ "${CONTAINER_TEST_KERNELS:-}" = 1 ]; then
    # Debian's base has no cuobjdump.
    kernel_flags=-DSWIGLU_CHECK_SASS=OFF\ -DCMAKE_CUDA_COMPILER=/usr/local/cuda/bin/nvcc
    mounts+=(--volume "$(realpath "$cuda_home"):/usr/local/cuda:ro")
  fi
  local began=$SECONDS fresh=()
  [ "${CONTAINER_TEST_RECORD:-}" = 1 ] && fresh+=(--no-cache)
  build cpu --target cpu --build-arg PYTHON_IMAGE=localhost/standin "${fresh[@]}" \
    --build-arg TORCH_SOURCE="${torch_source:---torch-backend=cpu}" "${mounts[@]}" .
  if [ "${CONTAINER_TEST_RECORD:-}" = 1 ]; then
    python $here/record.py $((SECONDS - began)) "$(size tilemlp:cpu)" "$(size standin)"
  fi
  build gpu --build-arg CUDA_DEVEL_IMAGE=localhost/standin \
    --build-arg CUDA_RUNTIME_IMAGE=localhost/standin \
    --build-arg GPU_LOCK=$here/cpu.lock --build-arg GPU_TORCH_SOURCE="$torch_source" \
    --build-arg KERNEL_CMAKE_FLAGS="$kernel_flags" "${mounts[@]}" .
  build prometheus -f $here/Dockerfile.prometheus --build-arg BASE_IMAGE=localhost/standin $here
}

# Folder of pip's own find-links that holds a CPU wheel of PyTorch, or nothing.
local_torch() {
  local folder
  for folder in ${PIP_FIND_LINKS:-}; do
    compgen -G "$folder/torch-*cpu*.whl" > /dev/null && { echo "$folder"; return; }
  done
  return 0
}

build() {
  local name=$1 tag=tilemlp:$1 began=$SECONDS
  shift
  [ "$name" = prometheus ] && tag=prometheus-standin
  podman build --format docker --network host -t "localhost/$tag" "$@" \
    > "$work/build-$name.log" 2>&1 || { tail -40 "$work/build-$name.log"; exit 1; }
  say "image $tag: $((SECONDS - began)) s, $(size "$tag") bytes"
}

size() { podman image inspect --format '{{.Size}}' "localhost/$1"; }

# In namespaces of its own.
inner() {
  ip link set lo up
  # Where podman, its runtime and its name server keep what runs: nothing of a run before this one.
  mkdir -p "$work/run"
  mount -t tmpfs tmpfs "$work/run"
  mount -t tmpfs tmpfs /run
  export DOCKER_HOST=unix://$work/run/podman.sock TILEMLP_CONTAINER_TEST=1
  podman system service --time=0 "$DOCKER_HOST" 2> "$work/service.log" &
  # podman leaves its health checks to systemd's timers; without systemd they are run by hand.
  (
    while sleep 0.5; do
      for id in $(podman ps -q); do podman healthcheck run "$id" > /dev/null 2>&1 || :; done
    done
  ) &
  for _ in $(seq 100); do [ -S "$work/run/podman.sock" ] && break; sleep 0.1; done
  python -m pytest -p no:cacheprovider -m container tests/deploy "$@"
}

if [ "${1:-}" = inner ]; then shift; inner "$@"; else main "$@"; fi; exit
