#!/bin/bash
# Trains a small GPT three times through PyTorch's CUDA build: with all the memory it asks for, with
# half of that, and with half of that and Firn. Prints a table and a timeline of memory; writes
# build/demo/summary.json and build/demo/timeline.png. On a machine without a GPU it uses the GPU in
# software. The status is 0 only when the run with Firn ended with the same bits.
#
#   bench/demo.sh [--steps N] [--budget SIZE] [--host SIZE] [--dir DIR] [--keep]
#
#   --steps N      training steps [12]
#   --budget SIZE  GPU memory of the capped runs [half of the unlimited run's peak]
#   --host SIZE    pinned host memory that Firn may use before it writes files [128MiB]
#   --dir DIR      where the spill file goes [build/demo/spill]
#   --keep         keep the trace (build/demo/trace.csv)
set -uo pipefail
here=$PWD
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit 1

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' bench/demo.sh; }
refuse() { echo "demo.sh: $1 (--help lists the options)" >&2; exit 2; }

steps=12 budget='' host=128MiB dir='' keep=no
while [ $# -gt 0 ]; do
  case $1 in
    --steps | --budget | --host | --dir)
      [ $# -ge 2 ] || refuse "$1 needs a value"
      case $1 in
        --steps) steps=$2 ;;
        --budget) budget=$2 ;;
        --host) host=$2 ;;
        --dir) dir=$2 ;;
      esac
      shift 2 ;;
    --keep) keep=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) refuse "unknown option $1" ;;
  esac
done
[[ $steps =~ ^[1-9][0-9]{0,5}$ ]] || refuse "--steps $steps: not a number of steps"
case $dir in '' | /*) ;; *) dir=$here/$dir ;; esac

# The caller's own settings must not decide what is compared.
for variable in $(compgen -e FIRN_ | grep -v '^FIRN_PYTHON$'); do unset "$variable"; done
unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF LD_PRELOAD

bash bench/setup.sh || exit 1
out=$PWD/build/demo
python=$PWD/.venv/bin/python
mkdir -p "$out" || exit 1
rm -f "$out"/*.json "$out"/*.log "$out"/trace.csv "$out"/timeline.png
if [ -z "$dir" ]; then
  dir=$out/spill
  mkdir -p "$dir" || exit 1
fi
export MPLCONFIGDIR=$out/matplotlib CUBLAS_WORKSPACE_CONFIG=:4096:8

options=(--steps "$steps")
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  gpu=real
  options+=(--deterministic)
else
  gpu=software
  software=$("$python" -c 'import firn, os
print(os.path.join(os.path.dirname(firn.__file__), "lib", "software"))') || exit 1
  echo "demo: no GPU here; using the GPU in software"
fi

native() {  # SIZE COMMAND...: with PyTorch's own allocator on a GPU of SIZE ("all": what there is)
  local size=$1
  shift
  if [ $gpu = software ]; then
    if [ "$size" = all ]; then size=16GiB; fi
    env FIRN_DEVICE=software FIRN_GPU_MEMORY="$size" \
      LD_PRELOAD="$software/libcudart.so.13:$software/libnccl.so.2:$software/libcuda.so.1" "$@"
  elif [ "$size" = all ]; then
    "$@"
  else
    env PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:$("$python" bench/demo/result.py \
      fraction "$out/unlimited.json" "$size")" "$@"
  fi
}

with_firn() {  # SIZE COMMAND...
  local size=$1 device=(--device auto)
  shift
  if [ $gpu = software ]; then device=(--device software --gpu-memory "$size"); fi
  .venv/bin/firn run "${device[@]}" --budget "$size" --host "$host" --dir "$dir" \
    --stats "$out/stats.json" --trace "$out/trace.csv" -- "$@"
}

train() {  # NAME HOW SIZE: its output goes to a log, without tracebacks' frames to the terminal
  local name=$1 how=$2 size=$3
  "$how" "$size" "$python" bench/demo/train_gpt.py "${options[@]}" --out "$out/$name.json" 2>&1 |
    tee "$out/$name.log" | sed -u '/^Traceback\|^ /d; s/^\(.\{110\}\).*/\1 .../; s/^/  | /'
  return "${PIPESTATUS[0]}"
}

printf '\ndemo: 1. unlimited\n'
train unlimited native all || { echo "demo: the unlimited run failed"; exit 1; }
peak=$("$python" bench/demo/result.py peak "$out/unlimited.json") || exit 1
if [ -z "$budget" ]; then budget=$((peak / 2 / 2097152 * 2097152)); fi
show() { "$python" bench/demo/result.py show "$1"; }

printf '\ndemo: 2. %s without Firn (peak was %s)\n' \
  "$(show "$budget")" "$(show "$peak")"
train without_firn native "$budget"
without_status=$?

printf '\ndemo: 3. %s with Firn\n' "$(show "$budget")"
train firn with_firn "$budget"
firn_status=$?
if [ $firn_status -ne 0 ]; then
  echo "demo: the run with Firn failed (status $firn_status; build/demo/firn.log)"
  exit 1
fi

"$python" bench/demo/compare.py "$out" "$budget" "$without_status"
status=$?
if [ $keep = no ]; then rm -f "$out/trace.csv"; fi
exit $status
