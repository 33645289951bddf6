#!/bin/bash
# The plugin with another release of torch: makes build/torch-VERSION/venv with it, compiles the
# plugin and the software GPU's operators against it, and runs the plugin's tests, the allocator's
# calls side by side, the software GPU's cases and a training script with it.
#
#   tests/torch/other_torch.sh VERSION [PYTEST-ARGUMENT...]     (say 2.12.1; default arguments: all)
#
# The status is pytest's; 77 where that torch cannot be had (no network). Idempotent: the second
# time only what has changed is compiled. Takes 5 GB of disk, and as long as compiling does.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit 1

fail() { echo "other_torch.sh: $1" >&2; exit "${2:-1}"; }

version=${1:-}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "which release of torch? say 2.12.1" 2
shift
folder=$PWD/build/torch-$version
venv=$folder/venv
log=$folder/log
mkdir -p "$folder" || exit 1

install() {
  [ -x "$venv/bin/python" ] || .venv/bin/python -m venv "$venv" || return 1
  # The build's and the tests' own packages, as .venv has them.
  grep -E '^(numpy|meson|ninja|pytest|transformers|accelerate|nvidia-ml-py)==' bench/requirements.txt >"$folder/requirements" || return 1
  bash bench/pip_install.sh "$venv/bin/python" -q "torch==$version" \
    -r "$folder/requirements"
}

build() {
  [ -e "$folder/build/build.ninja" ] ||
    "$venv/bin/meson" setup "$folder/build" -Dbuildtype=release -Db_ndebug=false -Dtorch=enabled \
      -Dtorch_python="$venv/bin/python" -Dtests=false || return 1
  export NINJA=$venv/bin/ninja
  "$NINJA" -C "$folder/build" ${FIRN_TEST_JOBS:+-j "$FIRN_TEST_JOBS"}
}

install >"$log" 2>&1 || { tail -n 5 "$log"; fail "torch $version cannot be installed" 77; }
build >>"$log" 2>&1 || { tail -n 40 "$log"; fail "Firn does not build against torch $version"; }

what=("$@")
if [ ${#what[@]} -eq 0 ]; then
  what=(tests/torch -k "(plugin or calls or software or gpt_adamw) and not packaging" -m "not long")
fi
FIRN_TEST_BUILD="$folder/build" FIRN_BUILD="$folder/build" FIRN_TEST_PYTHON="$venv/bin/python" \
  exec "$venv/bin/python" -m pytest -q -rfEs -p no:cacheprovider "${what[@]}"
