#!/bin/sh
# Install Debian packages; for anybody but root, only say which are missing.
set -eu
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing: \`$*\`; install it, or run this as root on Debian" >&2
    exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y "$@" >/dev/null
