#!/bin/bash
# Everything that bench/demo.sh and tests/run.sh stand on: system packages, .venv with PyTorch, the
# build in build/, and Firn installed into .venv. Idempotent; at once when all is in place.
#
#   bench/setup.sh           without the tests' programs, unless they were built before
#   bench/setup.sh --tests   with them
#
# Needs root or sudo only when a system package is missing. FIRN_PYTHON names another interpreter
# than /usr/bin/python3 (3.10 or newer). The full log is build/setup.log.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit 1

# One ninja for every step: another version would start the build over.
export PATH="$PWD/.venv/bin:$PATH" NINJA="$PWD/.venv/bin/ninja"
# (Where there is a ccache: for it to take precompiled headers.)
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}

packages=(python3 python3-venv g++ pkg-config ca-certificates liburing-dev libxxhash-dev
          libcli11-dev nlohmann-json3-dev libfmt-dev libgtest-dev libbenchmark-dev
          libncurses-dev zlib1g-dev)
# What tests look at pages with (120 MB to fetch, 410 MB on the disk); without it they are skipped.
browser=chromium
# For fuzzers, models of lock-free words and file systems that fail: without them these tests are
# skipped.
test_tools=(clang libclang-rt-dev relacy-dev xfsprogs btrfs-progs e2fsprogs quota)
python=${FIRN_PYTHON:-/usr/bin/python3}
log=build/setup.log
requirements_stamp=.venv/firn-requirements
source_stamp=build/firn-source
beside_stamp=build/firn-without-torch
tests_stamp=build/firn-tests
install_stamp=.venv/firn-installed
no_browser_stamp=build/firn-no-browser
no_test_tools_stamp=build/firn-no-test-tools

fail() {  # WHAT
  printf '\nsetup: failed: %s\n' "$1"
  if [ -s "$log" ]; then
    printf 'setup: the end of %s:\n' "$log"
    tail -n 30 "$log" | sed 's/^/  | /'
  fi
  exit 1
}

step() {  # WHAT COMMAND...: runs COMMAND into the log, with its time on a line
  local what=$1 begin=$SECONDS
  shift
  printf 'setup: %s ... ' "$what"
  printf '\n== %s: %s\n' "$what" "$*" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null || fail "$what"
  printf 'done (%d s)\n' $((SECONDS - begin))
  worked=yes
}

missing_packages() {  # PACKAGE...
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      printf '%s ' "$package"
  done
}

install_packages() {  # runs apt-get as root, alone or by sudo
  local root=()
  [ "$(id -u)" = 0 ] || root=(sudo -n)
  local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y
             -o DPkg::Lock::Timeout=600)
  "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "$@"
}

check_packages() {
  command -v dpkg-query >/dev/null ||
    fail "this is no Debian or Ubuntu; install the like of: ${packages[*]}, and say so in packages"
  local missing
  missing=$(missing_packages "${packages[@]}")
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null && { sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; }; } ||
      fail "missing packages, and neither root nor sudo: apt-get install $missing"
  fi
  # Unquoted: one word per package.
  step "system packages ($missing)" install_packages $missing
  missing=$(missing_packages "${packages[@]}")
  [ -z "$missing" ] || fail "apt-get left these out: $missing"
}

# Not where there is one already, and no failure where it cannot be had (Ubuntu's is no package):
# then it is not tried again.
check_browser() {
  local name
  [ ! -e "$no_browser_stamp" ] || return 0
  for name in chromium chromium-browser google-chrome google-chrome-stable; do
    ! command -v "$name" >/dev/null || return 0
  done
  [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null || return 0
  worked=yes
  printf 'setup: %s, for the tests of pages ... ' "$browser"
  if install_packages "$browser" >>"$log" 2>&1 </dev/null && command -v "$browser" >/dev/null; then
    echo "done"
  else
    touch "$no_browser_stamp"
    echo "left out: those tests are skipped"
  fi
}

# The same: no failure where they cannot be had, and not tried again.
check_test_tools() {
  local missing
  [ ! -e "$no_test_tools_stamp" ] || return 0
  missing=$(missing_packages "${test_tools[@]}")
  [ -n "$missing" ] || return 0
  [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null || return 0
  worked=yes
  printf 'setup: further tools of tests (%s) ... ' "$missing"
  # Unquoted: one word per package.
  if install_packages $missing >>"$log" 2>&1 </dev/null; then
    echo "done"
  else
    touch "$no_test_tools_stamp"
    echo "left out: what needs them is skipped"
  fi
}

python_works() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

make_venv() {
  rm -rf .venv && "$python" -m venv .venv
}

install_requirements() {  # OPTION...
  bash bench/pip_install.sh .venv/bin/python "$@"
}

# Builds all that needs no PyTorch while that is fetched and unpacked.
# The steps after it find the same commands done, and say where one failed.
build_beside() {
  local tests=false
  if [ -e build/build.ninja ]; then
    [ -e "$beside_stamp" ] && [ "$(cat "$source_stamp")" = "$PWD" ] || return 0
  fi
  [ $with_tests = no ] || tests=true
  export -f configure
  # (It keeps the lock, should this script be killed.)
  setsid nice -n 10 bash -c '
    if [ ! -e build/build.ninja ]; then
      configure "$1" -Dtorch=disabled && touch "$4" && printf "%s\n" "$PWD" >"$3" || exit 1
    fi
    exec .venv/bin/ninja -C build -j "$2"' beside $tests "$(jobs_that_fit)" "$source_stamp" \
    "$beside_stamp" </dev/null >build/setup-beside.log 2>&1 &
  beside=$!
  trap stop_beside EXIT
}

stop_beside() {
  [ -n "$beside" ] || return 0
  kill -- -"$beside" 2>/dev/null || kill "$beside" 2>/dev/null
  wait "$beside" 2>/dev/null
  beside=
}

check_venv() {
  python_works "$python" ||
    fail "$python is not a Python 3.10 or newer (FIRN_PYTHON names another)"
  if ! python_works .venv/bin/python || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    step "virtual environment (.venv)" make_venv
  fi
  local wanted tools
  wanted=$({ cat bench/requirements.txt; .venv/bin/python -VV; } | sha256sum)
  [ "$(cat "$requirements_stamp" 2>/dev/null)" = "$wanted" ] && return 0
  # uv fetches the rest; the build goes on meanwhile.
  mapfile -t tools < <(grep -E '^(meson|ninja|uv)==' bench/requirements.txt)
  step "tools of the build (${tools[*]})" install_requirements "${tools[@]}"
  build_beside
  step "Python packages (PyTorch: 5 GB, a minute or more)" install_requirements -r bench/requirements.txt
  stop_beside
  printf '%s\n' "$wanted" >"$requirements_stamp"
}

# The compiler needs up to 2 GiB for a file that includes torch.
jobs_that_fit() {
  local memory cores
  memory=$(awk '/^MemAvailable:/ {print int($2 / 2097152)}' /proc/meminfo)
  cores=$(nproc)
  if [ "$memory" -lt 1 ]; then memory=1; fi
  if [ "$memory" -lt "$cores" ]; then echo "$memory"; else echo "$cores"; fi
}

with_torch=(-Dtorch=enabled -Dtorch_python="$PWD/.venv/bin/python")

# As meson-python configures it, so that installing finds everything built.
configure() {  # TESTS OPTION...
  local wipe=() tests=$1
  shift
  if [ ! -e build/build.ninja ]; then
    rm -rf build/meson-private  # of one that was stopped
  elif [ -e build/meson-private/coredata.dat ]; then
    wipe=(--wipe)
  fi
  .venv/bin/meson setup "${wipe[@]}" build -Dbuildtype=release -Db_ndebug=false -Dtests="$tests" "$@"
}

check_build() {
  local here="$PWD" tests=false
  if [ $with_tests = yes ] || [ -e "$tests_stamp" ]; then tests=true; fi
  if [ ! -e build/build.ninja ] || [ "$(cat "$source_stamp" 2>/dev/null)" != "$here" ]; then
    step "configuring build/" configure $tests "${with_torch[@]}"
    printf '%s\n' "$here" >"$source_stamp"
  elif [ -e "$beside_stamp" ]; then
    step "configuring build/ with PyTorch" \
      .venv/bin/meson configure build -Dtests=$tests "${with_torch[@]}"
  elif [ $tests = true ] && [ ! -e "$tests_stamp" ]; then
    step "adding the tests" .venv/bin/meson configure build -Dtests=true
  fi
  rm -f "$beside_stamp"
  if [ $tests = true ]; then touch "$tests_stamp"; fi
  if .venv/bin/ninja -C build -n 2>/dev/null | grep -q 'no work to do'; then return 0; fi
  step "building" .venv/bin/ninja -C build -j "$(jobs_that_fit)"
}

install_firn() {  # with build/ as it is configured
  local tests=false
  [ ! -e "$tests_stamp" ] || tests=true
  .venv/bin/python -m pip install --disable-pip-version-check --no-build-isolation --no-deps \
    --force-reinstall --no-index --config-settings=build-dir=build \
    --config-settings=setup-args="-Dtests=$tests" .
}

installed_is_current() {
  [ -e "$install_stamp" ] && [ -x .venv/bin/firn ] &&
    [ -z "$(find pyproject.toml meson.build pytorch_plugin -newer "$install_stamp" -type f \
      ! -name '*.pyc' -print -quit)" ] &&
    [ -z "$(find build -newer "$install_stamp" -type f \
      \( -name 'lib*.so' -o -name 'lib*.so.[0-9]*' -o -name firn \) -print -quit)" ]
}

check_install() {
  installed_is_current && return 0
  step "installing Firn into .venv" install_firn
  .venv/bin/firn --version >>"$log" 2>&1 || fail ".venv/bin/firn does not start"
  touch "$install_stamp"
}

main() {  # read as a whole before it runs: the file may be replaced meanwhile
  with_tests=no
  case ${1:-} in
    '') ;;
    --tests) with_tests=yes ;;
    *) echo "setup.sh: unknown option $1 (only --tests)" >&2; exit 2 ;;
  esac
  mkdir -p build || exit 1
  exec 9>build/setup.lock
  flock -n 9 || { echo "setup: waiting for another set-up"; flock 9; }
  : >"$log"
  worked=no
  beside=
  check_packages
  [ $with_tests = no ] || { check_browser; check_test_tools; }
  check_venv
  check_build
  check_install
  if [ $worked = no ]; then
    echo "setup: everything is in place"
  else
    echo "setup: done ($SECONDS s)"
  fi
  exit 0
}

main "$@"
