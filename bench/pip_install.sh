#!/bin/bash
# pip install, by uv where that can be had: it fetches and unpacks many packages at once (PyTorch's
# 5 GB in 98 s in place of 238, beside a compiler on two cores). uv is told what pip is configured
# to here; where it fails, pip does the work, and says what is wrong.
#
#   bench/pip_install.sh PYTHON OPTION...     (pip's words: -r FILE, --no-deps, NAME==VERSION)
#
# PYTHON is a virtual environment's. uv is that one's own, or .venv's.
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd) || exit 1
[ $# -ge 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d' >&2; exit 2; }
python=$1
shift

# pip's settings as uv's, one NAME=VALUE a line; status 1 where one has no like of it.
as_pip_is_configured() {
  "$python" - <<'END'
import ast
import os
import subprocess
import sys

lines = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, text=True,
                       stdout=subprocess.PIPE).stdout.splitlines()
found = {}
for scope in ("global", "install", ":env:"):  # the later, the more it counts
    for line in lines:
        key, _, value = line.partition("=")
        of, _, name = key.rpartition(".")
        if of == scope:
            found[name.replace("_", "-")] = ast.literal_eval(value)

as_uv = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "cert": "SSL_CERT_FILE",
         "trusted-host": "UV_INSECURE_HOST"}
harmless = {"config-file", "disable-pip-version-check", "cache-dir", "no-cache-dir", "quiet",
            "verbose", "no-color", "progress-bar", "no-input", "retries", "root-user-action",
            "no-warn-script-location", "require-virtualenv", "log", "break-system-packages",
            "no-python-version-warning"}
told = {}
for name, value in found.items():
    words = str(value).split()
    if name in as_uv:
        told[as_uv[name]] = " ".join(words)
        if name == "extra-index-url":
            told["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    elif name == "find-links" and "," not in value:
        told["UV_FIND_LINKS"] = ",".join(words)
    elif name in ("timeout", "default-timeout"):
        told["UV_HTTP_TIMEOUT"] = str(max(1, round(float(value))))
    elif name == "no-index":
        if str(value).lower() in ("1", "true", "yes", "on", "y", "t"):
            told["UV_NO_INDEX"] = "1"
    elif name not in harmless:
        sys.exit(f"pip is configured with {name}: it does the work itself")
for name, value in told.items():
    print(f"{name}={os.environ.get(name) or value}")
END
}

prefix=$("$python" -c 'import sys; print(sys.prefix)') || exit 1
cache=$prefix/uv-cache.$$  # on the file system of what its files become part of
trap 'rm -rf "$cache"; exit 130' INT TERM HUP

by_uv() {
  local uv settings setting words=()
  uv=$(dirname "$python")/uv
  [ -x "$uv" ] || uv=$root/.venv/bin/uv
  [ -x "$uv" ] && settings=$(as_pip_is_configured) || return 1
  while IFS= read -r setting; do
    [ -z "$setting" ] || words+=("$setting")
  done <<<"$settings"
  env "${words[@]}" UV_CACHE_DIR="$cache" UV_NO_CONFIG=1 "$uv" pip install --python "$python" \
    --link-mode hardlink --compile-bytecode "$@" </dev/null
}

by_uv "$@"
status=$?
rm -rf "$cache"
if [ $status = 0 ] || [ $status -ge 128 ]; then exit $status; fi
trap - INT TERM HUP
exec "$python" -m pip install --disable-pip-version-check "$@"
