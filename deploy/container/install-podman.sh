#!/usr/bin/env bash
# Installs what the container test needs besides Python packages, where it is missing: podman with
# runc (crun cannot run on a cgroup hierarchy of both versions), its network tools, and mmdebstrap,
# which makes the base images. Exits with 3 and a reason where that is impossible.
set -euo pipefail
missing=()
for pair in podman:podman runc:runc mmdebstrap:mmdebstrap ip:iproute2 iptables:iptables unshare:util-linux; do
  command -v "${pair%%:*}" > /dev/null || missing+=("${pair##*:}")
done
for tool in netavark aardvark-dns; do
  [ -x "/usr/lib/podman/$tool" ] || missing+=("$tool")
done
[ "$(id -u)" = 0 ] || { echo "the container test needs root: it makes network namespaces and mounts"; exit 3; }
[ ${#missing[@]} = 0 ] && exit 0
command -v apt-get > /dev/null || { echo "missing, and no apt-get here: ${missing[*]}"; exit 3; }
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
