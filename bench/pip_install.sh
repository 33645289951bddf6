#!/bin/bash
# pip install, by uv where that can be had: it fetches and unpacks many packages at once (PyTorch's
# 5 GB in an eighth of pip's time). uv is told what pip is configured to here; where it fails, pip
# does the work, and says what is wrong.
#
#   bench/pip_install.sh PYTHON OPTION...    (-r FILE, -c FILE, --no-deps, NAME==VERSION: pip's words)
#
# PYTHON is a virtual environment's. uv is that one's own, or .venv's.
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd) || exit 1
[ $# -ge 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d' >&2; exit 2; }
python=$1
shift

# pip's settings, in the order in which it minds them, as uv's. (What uv has been told already stays.)
as_pip_is_configured() {
  local key value
  while IFS== read -r key value; do
    value=${value#\'} value=${value%\'}
    value=${value//\\n/ }
    value=$(xargs <<<"$value")
    case ${key##*.} in
      index-url) : "${UV_DEFAULT_INDEX:=$value}" ;;
      extra-index-url) : "${UV_INDEX:=$value}" "${UV_INDEX_STRATEGY:=unsafe-best-match}" ;;
      find-links) : "${UV_FIND_LINKS:=${value// /,}}" ;;
      no-index) [ "$value" = false ] || : "${UV_NO_INDEX:=1}" ;;
      cert) : "${SSL_CERT_FILE:=$value}" ;;
      trusted-host) : "${UV_INSECURE_HOST:=$value}" ;;
      timeout | default-timeout) : "${UV_HTTP_TIMEOUT:=$value}" ;;
      proxy) : "${ALL_PROXY:=$value}" ;;
    esac
  done < <({ "$python" -m pip config list 2>/dev/null; } | tac)
  for key in UV_DEFAULT_INDEX UV_INDEX UV_INDEX_STRATEGY UV_FIND_LINKS UV_NO_INDEX SSL_CERT_FILE \
             UV_INSECURE_HOST UV_HTTP_TIMEOUT ALL_PROXY; do
    [ -z "${!key:-}" ] || export "${key?}"
  done
}

by_uv() {  # in a process of its own, for its environment
  local uv=$(dirname "$python")/uv prefix
  [ -x "$uv" ] || uv=$root/.venv/bin/uv
  [ -x "$uv" ] || return 1
  prefix=$("$python" -c 'import sys; print(sys.prefix)') || return 1
  as_pip_is_configured
  # Files are linked from the cache: on the file system of what they become part of.
  export UV_CACHE_DIR=$prefix/uv-cache UV_NO_CONFIG=1
  "$uv" pip install --python "$python" --link-mode hardlink --compile-bytecode "$@" </dev/null
}

(by_uv "$@")
status=$?
prefix=$("$python" -c 'import sys; print(sys.prefix)') && rm -rf "$prefix/uv-cache"
[ $status = 0 ] && exit 0
exec "$python" -m pip install --disable-pip-version-check "$@"
