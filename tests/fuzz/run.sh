#!/bin/bash
# The fuzz targets: builds them with clang into build-fuzz/, and runs each on its kept corpus and
# from there on.
#
#   tests/fuzz/run.sh [--seconds N | --runs] [--seed N] [TARGET...]
#   tests/fuzz/run.sh --build     builds only
#
# N seconds each (30), two at once. Finds are kept in build-fuzz/found/TARGET/, and the command that
# runs one again is printed; what is interesting, in build-fuzz/corpus/TARGET/, from which the next
# run goes on. The same seed, corpus and number of runs are the same inputs: --runs begins at the
# kept corpus alone, makes as many as tests/fuzz/runs.txt says (some 10 s) and has its addresses as
# linked, so that a run can be repeated (but where a search has a deadline or a server has threads:
# graph, program and control differ a little).
# Needs clang and its runtime (Debian: clang, libclang-rt-dev), and of bench/setup.sh meson, ninja
# and the headers. FIRN_FUZZ_CLANG names another clang++. Without: status 77.
#
# The last line is "fuzz: N passed, N failed, N skipped"; the status is 0 only when nothing failed.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit 1
export PATH="$PWD/.venv/bin:$PATH"
build=build-fuzz
seconds=30
seed=20
counted=no
build_only=no
names=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2:?--seconds needs a number}; shift ;;
    --runs) counted=yes ;;
    --build) build_only=yes ;;
    --seed) seed=${2:?--seed needs a number}; shift ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' tests/fuzz/run.sh; exit 0 ;;
    -*) echo "fuzz: unknown option $1 (--help lists what there is)" >&2; exit 2 ;;
    *) names+=("$1") ;;
  esac
  shift
done
for number in "$seconds" "$seed"; do
  [[ $number =~ ^[0-9]+$ ]] || { echo "fuzz: $number is no number" >&2; exit 2; }
done
all=()
for folder in tests/fuzz/corpus/*/; do all+=("$(basename "$folder")"); done
[ ${#names[@]} -gt 0 ] || names=("${all[@]}")
for name in "${names[@]}"; do
  [ -d "tests/fuzz/corpus/$name" ] || { echo "fuzz: $name is none of: ${all[*]}" >&2; exit 2; }
done

if [ $counted = yes ]; then
  for name in "${names[@]}"; do
    grep -q "^$name [1-9][0-9]*$" tests/fuzz/runs.txt && continue
    echo "fuzz: tests/fuzz/runs.txt has no number for $name" >&2
    exit 2
  done
fi

skip() {  # WHY
  echo "fuzz: SKIPPED, nothing was fuzzed: $1"
  echo "fuzz: 0 passed, 0 failed, ${#names[@]} skipped"
  exit 77
}
# In memory where that can be: some targets write files in each run.
memory=()
room_kib=$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)
if [ "${room_kib:-0}" -gt 262144 ]; then memory=(-p /dev/shm); fi
work=$(mktemp -d "${memory[@]}") || exit 1
trap 'rm -rf "$work"' EXIT
clang=${FIRN_FUZZ_CLANG:-clang++}
command -v "$clang" >/dev/null || skip "there is no $clang (apt-get install clang libclang-rt-dev)"
for tool in meson ninja; do
  command -v $tool >/dev/null || skip "there is no $tool (bash bench/setup.sh)"
done
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' \
  >"$work/try.cpp"
"$clang" -fsanitize=fuzzer,address,undefined "$work/try.cpp" -o "$work/try" 2>"$work/try.log" ||
  skip "$clang has no fuzzer or sanitizers (apt-get install libclang-rt-dev): \
$(head -n 1 "$work/try.log")"

begin=$SECONDS
mkdir -p $build
if ! [ -e $build/build.ninja ]; then
  CC=${clang/clang++/clang} CXX=$clang meson setup $build tests/fuzz >"$work/setup.log" 2>&1 ||
    { tail -n 20 "$work/setup.log"; echo "fuzz: 0 passed, ${#names[@]} failed, 0 skipped"; exit 1; }
fi
if ! ninja -C $build -j2 "${names[@]/#/fuzz_}" >"$work/build.log" 2>&1; then
  grep -vE '^\[' "$work/build.log" | head -n 40
  echo "fuzz: 0 passed, ${#names[@]} failed, 0 skipped"
  exit 1
fi
[ $build_only = no ] || exit 0
span="$seconds s"
[ $counted = yes ] && span="a number of inputs"
echo "fuzz: built in $((SECONDS - begin)) s; each target runs $span with seed $seed"

as_linked=()
if [ $counted = yes ] && setarch "$(uname -m)" -R true 2>/dev/null; then
  as_linked=(setarch "$(uname -m)" -R)
fi
export ASAN_OPTIONS=allocator_may_return_null=1:detect_stack_use_after_return=1:abort_on_error=0
export UBSAN_OPTIONS=print_stacktrace=1
fuzz() {  # TARGET: runs it, and leaves a line of the table
  local name=$1 options=() status corpus=$build/corpus/$1
  if [ $counted = yes ]; then
    corpus=$work/corpus/$name
    options+=(-reload=0 "-runs=$(sed -n "s/^$name //p" tests/fuzz/runs.txt)")
  else
    options+=("-max_total_time=$seconds")
  fi
  mkdir -p "$corpus" "$build/found/$name" "$work/$name"
  [ -e "tests/fuzz/dict/$name.dict" ] && options+=("-dict=tests/fuzz/dict/$name.dict")
  # Of a server's thread that ends while the fuzzer looks, all it holds would be a leak.
  if [ "$name" = control ]; then
    local ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0
    options+=(-detect_leaks=0)
  fi
  # Files that a target writes are its own, and gone with it.
  TMPDIR=$work/$name "${as_linked[@]}" "$build/fuzz_$name" "${options[@]}" -seed="$seed" \
    -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 -max_len=4096 -print_final_stats=1 \
    -artifact_prefix="$build/found/$name/" "$corpus" "tests/fuzz/corpus/$name" \
    >"$work/$name.log" 2>&1 </dev/null
  status=$?
  cp "$work/$name.log" "$build/found/$name.log"
  local runs rate kept covered verdict=passed
  runs=$(sed -n 's/^stat::number_of_executed_units: //p' "$work/$name.log")
  rate=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$work/$name.log")
  read -r covered kept < <(sed -n 's/.* cov: \([0-9]*\) .* corp: \([0-9]*\).*/\1 \2/p' \
    "$work/$name.log" | tail -n 1)
  [ $status = 0 ] || verdict=FAILED
  printf '%-12s %10s %8s %7s %9s  %s\n' "$name" "${runs:--}" "${rate:--}" "${kept:--}" \
    "${covered:--}" $verdict >"$work/$name.line"
  [ $status = 0 ] && return
  {
    echo
    echo "fuzz: $name: found after ${runs:-?} runs:"
    grep -a -m 1 -E '^fuzz: |ERROR: |runtime error|^SUMMARY' "$work/$name.log"
    local input
    input=$(sed -n 's/^artifact_prefix=.*Test unit written to //p' "$work/$name.log" | tail -n 1)
    if [ -n "$input" ]; then
      echo "  input   $input"
      echo "  replay  $build/fuzz_$name $input"
    else
      echo "  no input was kept; the end of $build/found/$name.log:"
      tail -n 5 "$work/$name.log"
    fi
  } >"$work/$name.found"
}

queue() {  # every second target, from the Nth on
  local i
  for ((i = $1; i < ${#names[@]}; i += 2)); do fuzz "${names[i]}"; done
}
queue 0 & queue 1 & wait
passed=0 failed=0
for name in "${names[@]}"; do
  [ -e "$work/$name.found" ] && cat "$work/$name.found"
done
printf '\n%-12s %10s %8s %7s %9s\n' target runs runs/s corpus coverage
for name in "${names[@]}"; do
  cat "$work/$name.line"
  if grep -q 'passed$' "$work/$name.line"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
  fi
done
echo "fuzz: $passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
