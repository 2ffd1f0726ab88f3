#!/bin/sh
# Print the name of a base image that this engine has, for `sandbox-kernel image build --base`.
#
# base.sh            the registry's Python image; Debian 12 where no registry can be reached
# base.sh RELEASE    Debian RELEASE (`bookworm`, `trixie`, …) by debootstrap, as root
#
# The debootstrap archive is kept in the user's cache; delete it for newer packages.
set -eu

registry_image=python:3.12-slim-bookworm
release=${1:-}

fail() { echo "$0: $1" >&2; exit 1; }

if [ -z "$release" ]; then
    if docker image inspect $registry_image >/dev/null 2>&1 ||
        timeout 300 docker pull --quiet $registry_image >/dev/null 2>&1; then
        echo $registry_image
        exit 0
    fi
    echo "cannot pull \`$registry_image\`; making a base from Debian packages" >&2
    release=bookworm
fi

# `libnss-myhostname` knows `localhost` where `/etc/hosts` is empty.
packages=python3,libnss-myhostname
# There pip still installs through distutils, which Debian packages apart.
[ "$release" != bullseye ] || packages=$packages,python3-distutils
recipe=$(echo "$packages" | sha256sum | cut -c1-8)

image=sandbox-kernel/base:$release-$recipe
if docker image inspect "$image" >/dev/null 2>&1; then
    echo "$image"
    exit 0
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/sandbox-kernel
archive=$cache/debian-$release-$recipe-$(uname -m).tar
if [ ! -e "$archive" ]; then
    [ "$(id -u)" = 0 ] || fail "cannot make a Debian base: \`debootstrap\` needs root"
    command -v debootstrap >/dev/null || "$(dirname "$0")/apt.sh" debootstrap
    mkdir -p "$cache"
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    echo "debootstrap $release, about a minute" >&2
    debootstrap --variant=minbase --include=$packages "$release" "$root" >"$cache/debootstrap.log" 2>&1 ||
        fail "debootstrap failed: $(tail -n 1 "$cache/debootstrap.log")"
    # Half of the size; no program needs any of it.
    rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* \
        "$root"/usr/share/doc "$root"/usr/share/man "$root"/usr/share/locale
    tar -C "$root" --numeric-owner -cf "$archive.part" .
    mv "$archive.part" "$archive"
fi
docker import "$archive" "$image" >/dev/null
echo "$image"
