#!/bin/bash
# Prints the path of nvcc: that of PATH, of /usr/local/cuda, or the one which bench/setup.sh
# installs into .venv. Status 1: there is none.
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd) || exit 1
command -v nvcc && exit
for path in /usr/local/cuda/bin/nvcc \
    "$root"/.venv/lib/python3*/site-packages/nvidia/cu13/bin/nvcc; do
  [ -x "$path" ] && echo "$path" && exit
done
exit 1
