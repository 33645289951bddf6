#!/bin/bash
# The microbenchmark suite: what Firn costs a job that fits, how fast it is when one does not,
# beside what people use now, on this machine and in one run.
#
#   bench/run.sh [quick] [NAME...] [--out DIR] [--list]
#
# Builds what it needs, installs peers where it can (fio and libaio from Debian; RMM and DeepSpeed
# from PyPI, below build/peers), runs the benches named (all without a name), and writes
# DIR/<machine>-<date>[-NAMES].json, whole after each bench, and beside it a page (.html) and plots
# (.png). Compare two results with bench/compare A.json B.json. DIR is bench/results where that can
# be written.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit 1
for word in "$@"; do
  case $word in
    -h | --help | --list)
      [ ! -x .venv/bin/python ] ||
        exec env PYTHONPATH=bench .venv/bin/python -m firn_bench.run "$@" ;;
  esac
done
bash bench/setup.sh --tests || exit 1
export PATH="$PWD/.venv/bin:$PATH"
.venv/bin/ninja -C build bench/engine/engine_bench bench/overhead/libcalls.so \
  bench/engine/moving_bench bench/store/store_bench bench/store/sum_bench \
  bench/lifetimes/decide_bench bench/lifetimes/history_bench >build/bench.log ||
  { tail -n 20 build/bench.log; echo "bench/run.sh: building failed (build/bench.log)"; exit 1; }
root=()
[ "$(id -u)" = 0 ] || root=(sudo -n)
for package in fio libaio-dev; do  # libaio-dev: DeepSpeed's
  [ "$(dpkg-query -W -f='${db:Status-Status}' $package 2>/dev/null)" != installed ] || continue
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 \
    install --no-install-recommends $package >>build/bench.log 2>&1 ||
    echo "bench/run.sh: $package could not be installed: what needs it is left out"
done
exec env PYTHONPATH=bench .venv/bin/python -m firn_bench.run "$@"
