#!/bin/bash
# The C++ tests under the compiler's sanitizers, from any directory.
#
#   tests/sanitizers/run.sh            address, then thread
#   tests/sanitizers/run.sh address    AddressSanitizer, LeakSanitizer, UndefinedBehaviorSanitizer
#                                      over all C++ tests but those in address_left_out.txt
#   tests/sanitizers/run.sh thread     ThreadSanitizer over the tests in thread_tests.txt
#   tests/sanitizers/run.sh address NAME...   the tests whose name holds one of NAME
#   --long                             the seeds and lengths of tests/run.sh in place of fewer, and
#                                      undefined uses of pointers
#   --build                            builds only
#
# Builds in build-address/ and build-thread/ what these tests need. Each kind closes with
# "KIND: N passed, N failed, N skipped"; the status is 0 only when nothing failed. Needs what
# bench/setup.sh has installed, with GCC; ccache is used where it is.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit 1

kinds=()
names=()
long=no
build_only=no
for word in "$@"; do
  case $word in
    address | thread) kinds+=("$word") ;;
    all) kinds+=(address thread) ;;
    --long) long=yes ;;
    --build) build_only=yes ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' tests/sanitizers/run.sh; exit 0 ;;
    -*) echo "run.sh: unknown option $word (--help lists what there is)" >&2; exit 2 ;;
    *) names+=("$word") ;;
  esac
done
[ ${#kinds[@]} -gt 0 ] || kinds=(address thread)

here=$PWD/tests/sanitizers
if [ -x .venv/bin/meson ]; then
  export PATH="$PWD/.venv/bin:$PATH" NINJA="$PWD/.venv/bin/ninja"
fi
if ! command -v meson >/dev/null; then
  echo "sanitizers: no meson: run bench/setup.sh first" >&2
  exit 1
fi
python=$(command -v python3)
for variable in $(compgen -e FIRN_ | grep -vE '^FIRN_(SEEDS?|OPERATIONS|JOBS|ROUNDS)$'); do
  unset "$variable"
done
unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF
longer=()
if [ $long = yes ]; then
  longer=(--long)
  export FIRN_TEST_LENGTH=normal
else
  export FIRN_TEST_LENGTH=quick FIRN_SEEDS=${FIRN_SEEDS:-25}
  export FIRN_OPERATIONS=${FIRN_OPERATIONS:-5000} FIRN_ROUNDS=${FIRN_ROUNDS:-60}
fi

# ccache and precompiled headers (suite.py: precompile) go together so.
export CCACHE_SLOPPINESS=pch_defines,time_macros

configure() {  # KIND
  local folder=build-$1 sanitizers=$1
  [ "$1" = address ] && sanitizers=address,undefined
  # Of undefined behaviour, what every use of a pointer is checked for costs the most to compile, and
  # AddressSanitizer sees most of it in its own way: alignment and pointers that overflow are 200 s
  # of a processor.
  local flags="-g1 -fno-omit-frame-pointer -fno-sanitize-recover=all"
  [ "$1" = address ] && flags+=" -fno-sanitize=null,object-size,vptr"
  [ "$1" = address ] && [ $long = no ] && flags+=",alignment,pointer-overflow"
  # (Tests of single behaviours are not optimized under ASan, tests/meson.build.)
  local options=(-Dbuildtype=plain -Doptimization=1 -Db_sanitize=$sanitizers
    -Db_lundef=false -Db_ndebug=false -Db_pch=false -Dtorch=disabled -Dtests=true -Dlock_ranks=true
    -Dtogether=true -Dwerror=false "-Dc_args=$flags"
    "-Dcpp_args=$flags -include $PWD/$folder/std.h")
  if [ "$(cat "$folder/configured" 2>/dev/null)" != "${options[*]}" ]; then
    rm -rf "$folder" && mkdir "$folder" && cp tests/std.h "$folder/std.h" || return 1
    local ccache
    ccache=$(command -v ccache)
    CXX="$ccache g++" CC="$ccache gcc" \
      meson setup "$folder" "${options[@]}" >"$folder/setup.log" 2>&1 ||
      { tail -n 20 "$folder/setup.log"; return 1; }
    echo "${options[*]}" >"$folder/configured"
  fi
  cmp -s tests/std.h "$folder/std.h" || cp tests/std.h "$folder/std.h" || return 1
  "$python" "$here/suite.py" precompile "$folder"
}

# What the sanitizers are told; suppressions are in leaks.txt and races.txt, each with its reason.
# Signals stay the tests' own: some have handlers, some die by one on purpose. The libraries' order
# is not looked at: libfirn_preload is loaded first, as its users do.
common=abort_on_error=1:allow_user_segv_handler=1
for signal in segv sigbus abort sigill sigfpe; do common+=:handle_$signal=0; done
export ASAN_OPTIONS=$common:verify_asan_link_order=0:allocator_may_return_null=1
ASAN_OPTIONS+=:detect_leaks=1:detect_stack_use_after_return=0
export LSAN_OPTIONS=suppressions=$here/leaks.txt:print_suppressions=0
export UBSAN_OPTIONS=halt_on_error=1:abort_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=$common:exitcode=66:die_after_fork=0:second_deadlock_stack=1:history_size=5
TSAN_OPTIONS+=:suppressions=$here/races.txt

status=0
for kind in "${kinds[@]}"; do
  begin=$SECONDS
  folder=build-$kind
  if ! configure "$kind" </dev/null; then
    echo "$kind: 0 passed, 1 failed (configuring), 0 skipped"
    status=1
    continue
  fi
  if ! chosen=$("$python" "$here/suite.py" choose "$folder" "$kind" "${longer[@]}" "${names[@]}"); then
    echo "$kind: 0 passed, 1 failed (choosing tests), 0 skipped"
    status=1
    continue
  fi
  mapfile -t targets < <(grep '^target ' <<<"$chosen" | cut -d' ' -f2-)
  mapfile -t tests < <(grep '^test ' <<<"$chosen" | cut -d' ' -f2-)
  if [ ${#tests[@]} = 0 ]; then
    echo "$kind: 0 passed, 0 failed, 0 skipped"
    continue
  fi
  if ! ninja -C "$folder" -j"$(nproc)" "${targets[@]}" >"$folder/build.log" 2>&1; then
    grep -E 'FAILED|error' "$folder/build.log" | head -n 20
    echo "$kind: 0 passed, 1 failed (building: $folder/build.log), 0 skipped"
    status=1
    continue
  fi
  [ $build_only = no ] || continue
  built=$((SECONDS - begin))
  rm -f "$folder/meson-logs/testlog.json"
  # ThreadSanitizer's own addresses may be taken where the kernel spreads mappings widely.
  as_linked=()
  if [ "$kind" = thread ] && setarch "$(uname -m)" -R true 2>/dev/null; then
    as_linked=(setarch "$(uname -m)" -R)
  fi
  listed=address_left_out.txt
  [ "$kind" = thread ] && listed=thread_tests.txt
  GTEST_FILTER=-$(sed -n 's/^-\([^ ]*\).*/\1/p' "$here/$listed" | paste -sd:)
  export GTEST_FILTER
  "${as_linked[@]}" meson test -C "$folder" --no-rebuild --print-errorlogs -t 6 \
    --num-processes "$(nproc)" "${tests[@]}" </dev/null >"$folder/test.log" 2>&1
  "$python" "$here/suite.py" close "$folder" "$kind" $built $((SECONDS - begin - built)) || status=1
done
exit $status
