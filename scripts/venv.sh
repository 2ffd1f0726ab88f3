#!/bin/sh
# Make .venv and install the project into it with what its tests need.
# Invariant: touches the system only as root, and only for Debian's python3-venv.
set -eu
cd "$(dirname "$0")/.."

fail() { echo "$0: $1" >&2; exit 1; }

command -v python3 >/dev/null || fail "needs \`python3\` >= 3.11"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "needs \`python3\` >= 3.11, and this one is $(python3 -V)"

# Debian ships `venv` without `ensurepip`, and then `python3 -m venv` stops half-way.
python3 -c 'import ensurepip' 2>/dev/null || scripts/apt.sh python3-venv

[ -x .venv/bin/python ] || python3 -m venv .venv
# `--group` came with pip 25.1.
.venv/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
.venv/bin/python -m pip install --quiet --editable . --group test
.venv/bin/sandbox-kernel install --sys-prefix --provider docker
