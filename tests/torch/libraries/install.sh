#!/bin/bash
# Installs libraries of others (requirements.txt) into build/libraries, beside .venv, whose torch
# they use; prints the folder for PYTHONPATH. Idempotent; the status is 77 where they cannot be had.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../.." || exit 1

here=tests/torch/libraries
folder=$PWD/build/libraries
stamp=$folder/installed
mkdir -p "$folder" || exit 1

install() {
  rm -rf "$folder/venv" && .venv/bin/python -m venv "$folder/venv" || return 1
  local site outer
  site=$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') &&
    outer=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return 1
  echo "$outer" >"$site/outer.pth"
  .venv/bin/python -m pip freeze --exclude firn >"$folder/constraints" || return 1
  # (By pip: uv does not see the packages of outer.pth.)
  "$folder/venv/bin/python" -m pip install --disable-pip-version-check -q -r $here/requirements.txt \
    -c "$folder/constraints" || return 1
  echo "$site" >"$folder/site"
}

# One at a time; anew where these, or the Python and the packages that they are beside, are others.
exec 9>"$folder/lock"
flock 9
wanted=$({ cat $here/requirements.txt; .venv/bin/python -VV; .venv/bin/python -m pip freeze; } | sha256sum)
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  if ! install >"$folder/log" 2>&1; then
    tail -n 5 "$folder/log" >&2
    echo "install.sh: these libraries cannot be installed ($folder/log)" >&2
    exit 77
  fi
  printf '%s\n' "$wanted" >"$stamp"
fi
cat "$folder/site"
