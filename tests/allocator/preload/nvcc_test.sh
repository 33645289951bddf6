#!/bin/bash
# Programs that nvcc builds, with the static and with the shared runtime: what these ask of the
# driver arrives at Firn's entries, as far as they get on the software GPU, which has no private
# tables for them. nvcc_test.sh LIBFIRN_PRELOAD PROGRAM.cu ; 77: no nvcc.
set -u
nvcc=$(bash "$(dirname "$0")/../../nvcc.sh") || { echo "no nvcc"; exit 77; }
preload=$(realpath "$1") source=$(realpath "$2")
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
root=$(dirname "$(dirname "$(realpath "$nvcc")")")
failed=0
for runtime in static shared; do
  if ! "$nvcc" -cudart $runtime -o "$folder/$runtime" "$source" >"$folder/log" 2>&1; then
    echo "nvcc does not work here:"
    cat "$folder/log"
    exit 77
  fi
  FIRN_DEVICE=software FIRN_GPU_MEMORY=1GiB FIRN_STATS=$folder/$runtime.json \
    LD_LIBRARY_PATH=$root/lib64:$root/lib:$root/targets/x86_64-linux/lib \
    LD_PRELOAD=$preload "$folder/$runtime" >"$folder/$runtime.out"
  report=$(tr -d ' \n' <"$folder/$runtime.json")
  # Every handled entry that a runtime asks for by its name of today.
  for entry in cuGetProcAddress_v2 cuMemAlloc_v2 cuMemFree_v2 cuMemGetInfo_v2; do
    if ! grep -q "\"hooked\":\[[^]]*\"$entry\"" <<<"$report"; then
      echo "$runtime runtime: $entry is not among the hooked entries"
      failed=1
    fi
  done
  asked=$(sed 's/.*"calls":{[^}]*"cuGetProcAddress_v2":\([0-9]*\).*/\1/' <<<"$report")
  if ! [ "$asked" -gt 100 ] 2>/dev/null; then
    echo "$runtime runtime: asked $asked times"
    failed=1
  fi
  if ! grep -q '"unknown":\[\]' <<<"$report"; then
    echo "$runtime runtime: entries that Firn does not know"
    failed=1
  fi
  [ $failed = 0 ] || cat "$folder/$runtime.json" "$folder/$runtime.out"
done
exit $failed
