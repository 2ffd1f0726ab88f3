#!/bin/sh
# Download what the image installs, for the Python in a base image, and print the directory.
#
# wheels.sh BASE
#
# Downloaded by the host, because a build's container may have neither the network nor the
# certificates that the host has.  Kept in the user's cache; delete it for newer packages.
set -eu
cd "$(dirname "$0")/.."

requirements=sandbox_kernel/image/requirements.txt
# As in `3.11 x86_64 36`: the version of Python, the machine, and glibc's minor version.
set -- $(docker run --rm --network none --entrypoint python3 "$1" -Ic 'import platform, sys
print("%d.%d" % sys.version_info[:2], platform.machine(), platform.libc_ver()[1].split(".")[1])')
python=$1 machine=$2 glibc=$3

recipe=$(sha256sum $requirements | cut -c1-12)
wheels=${XDG_CACHE_HOME:-$HOME/.cache}/sandbox-kernel/wheels-$python-$machine-$glibc-$recipe
if [ ! -d "$wheels" ]; then
    rm -rf "$wheels.part"
    # pip judges `python_version < "3.11"` by the Python that it runs on, so what only an older
    # one needs is named here.  2.17 is the oldest glibc that packages still build for.
    .venv/bin/python -m pip download -qq --only-binary=:all: --dest "$wheels.part" \
        --implementation cp --python-version "$python" --platform "manylinux2014_$machine" \
        $(seq -f "--platform manylinux_2_%g_$machine" 17 "$glibc") --requirement $requirements \
        exceptiongroup importlib-resources typing-extensions zipp >&2
    mv "$wheels.part" "$wheels"
fi
echo "$wheels"
