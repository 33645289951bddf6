#!/bin/bash
# Every test, from any directory: sets up, then Meson's tests (suites unit, sim, stress) on all
# cores, pytest's (tests/command, tests/bench, tests/torch, tests/real_faults), the C++ tests under
# AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer, those of threads under
# ThreadSanitizer (tests/sanitizers), and the fuzzers (tests/fuzz).
#
#   tests/run.sh             everything but the long ones
#   tests/run.sh quick       a few minutes: each layer once, before a commit
#   tests/run.sh --long      everything, with more seeds and volume; hours, with tests/long and
#                            tests/mutation
#   tests/run.sh NAME...     tests whose name holds one of NAME
#
# NAME may be sanitizers, fuzz, long or mutation, too. A table closes (tests/figures.py): how much
# was tried, and that nothing was lost; the last line is "N passed, N failed, N skipped". The status
# is 0 only when nothing failed.
# Tests see FIRN_TEST_LENGTH (quick, normal, long) and FIRN_SEEDS (how many).
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit 1

length=normal
names=()
for word in "$@"; do
  case $word in
    quick | --quick) length=quick ;;
    --long) length=long ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' tests/run.sh; exit 0 ;;
    -*) echo "run.sh: unknown option $word (--help lists what there is)" >&2; exit 2 ;;
    *) names+=("$word") ;;
  esac
done
export FIRN_TEST_LENGTH=$length
case $length in  # seeds of the simulation; the caller's own number counts
  quick) export FIRN_SEEDS=${FIRN_SEEDS:-50} ;;
  long) export FIRN_SEEDS=${FIRN_SEEDS:-10000} ;;
esac
# Meson's tests that a quick run does without: they take long, or another one is much like them.
slow=(gpu_programs engine_driver_fault engine_notices engine_refused engine_refused_copies
      engine_property engine_threads engine_places_property canaries canary_none_engine canary_20
      metrics_output preload_frees_room_long preload_frees_returns_before
      preload_program_without-layouts process_faults driver_faults trace_replay tags_same
      'store_conformance encrypted' 'store_conformance paced' 'store_faults threads')
# The caller's own settings must not decide what is tested.
for variable in $(compgen -e FIRN_ | grep -vE '^FIRN_(TEST_|SEEDS?$|PYTHON$|SHARED$)') \
    FIRN_TEST_{ADVERSARIAL,ALLOW_TMPFS,GUARD,LAYOUTS,POISON,STORE_{LATENCY,READ,WRITE}}; do
  unset "$variable"
done
unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF

bash bench/setup.sh --tests || exit 1
# The one ninja that built: another version would start the build over.
export PATH="$PWD/.venv/bin:$PATH" NINJA="$PWD/.venv/bin/ninja"
python=.venv/bin/python
results=build/test-results
rm -rf "$results" build/meson-logs/testlog.json && mkdir -p "$results" || exit 1

matches() {  # TEXT: one of the names, or any when none is given
  [ ${#names[@]} -gt 0 ] || return 0
  local name
  for name in "${names[@]}"; do [[ $1 == *"$name"* ]] && return 0; done
  return 1
}

# Meson lists "suite - firn:name"; older ones "firn:suite / name", or the name alone.
suites=(--suite unit --suite sim --suite stress)
selected=()
while IFS= read -r line; do
  line=${line##* / }
  line=${line##* - }
  if [ $length = quick ] && [[ " ${slow[*]} " == *" ${line#*:} "* ]]; then continue; fi
  if matches "$line"; then selected+=("$line"); fi
done < <(.venv/bin/meson test -C build --no-rebuild --list "${suites[@]}" 2>/dev/null |
         grep -v '^ninja:')

meson_status=0
if [ ${#selected[@]} -gt 0 ]; then
  multiplier=3
  [ $length = long ] && multiplier=30
  .venv/bin/meson test -C build --no-rebuild --print-errorlogs -t $multiplier "${suites[@]}" \
    "${selected[@]}" </dev/null || meson_status=$?
fi

# The threads of torch's operators, and of NumPy's (which nobody uses), would spin on cores that
# another test could have.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}
folders=()
for folder in tests/bench tests/torch tests/command tests/real_faults; do
  if [ -d "$folder" ]; then folders+=("$folder"); fi
done
options=()
[ $length = quick ] && options+=(-m quick)
[ $length = normal ] && options+=(-m "not long")
if [ ${#names[@]} -gt 0 ]; then
  expression=$(printf ' or %s' "${names[@]}")
  options+=(-k "${expression# or }")
fi
longer=()
[ $length = long ] && longer=(--long)
# The other runners' programs are built in the time in which pytest's tests wait, and in no other.
building=
stop_building() {
  [ -n "$building" ] || return 0
  kill -- -"$building" 2>/dev/null
  wait "$building" 2>/dev/null
  building=
}
if [ $length != quick ] && [ ${#names[@]} = 0 ]; then
  idle=(nice -n 19)
  chrt --idle 0 true 2>/dev/null && idle=(chrt --idle 0)
  # (Where the scheduler shares time out by sessions first, "idle" counts within the session alone.)
  setsid "${idle[@]}" bash -c '{ echo 19 >/proc/self/autogroup; } 2>/dev/null
    bash tests/sanitizers/run.sh --build address thread "$@"
    bash tests/fuzz/run.sh --build' build "${longer[@]}" </dev/null >/dev/null 2>&1 &
  building=$!
  trap stop_building EXIT
fi

# As many of pytest's processes as there are cores, and 4 GiB for each: tests wait about as long as
# they compute. A file's tests stay together: they share runs.
free_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
jobs=$((free_kib / 4194304))
if [ "$jobs" -gt "$(nproc)" ]; then jobs=$(nproc); fi
if [ "$jobs" -gt 1 ]; then options+=(-n "$jobs" --dist loadscope); fi
$python -m pytest -q -rfEs --durations=25 -p no:cacheprovider \
  --junitxml="$results/pytest.xml" "${options[@]}" "${folders[@]}" \
  </dev/null 2>&1 | tee "$results/pytest.log"
pytest_status=${PIPESTATUS[0]}
stop_building
# 5: nothing was selected, which is another runner's name or nobody's (seen below).
[ "$pytest_status" = 5 ] && pytest_status=0

# Runners of their own, each of which closes with a line as ours.
others=()
other() {  # NAME COMMAND...
  local name=$1 status
  shift
  matches "$name" || return 0
  printf '\n== %s\n' "$name"
  "$@" </dev/null 2>&1 | tee "$results/$name.log"
  status=${PIPESTATUS[0]}
  [ "$status" = 77 ] && status=0
  others+=("$name" "$results/$name.log" "$status")
}
if [ $length != quick ]; then
  other sanitizers-thread bash tests/sanitizers/run.sh thread "${longer[@]}"
  other sanitizers-address bash tests/sanitizers/run.sh address "${longer[@]}"
  # As many inputs each time: whoever changed a line must not be stopped by another one's defect.
  fuzz=(--runs)
  [ $length = long ] && fuzz=(--seconds 600)
  other fuzz bash tests/fuzz/run.sh "${fuzz[@]}"
fi
if [ $length = long ]; then
  other long bash tests/long/run.sh
  other mutation $python tests/mutation/run.py
fi

$python tests/summary.py build/meson-logs/testlog.json "$results/pytest.xml" "$results/pytest.log" \
  "$meson_status" "$pytest_status" "${others[@]}"
