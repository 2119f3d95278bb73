#!/usr/bin/env bash
# Runs the fast tests with Python 3.13 and the newest version of every dependency that pip finds.
#
#   experiments/newest.sh                          # arguments go to pytest
#   PYTHON=.../python3.13 experiments/newest.sh    # one that is not on the PATH
#
# What pip chose is in .cache/newest/versions.txt. Where the machine has no Python 3.13, it comes from
# a root of Debian 13 in .cache/newest/root, which needs root and debootstrap. Remove .cache/newest to
# begin again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
newest=$PWD/.cache/newest root=$PWD/.cache/newest/root
export PYTHON=${PYTHON:-python3.13}
packages=python3.13,python3.13-venv,bash,bubblewrap,ca-certificates,git,make,procps

# Runs in the folder of the repository, with its path outside.
if [ "${1-}" = --inside ]; then
  shift
  if [ ! -e "$newest/versions.txt" ]; then
    "$PYTHON" -m venv --clear "$newest/venv"
    "$newest/venv/bin/pip" install --upgrade --quiet -e '.[dev]'
    "$newest/venv/bin/pip" freeze --exclude-editable > "$newest/versions.txt"
  fi
  grep -E '^(jax|flax|optax|orbax-checkpoint|transformers|numpy|hydra-core|mlflow)==' "$newest/versions.txt"
  exec "$newest/venv/bin/python" -m pytest -n 3 --max-worker-restart 0 --dist loadfile \
    --no-loadscope-reorder "$@"
fi

mkdir -p "$newest"
if "$PYTHON" -c '' 2>/dev/null; then
  exec bash experiments/newest.sh --inside "$@"
fi
if [ ! -e "$root/usr/bin/python3.13" ]; then
  # A half-made root would be taken for a whole one: it gets its name when it is complete.
  rm -rf "$root.part"
  debootstrap --variant=minbase --include="$packages" trixie "$root.part"
  mv "$root.part" "$root"
fi
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
mkdir -p "$root$PWD"
# The mounts end with this process, since no other sees them.
exec unshare --mount --fork --pid bash -euc '
  root=$1; shift
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/tmp"
  mount --bind "$PWD" "$root$PWD"
  exec chroot "$root" bash -c "cd \"$PWD\"; exec bash experiments/newest.sh --inside \"\$@\"" _ "$@"
' _ "$root" "$@"
