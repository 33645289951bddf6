#!/bin/bash
# Where the stand-in finds the real driver: as the loader would. The caller's environment plays no
# part. search_test.sh LIBFIRN_PRELOAD SOFTWARE_LIBCUDA ROUTES ROUTES_LINKED LIBROUTES_LIBRARY
set -u
preload=$(realpath "$1") gpu=$(realpath "$2") routes=$(realpath "$3") linked=$(realpath "$4")
library=$(realpath "$5")
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
failed=0

# The real file under the driver's name, in a folder that nobody knows.
mkdir "$folder/lib" "$folder/empty"
cp "$gpu" "$folder/lib/libcuda.so.580.99"
ln -s libcuda.so.580.99 "$folder/lib/libcuda.so.1"
# The stand-in under the driver's name: a library path that leads back to it.
ln -s "$preload" "$folder/empty/libcuda.so.1"

expect() {  # STATUS WORDS-OF-STDERR COMMAND...
  local wanted=$1 words=$2 got output
  shift 2
  output=$(env -i PATH="$PATH" FIRN_GPU_MEMORY=1GiB FIRN_BUDGET=64MiB FIRN_HOST=64MiB \
    FIRN_TEST_ANSWER=firn FIRN_TEST_GPU="$folder/lib/libcuda.so.580.99" "$@" 2>&1)
  got=$?
  if [ $got -ne "$wanted" ] || [[ $output != *"$words"* ]]; then
    echo "status $got, not $wanted with \"$words\": $*"
    echo "$output"
    failed=1
  fi
}

expect 0 "" LD_LIBRARY_PATH="$folder/lib" LD_PRELOAD="$preload" "$routes" soname
expect 0 "" LD_LIBRARY_PATH="$folder/empty:$folder/lib" LD_PRELOAD="$preload" "$routes" soname
expect 0 "" FIRN_DRIVER="$folder/lib/libcuda.so.1" LD_PRELOAD="$preload" "$routes" soname
expect 0 "" FIRN_DEVICE=software LD_PRELOAD="$preload" "$routes" soname
# The driver is in the process already, behind the stand-in.
expect 0 "" LD_PRELOAD="$preload:$folder/lib/libcuda.so.1" "$routes" soname
# The program's own path, where nothing else is said: under the file's name too.
expect 0 "" LD_PRELOAD="$preload" "$routes" path
if ! ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1 '; then
  expect 0 "" LD_PRELOAD="$preload" "$routes" path-at-last
fi
# A preload by a relative path, in a program that has gone elsewhere since.
cd "$(dirname "$preload")" || exit 1
expect 0 "" FIRN_DEVICE=software LD_PRELOAD="./$(basename "$preload")" "$routes" elsewhere
cd / || exit 1
# The caller of dlopen stays the caller: only its own RUNPATH leads to what it opens.
expect 0 "" LD_PRELOAD="$preload" "$routes" sibling "$library"

# No driver at all: what the program would get, or a word and an error.
if ! env -i "$routes" soname 2>/dev/null; then
  if ! ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1 '; then
    expect 2 "libcuda.so.1: cannot open shared object file" LD_PRELOAD="$preload" "$routes" soname
    # The program's own RUNPATH leads to the software GPU.
    expect 0 "" LD_PRELOAD="$preload" "$linked"
    expect 2 "no CUDA driver" FIRN_DRIVER=/nowhere/libcuda.so.1 LD_PRELOAD="$preload" "$linked"
  fi
fi
# What is no library is no driver.
echo "no library" >"$folder/lib/libcuda.so.580.99"
expect 2 "" LD_LIBRARY_PATH="$folder/lib" FIRN_DRIVER="$folder/lib/libcuda.so.1" \
  LD_PRELOAD="$preload" "$routes" soname
exit $failed
