#!/bin/bash
# Firn on a real GPU: what it believes of the driver, bytes, PyTorch, unmodified programs and costs,
# from a checkout and what bench/gpu/pack.sh has put beside it, with no network. Writes
# DIR/results.json after each step. `bench/gpu/run.sh --help` lists the options, `--list` the steps.
#
# FIRN_PYTHON names the Python with torch [.venv/bin/python, else python3].
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd) || exit 1
python=${FIRN_PYTHON:-}
if [ -z "$python" ]; then
  python=python3
  if [ -x "$root/.venv/bin/python" ]; then python=$root/.venv/bin/python; fi
fi
command -v "$python" >/dev/null || { echo "run.sh: no $python (FIRN_PYTHON names another)" >&2; exit 2; }
exec "$python" "$root/bench/gpu/suite.py" "$@"
