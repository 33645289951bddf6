#!/bin/bash
# A stranger's way with the wheel, in a clean root of another release of Debian or Ubuntu: Python and
# nothing else, torch from PyPI, the wheel, README's lines on the GPU in software, and all of it away
# again.
#
#   bench/wheel/try_root.sh SUITE [--torch VERSION] [--wheel FILE]     (bookworm, trixie, jammy, noble)
#
# Makes build/roots/SUITE (debootstrap, which is installed where it lacks; torch takes 5 GB). Needs
# root. Prints a line for each step, and "SUITE: N passed, N failed" at the end; the status is 0 only
# where nothing failed, 77 where the root cannot be made.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit 1

suite= version=2.11.0
wheel=$(ls -t dist/firn-*manylinux*.whl 2>/dev/null | head -n 1)
while [ $# -gt 0 ]; do
  case $1 in
    --torch) version=${2:?--torch VERSION}; shift 2 ;;
    --wheel) wheel=${2:?--wheel FILE}; shift 2 ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' bench/wheel/try_root.sh; exit 0 ;;
    -*) echo "try_root.sh: unknown option $1 (--help lists what there is)" >&2; exit 2 ;;
    *) suite=$1; shift ;;
  esac
done
[ -n "$suite" ] || { echo "try_root.sh: which suite? bookworm, trixie, jammy, noble" >&2; exit 2; }
[ -f "$wheel" ] || { echo "try_root.sh: no wheel (bench/wheel.sh makes one)" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "try_root.sh: needs root, for chroot" >&2; exit 77; }

root=$PWD/build/roots/$suite
log=$root.log
passed=0 failed=0
mkdir -p build/roots && : >"$log" || exit 1

check() {  # WHAT COMMAND...: COMMAND in the root
  local what=$1 begin=$SECONDS status=0
  shift
  printf '\n== %s: %s\n' "$what" "$*" >>"$log"
  unshare --mount --pid --fork bash -c '
    mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/dev/shm" && exec chroot "$@"
  ' "$root" "$root" env -i HOME=/root PATH=/firn/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    "$@" >>"$log" 2>&1 </dev/null || status=$?
  if [ $status = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  printf '%s: %-58s %s (%d s)\n' "$suite" "$what" \
    "$([ $status = 0 ] && echo passed || echo "FAILED, status $status")" $((SECONDS - begin))
  return $status
}

make_root() {
  command -v debootstrap >/dev/null ||
    DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends debootstrap ||
    return 1
  local more=python3,python3-venv,ca-certificates components=main
  local script=/usr/share/debootstrap/scripts/$suite
  # (Of a release newer than this debootstrap: Ubuntu's have all had the same script.)
  [ -e "$script" ] || script=${script%/*}/jammy
  # (Ubuntu has python3-venv elsewhere, and its keys are no package of Debian's.)
  local options=()
  if grep -q ubuntu "$script" 2>/dev/null; then
    components=main,universe
    [ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ] || options+=(--no-check-gpg)
  fi
  rm -rf "$root"
  debootstrap --variant=minbase --components=$components --include="$more" "${options[@]}" \
    "$suite" "$root" '' "$script"
}

if [ ! -x "$root/usr/bin/python3" ]; then
  printf '%s: a clean root ... ' "$suite"
  make_root >>"$log" 2>&1 </dev/null || { echo "cannot be had: $(tail -n 1 "$log")"; exit 77; }
  echo "made"
fi
# (This machine's way to the network.)
for file in /etc/resolv.conf /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  [ ! -e $file ] || cp -L $file "$root$file"
done
rm -rf "$root/firn" "$root/wheel" && mkdir -p "$root/wheel" && cp "$wheel" "$root/wheel/" || exit 1
cp tests/torch/scripts/stranger.py "$root/wheel/train.py"

check "a virtual environment" python3 -m venv /firn || exit 1
check "torch $version from PyPI" /firn/bin/pip install -q "torch==$version" numpy || exit 1
check "the wheel" bash -c "/firn/bin/pip install -q --no-index --no-deps /wheel/*.whl"
check "import firn, the command" bash -c 'python -c "import firn" && firn --version'
check "firn doctor: this torch fits" bash -c 'firn doctor >/root/doctor; cat /root/doctor; grep -q "^torch .*fits" /root/doctor'
check "firn run, at a third of the memory: bytes spilled" bash -c '
  cd /root && firn run --device software --gpu-memory 1GiB --budget 64MiB --host 64MiB --dir /root \
    --stats s.json -- python /wheel/train.py &&
  python -c "import json; d, = json.load(open(\"s.json\"))[\"devices\"]; print(d); assert d[\"spilled_bytes\"] > 0"'
software='/firn/lib/python3*/site-packages/firn/lib'
check "PYTORCH_CUDA_ALLOC_CONF alone: bytes spilled" bash -c "
  cd /root && lib=\$(echo $software) && FIRN_DEVICE=software FIRN_GPU_MEMORY=1073741824 \
  LD_PRELOAD=\$lib/software/libcudart.so.13:\$lib/software/libcuda.so.1 \
  PYTORCH_CUDA_ALLOC_CONF=backend:firn,firn_budget:64MiB,firn_host:64MiB,firn_dir:/root,firn_stats:/root/t.json \
  python /wheel/train.py &&
  python -c 'import json; d, = json.load(open(\"/root/t.json\"))[\"devices\"]; assert d[\"spilled_bytes\"] > 0'"
check "LD_PRELOAD alone, no CUDA in the program" bash -c '
  LD_PRELOAD=$(python -c "import firn; print(firn.__path__[0])")/lib/libfirn_preload.so /bin/echo runs'
check "removed: nothing is left" bash -c '
  pip uninstall -q -y firn && ! find /firn -iname "*firn*" -not -path /firn | grep .'
printf '%s: %d passed, %d failed (%s)\n' "$suite" $passed $failed "$log"
[ $failed = 0 ]
