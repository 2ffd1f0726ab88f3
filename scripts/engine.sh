#!/bin/sh
# Make sure that a Docker engine answers: the one there is, else Debian's, as root.
# Invariant: an engine that answers is left as it is, and one that was named is not replaced.
set -eu

answers() { timeout 20 docker info >/dev/null 2>&1; }
fail() { echo "$0: $1" >&2; exit 1; }

answers && exit 0
[ -z "${DOCKER_HOST:-}" ] || fail "no engine answers at DOCKER_HOST=\`$DOCKER_HOST\`"
[ "$(id -u)" = 0 ] ||
    fail "no Docker engine answers this user; install one (Debian: \`docker.io\`) and join its group \`docker\`"

command -v dockerd >/dev/null || "$(dirname "$0")/apt.sh" docker.io
# A package of its own since Debian 13.
command -v docker >/dev/null || "$(dirname "$0")/apt.sh" docker-cli

log=/var/log/sandbox-kernel-dockerd.log
if [ -d /run/systemd/system ]; then
    systemctl start docker
elif ! answers; then
    mountpoint -q /sys/fs/cgroup || cgroupfs-mount
    echo "starting dockerd in the background; it logs to $log"
    setsid dockerd >"$log" 2>&1 </dev/null &
fi

for _ in $(seq 60); do
    answers && exit 0
    sleep 1
done
tail -n 5 "$log" >&2 || true
fail "the engine was started and does not answer"
