#!/bin/bash
# The microbenchmark suite: what Firn costs a job that fits, how fast it is when one does not, beside
# what people use now, on this machine and in one run.
#
#   bench/run.sh [quick] [NAME...] [--out DIR] [--list]
#
# Builds what it needs, installs fio where it can, runs the benches named (all without a name), and
# writes DIR/<machine>-<date>.json, whole after each bench, and a page beside it (.html). Compare
# two results with bench/compare A.json B.json. DIR is bench/results where that can be written.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit 1
for word in "$@"; do
  case $word in
    -h | --help | --list) [ ! -x .venv/bin/python ] || exec env PYTHONPATH=bench .venv/bin/python -m firn_bench.run "$@" ;;
  esac
done
bash bench/setup.sh --tests || exit 1
export PATH="$PWD/.venv/bin:$PATH"
.venv/bin/ninja -C build bench/engine/engine_bench bench/overhead/libcalls.so \
  bench/store/store_bench bench/lifetimes/decide_bench bench/lifetimes/history_bench >build/bench.log ||
  { tail -n 20 build/bench.log; echo "bench/run.sh: building failed (build/bench.log)"; exit 1; }
if ! command -v fio >/dev/null; then
  root=()
  [ "$(id -u)" = 0 ] || root=(sudo -n)
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends \
    fio >>build/bench.log 2>&1 || echo "bench/run.sh: fio could not be installed: it is left out"
fi
exec env PYTHONPATH=bench .venv/bin/python -m firn_bench.run "$@"
