#!/bin/bash
# One wheel that installs anywhere: manylinux_2_28, with a plugin for each release of torch in
# bench/wheel/torches.txt, everything but torch, glibc and libstdc++ inside.
#
#   bench/wheel.sh [--out DIR] [--torch VERSION[,VERSION]...]     [dist/; all of torches.txt]
#
# Each torch is fetched (2 GB) and unpacked (2 GB) under build/wheel; the first build takes some 3
# minutes of two cores per torch. Idempotent: the second time only what has changed is compiled.
# Prints the wheel's path on the last line; the log is build/wheel/log.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit 1

folder=$PWD/build/wheel
log=$folder/log
out=$PWD/dist
torches=$(grep -v '^#' bench/wheel/torches.txt | paste -sd,)
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$(realpath -m "${2:?--out DIR}"); shift 2 ;;
    --torch) torches=${2:?--torch VERSION,...}; shift 2 ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' bench/wheel.sh; exit 0 ;;
    *) echo "wheel.sh: unknown word $1 (--help lists what there is)" >&2; exit 2 ;;
  esac
done

fail() {
  printf '\nwheel.sh: %s\n' "$1" >&2
  [ -s "$log" ] && tail -n 30 "$log" | sed 's/^/  | /' >&2
  exit 1
}

step() {  # WHAT COMMAND...
  local what=$1 begin=$SECONDS
  shift
  printf 'wheel: %s ... ' "$what"
  printf '\n== %s: %s\n' "$what" "$*" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null || fail "$what failed; the end of $log:"
  printf 'done (%d s)\n' $((SECONDS - begin))
}

bash bench/setup.sh || exit 1
export PATH="$PWD/.venv/bin:$PATH" NINJA="$PWD/.venv/bin/ninja"
mkdir -p "$folder" "$out" && : >"$log" || exit 1

make_tools() {
  [ -x "$folder/tools/bin/python" ] || .venv/bin/python -m venv "$folder/tools" || return 1
  bash bench/pip_install.sh "$folder/tools/bin/python" -q -r bench/wheel/requirements.txt
}

# torch alone, without the CUDA that it runs with: headers are those of .venv's (and Triton's).
make_torch() {  # VERSION
  local venv=$folder/torch-$1
  [ -x "$venv/bin/python" ] || .venv/bin/python -m venv "$venv" || return 1
  [ -e "$venv/installed" ] && return 0
  bash bench/pip_install.sh "$venv/bin/python" -q --no-deps "torch==$1" triton &&
    touch "$venv/installed"
}

step "tools (zig's glibc, auditwheel)" make_tools
if [ ! -e "$folder/sysroot/native.ini" ] ||
   [ -n "$(find bench/wheel -newer "$folder/sysroot/native.ini" -name '*.[pc]*')" ]; then
  step "glibc 2.28 and libstdc++ of GCC 8 to link against" \
    "$folder/tools/bin/python" bench/wheel/old_sysroot.py "$folder/sysroot"
  # (Linked against the one before; ninja would not know.)
  [ ! -d "$folder/build" ] ||
    find "$folder/build" -type f \( -name '*.so*' -o -perm -u+x \) -not -name '*.py' -delete
fi

installed=$(.venv/bin/python -c 'import re, torch; print(re.match(r"[\d.]+", torch.__version__)[0])')
pythons=()
for version in ${torches//,/ }; do
  if [ "$version" = "$installed" ]; then
    pythons+=("$PWD/.venv/bin/python")
  else
    step "torch $version" make_torch "$version"
    pythons+=("$folder/torch-$version/bin/python")
  fi
done
interpreters=$(IFS=,; echo "${pythons[*]}")
headers=$(.venv/bin/python backing/gpu/software/find_torch.py --lines |
          sed -n 's/^cuda_include_dir\t//p')
export CUDA_HOME=${headers%/include}

# Static: libraries that a user's machine has in other versions, or not at all.
rm -rf "$folder/made" && mkdir "$folder/made" || exit 1
# (Not by pip: of settings of one name older ones take the last.)
step "building, with torch $torches" "$folder/tools/bin/python" -m build --wheel --no-isolation \
  --skip-dependency-check --outdir "$folder/made" -Cbuild-dir="$folder/build" \
  -Csetup-args=-Dtorch_python="$interpreters" -Csetup-args=-Dprefer_static=true \
  -Csetup-args=--native-file="$folder/sysroot/native.ini"

# meson-python takes all that lies where a platform's files do for one Python's.
to_platlib() {
  local unpacked
  rm -rf "$folder/unpacked" && mkdir "$folder/unpacked" &&
    "$folder/tools/bin/python" -m wheel unpack --dest "$folder/unpacked" "$folder"/made/firn-*.whl &&
    unpacked=$(echo "$folder"/unpacked/firn-*) &&
    mv "$unpacked"/firn-*.data/purelib/* "$unpacked/" &&
    rmdir "$unpacked"/firn-*.data/purelib && rm "$folder"/made/firn-*.whl &&
    "$folder/tools/bin/python" -m wheel pack --dest-dir "$folder/made" "$unpacked"
}
step "moving its files" to_platlib

# Torch's own libraries and CUDA's are the process's: whoever has torch has them.
theirs=(--exclude 'libtorch*.so' --exclude 'libc10*.so' --exclude 'libcudart.so.13')
step "checking and naming it" "$folder/tools/bin/python" -m auditwheel repair \
  --plat manylinux_2_28_x86_64 --only-plat "${theirs[@]}" --wheel-dir "$out" "$folder"/made/firn-*.whl

# As a machine without torch and GPU runs it.
try_command() {
  rm -rf "$folder/tried" && .venv/bin/python -m venv "$folder/tried" &&
    "$folder/tried/bin/pip" install -q --no-index --no-deps "$out"/firn-*manylinux_2_28*.whl &&
    env -i PATH=/usr/bin:/bin FIRN_MISSPELT=1 "$folder/tried/bin/firn" doctor |
      tee "$folder/tried/said" && grep -q FIRN_MISSPELT "$folder/tried/said"
}
step "trying its command" try_command
ls "$out"/firn-*manylinux_2_28*.whl
