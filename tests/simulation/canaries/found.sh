#!/bin/sh
# Whether a test finds a canary by what is meant to find it.
#
#   found.sh ORACLE PROGRAM ARGUMENT...
#
# Passes where PROGRAM fails and its output holds ORACLE; fails where it passes, or fails by something
# else; is skipped (77) where it is.
oracle=$1
shift
output=$("$@" 2>&1)
status=$?
if [ "$status" = 77 ]; then
  printf '%s\n' "$output" | tail -n 5
  exit 77
fi
if [ "$status" = 0 ]; then
  printf 'NOT FOUND: %s passes\n' "$*"
  exit 1
fi
if printf '%s' "$output" | grep -qF -- "$oracle"; then
  printf 'found by: %s\n' "$oracle"
  exit 0
fi
printf 'FOUND BY ANOTHER ORACLE (status %s), not by: %s\n%s\n' "$status" "$oracle" "$output" | tail -n 40
exit 1
