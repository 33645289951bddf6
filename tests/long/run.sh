#!/bin/bash
# An hour of everything mixed, from fresh seeds: random PyTorch programs, the simulation,
# properties, every nth failure, fuzzers. What fails is printed with the command that replays it.
#
#   tests/long/run.sh [--minutes N] [--seed N] [--only PIECE,...]     default: 60 minutes
#
# It wants what bench/setup.sh --tests makes. Progress goes to stderr each minute; a table closes,
# then "long: N passed, N failed, N skipped"; the status is 0 only when nothing failed.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit 1
for variable in $(compgen -e FIRN_ | grep -vE '^FIRN_TEST_'); do unset "$variable"; done
unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF
export OMP_WAIT_POLICY=passive OPENBLAS_NUM_THREADS=1
exec .venv/bin/python tests/long/long_run.py "$@"
