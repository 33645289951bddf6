#!/bin/bash
# Compiles Firn for aarch64 on this machine, with Debian's cross compiler: the command `firn`, the
# library in front of the driver and the software GPU. Not the PyTorch plugin, which is linked with
# that machine's PyTorch. Nothing that is made here has run anywhere.
#
#   bench/wheel/aarch64.sh
#
# Installs g++-aarch64-linux-gnu where it is missing, as root or with sudo, and takes Debian's
# liburing and zlib for arm64. Makes build/aarch64 (four to six minutes of one core); the last lines
# name what was made. The status is 0 where all of it was, and is for aarch64; 77 where the compiler
# or these libraries cannot be had.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit 1

for word in "$@"; do
  case $word in
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' bench/wheel/aarch64.sh; exit 0 ;;
    *) echo "aarch64.sh: unknown word $word (--help lists what there is)" >&2; exit 2 ;;
  esac
done

folder=$PWD/build/aarch64
mkdir -p "$folder" || exit 1
log=$folder/log
: >"$log"
fail() {  # STATUS WORDS
  echo "aarch64.sh: $2; the end of $log:" >&2
  tail -n 15 "$log" | sed 's/^/  | /' >&2
  exit "$1"
}

bash bench/setup.sh --tests || exit 1
export PATH="$PWD/.venv/bin:$PATH" NINJA="$PWD/.venv/bin/ninja"

compiler=g++-aarch64-linux-gnu
if ! command -v aarch64-linux-gnu-g++ >/dev/null; then
  root=()
  [ "$(id -u)" = 0 ] || root=(sudo -n)
  apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y)
  { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends $compiler; } >>"$log" 2>&1 ||
    fail 77 "no $compiler"
fi

# The libraries that are not headers alone, which are the same for every machine.
libraries() {
  local apt=$folder/apt each
  [ -e "$folder/libraries/usr" ] && return 0
  mkdir -p "$apt"/{lists,cache/archives}/partial || return 1
  local words=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$apt"
               -o Dir::State::lists="$apt/lists" -o Dir::State::status=/dev/null
               -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root)
  apt-get "${words[@]}" update &&
    (cd "$apt" && apt-get "${words[@]}" download liburing-dev zlib1g-dev) &&
    rm -rf "$folder/libraries.new" && mkdir "$folder/libraries.new" || return 1
  for each in liburing zlib1g; do
    dpkg-deb -x "$apt/$each"-dev_*_arm64.deb "$folder/libraries.new" || return 1
  done
  mv "$folder/libraries.new" "$folder/libraries"
}
libraries >>"$log" 2>&1 || fail 77 "no liburing or zlib for arm64"

headers=$folder/include
mkdir -p "$headers" "$folder/pkgconfig"
for name in fmt nlohmann CLI xxhash.h; do
  ln -sfn "/usr/include/$name" "$headers/$name"
done
for name in liburing.h liburing zlib.h zconf.h; do
  ln -sfn "$folder/libraries/usr/include/$name" "$headers/$name"
done
library=$(dirname "$(ls "$folder"/libraries/usr/lib/*/liburing.a)")
package() {  # NAME VERSION CFLAGS LIBS
  printf 'Name: %s\nDescription: %s\nVersion: %s\nCflags: -isystem %s %s\nLibs: %s\n' \
    "$1" "$1" "$2" "$headers" "$3" "$4" >"$folder/pkgconfig/$1.pc"
}
package fmt 9 -DFMT_HEADER_ONLY ""
package nlohmann_json 3 "" ""
package CLI11 2 "" ""
package libxxhash 0.8 "" ""
package liburing 2.3 "" "-L$library -luring"
package zlib 1.2 "" "-L$library -lz"
cat >"$folder/cross.ini" <<END
[binaries]
c = 'aarch64-linux-gnu-gcc'
cpp = 'aarch64-linux-gnu-g++'
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkg-config = 'pkg-config'
[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'aarch64'
endian = 'little'
[properties]
pkg_config_libdir = '$folder/pkgconfig'
[built-in options]
cpp_link_args = ['-L$library']
END
made=$folder/build
[ -e "$made/build.ninja" ] || .venv/bin/meson setup "$made" --cross-file "$folder/cross.ini" \
  -Dtorch=disabled -Dtests=false -Dbuildtype=release >>"$log" 2>&1 ||
  fail 1 "it cannot be configured"
if ! "$NINJA" -C "$made" >>"$log" 2>&1; then
  grep -E "error|FAILED" "$log" | head -n 20 >&2
  fail 1 "it does not compile"
fi
for name in allocator/command/firn allocator/preload/libfirn_preload.so \
    allocator/preload/libfirn_behind.so allocator/libfirn.so backing/gpu/software/libcuda.so.1; do
  readelf -h "$made/$name" | grep -q AArch64 || fail 1 "$name is not for aarch64"
  echo "build/aarch64/build/$name"
done
