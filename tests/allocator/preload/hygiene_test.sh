#!/bin/bash
# Programs that have nothing to do with CUDA, and children of those that have, do and say under the
# preload what they do and say without it. hygiene_test.sh LIBFIRN_PRELOAD HYGIENE SOFTWARE_LIBCUDA
set -u
preload=$(realpath "$1") hygiene=$(realpath "$2") gpu=$(realpath "$3")
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
failed=0
rounds=3
[ "${FIRN_TEST_LENGTH:-}" = long ] && rounds=50

cat >"$folder/hello.c" <<'END'
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
  printf("%d\n", dlopen("libm.so.6", RTLD_NOW) != NULL);
  printf("%s\n", dlopen("/no/such.so", RTLD_NOW) ? "there" : dlerror());
  return 3;
}
END
cat >"$folder/starts.py" <<'END'
import ctypes, hashlib, json, multiprocessing, os, socket, ssl, subprocess, sys, threading
assert len(os.listdir("/proc/self/task")) == 1
print(subprocess.run(["bash", "-c", "exit 4"]).returncode, hashlib.sha256(b"x").hexdigest())
if os.fork() == 0:
    os._exit(5)
print(os.wait()[1], ctypes.CDLL(None).getpid() == os.getpid())
try:
    ctypes.CDLL("libcuda_of_nobody.so.1")
except OSError as error:
    print(error)
threading.Thread(target=print, args=("thread",)).start()
END
cd "$folder" || exit 1
git init -q . 2>/dev/null

alike() {  # COMMAND...: the same output and status, with and without
  local without with
  without=$(env -u LD_PRELOAD FIRN_DEVICE=software "$@" 2>&1; echo "status $?")
  with=$(env FIRN_DEVICE=software LD_PRELOAD="$preload" "$@" 2>&1; echo "status $?")
  if [ "$without" != "$with" ]; then
    printf '%s:\n--- without\n%s\n--- with\n%s\n' "$*" "$without" "$with"
    failed=1
  fi
}

for ((round = 0; round < rounds; ++round)); do
  alike true
  alike bash -c 'echo $((6 * 7)) | cat; f() { return 9; }; f'
  alike bash -c 'for i in 1 2 3 4 5 6 7 8; do (exit $i) & done; wait; kill -TERM $$'
  alike sh -c 'ls / | sort | wc -l; exec false'
  alike git -C "$folder" status --short --branch
  alike git no-such-command
  alike gcc -O1 -o hello hello.c -ldl
  alike ./hello
  alike python3 -S -c pass
  alike python3 starts.py
  if command -v node >/dev/null; then alike node -e 'console.log(1 + 1); process.exit(6)'; fi
done

# A child of a process that uses CUDA: as it is without Firn (threads too: none is added).
alike env FIRN_GPU_MEMORY=1GiB FIRN_BUDGET=64MiB LD_LIBRARY_PATH="$(dirname "$gpu")" \
  "$hygiene" forked

# Another user's rights: the loader leaves it out.
if [ "$(id -u)" = 0 ] && cp "$(command -v cat)" "$folder/cat" &&
  chown nobody "$folder/cat" 2>/dev/null && chmod 4755 "$folder/cat" "$folder"; then
  if LD_PRELOAD="$preload" "$folder/cat" /proc/self/maps 2>/dev/null | grep -q libfirn; then
    echo "loaded into a program with another user's rights"
    failed=1
  fi
fi
exit $failed
