#!/bin/bash
# Collects into bench/carry/ (ignored by git) what a machine without network needs to build and run
# bench/gpu/run.sh from this checkout: the libraries that Firn is built with, as headers, Google
# Test's sources and the static liburing; a build, where there is one; the tests' kernels, where
# there is nvcc. At the end the size of the checkout with all that: more than 60 MiB is refused.
#
#   bench/gpu/pack.sh [--build DIR | --no-build] [--no-kernels]
#
#   --build DIR   a build folder with the tests in it [build]
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."

most=$((60 << 20))
build=build kernels=yes
while [ $# -gt 0 ]; do
  case $1 in
    --build) [ $# -ge 2 ] || { echo "pack.sh: --build needs a folder" >&2; exit 2; }
             build=$2; shift 2 ;;
    --no-build) build=''; shift ;;
    --no-kernels) kernels=no; shift ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' bench/gpu/pack.sh; exit 0 ;;
    *) echo "pack.sh: unknown option $1 (--help lists what there is)" >&2; exit 2 ;;
  esac
done

refuse() { echo "pack.sh: $1" >&2; exit 1; }
first_of() {  # WHAT PATH...
  local what=$1 path
  shift
  for path in "$@"; do if [ -e "$path" ]; then echo "$path"; return 0; fi; done
  refuse "no $what here (bench/setup.sh --tests installs it)"
}

carry=bench/carry
fresh=bench/carry/new
rm -rf "$fresh"
trap 'rm -rf "$fresh"' EXIT
libraries=$fresh/subprojects/libraries
mkdir -p "$libraries/include" "$libraries/lib" "$libraries/googletest"
cp -p bench/gpu/libraries.wrap "$fresh/subprojects/"
cp -p bench/gpu/libraries.meson.build "$libraries/meson.build"
for name in fmt nlohmann CLI xxhash.h liburing.h liburing; do
  cp -rLp "$(first_of "$name" /usr/include/$name /usr/local/include/$name)" "$libraries/include/"
done
for name in zlib.h zconf.h; do
  cp -Lp "$(first_of $name {/usr,/usr/local}/include/$name /usr/include/*-linux-gnu/$name)" \
    "$libraries/include/"
done
for name in liburing.a libz.a; do
  cp -p "$(first_of $name /usr/lib/*/$name /usr/lib/$name /usr/local/lib/$name)" "$libraries/lib/"
done
googletest=$(first_of "Google Test's sources" /usr/src/googletest/googletest /usr/src/gtest)
cp -rLp "$googletest/src" "$libraries/googletest/src"
mkdir "$libraries/googletest/include"
cp -rLp "$(first_of gtest/gtest.h /usr/include/gtest "$googletest/include/gtest")" \
  "$libraries/googletest/include/"
git describe --always --dirty >"$fresh/commit" 2>/dev/null || echo unknown >"$fresh/commit"

if [ -n "$build" ]; then
  [ -e "$build/build.ninja" ] || refuse "$build is no build folder (--build names one, --no-build: none)"
  python3 - bench/gpu "$build" "$fresh/build" <<'END'
import pathlib, shutil, subprocess, sys
sys.path.insert(0, sys.argv[1])
import building
build, out = map(pathlib.Path, sys.argv[2:])
for name in (*building.CORE, *building.OF_TORCH, *building.OF_TORCH_SOFTWARE, *building.FILES):
    if not (build / name).exists():
        sys.exit(f"pack.sh: {build} lacks {name}: ninja -C {build} {name}")
    to = out / name
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(build / name, to)
    if not name.endswith(".py"):
        subprocess.run(["strip", "--strip-unneeded", str(to)], check=True)
END
  { c++ --version | sed -n 1p; ldd --version | sed -n 1p; } >"$fresh/build/made-with" 2>&1
fi

if [ $kernels = yes ] && nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null); then
  bash bench/gpu/kernels.sh "$nvcc" "$fresh/kernels" || refuse "$nvcc does not build the kernels"
fi

python3 - "$most" "$fresh" <<'END'
import os, subprocess, sys
most, fresh = int(sys.argv[1]), sys.argv[2]
listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                        stdout=subprocess.PIPE, check=True).stdout.split(b"\0")
carried = [os.path.join(at, name) for at, _, names in os.walk(fresh) for name in names]
def total(names):
    return sum(os.lstat(name).st_size for name in names if name and os.path.lexists(name))
tree, more = total(listed), total(carried)
print(f"pack.sh: checkout {tree / 2**20:.1f} MiB, bench/carry {more / 2**20:.1f} MiB")
if tree + more > most:
    sys.exit(f"pack.sh: together more than {most >> 20} MiB: it cannot be carried")
END
for each in "$carry"/*; do
  if [ "$each" != "$fresh" ]; then rm -rf "$each"; fi
done
mv "$fresh"/* "$carry"/
