#!/bin/bash
# The report of a driver that is newer and older than Firn. other_driver_test.sh PRELOAD DRIVER TEST
set -u
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
ln -s "$(realpath "$2")" "$folder/libcuda.so.1"
FIRN_DRIVER=$folder/libcuda.so.1 FIRN_STATS=$folder/stats.json LD_PRELOAD=$(realpath "$1") \
  "$3" || exit 1
failed=0
for words in '"name":"cuBrandNew","version":14020' '"missing":["cuNobodyHasIt"]' \
  'cuBrandNew (requested as of CUDA 14.2) is newer than this Firn' \
  'the program called cuCtxSynchronize, which this driver lacks' '"devices":[]'; do
  if ! tr -d ' \n' <"$folder/stats.json" | grep -qF "$(echo "$words" | tr -d ' ')"; then
    echo "not in the report: $words"
    failed=1
  fi
done
[ $failed = 0 ] || cat "$folder/stats.json"
exit $failed
