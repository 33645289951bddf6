#!/bin/bash
# The plugin with the ranks of its locks asserted (include/firn/ranked_mutex.h), Python's own lock, the
# GIL, among them: makes build/lock-ranks and runs the plugin's tests with it. The process ends where a
# lock is taken in the wrong order. (tests/sanitizers has the same for what needs no torch.)
#
#   tests/torch/lock_ranks.sh [PYTEST-ARGUMENT...]     (default arguments: tests/torch/plugin)
#
# The status is pytest's. Takes as long as compiling does, and the tests.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit 1

folder=build/lock-ranks
mkdir -p build || exit 1
export PATH="$PWD/.venv/bin:$PATH" NINJA="$PWD/.venv/bin/ninja"
log=build/lock-ranks.log
{ [ -e "$folder/build.ninja" ] ||
    meson setup "$folder" -Dbuildtype=release -Db_ndebug=false -Dtorch=enabled -Dtests=false \
      -Dlock_ranks=true; } >"$log" 2>&1 && "$NINJA" -C "$folder" >>"$log" 2>&1 ||
  { tail -n 30 "$log"; echo "lock_ranks.sh: it does not build ($log)" >&2; exit 1; }

what=("$@")
[ ${#what[@]} -gt 0 ] || what=(tests/torch/plugin -m "not long")
FIRN_TEST_BUILD=$folder exec .venv/bin/python -m pytest -q -rfEs -p no:cacheprovider "${what[@]}"
