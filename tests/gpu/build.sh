#!/bin/bash
# Builds the programs for a real GPU, with nvcc and the toolkit's <cuda.h>, and runs each where
# there is one: with and without Firn. Without nvcc: skipped (77); without a GPU: built, not run.
#
#   tests/gpu/build.sh FOLDER [LIBFIRN_PRELOAD.so]
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$1
preload=${2:-}
nvcc=$(command -v nvcc || true)
for place in /usr/local/cuda/bin/nvcc; do
  if [ -z "$nvcc" ] && [ -x "$place" ]; then nvcc=$place; fi
done
if [ -z "$nvcc" ]; then echo "no nvcc"; exit 77; fi
toolkit=$(cd "$(dirname "$(readlink -f "$nvcc")")/.." && pwd)
include=$toolkit/include
[ -f "$include/cuda.h" ] || include=$(dirname "$(find "$toolkit/" -name cuda.h | head -1)")
stubs=$(dirname "$(find "$toolkit/" -path '*stubs/libcuda.so' | head -1)")
mkdir -p "$out"
"$nvcc" -arch=compute_75 -ptx -o "$out/kernels.ptx" "$here/kernels.cu"
"$nvcc" -arch=compute_75 -code=sm_75 -cubin -o "$out/kernels.cubin" "$here/kernels.cu"
"$nvcc" -arch=compute_75 -std=c++17 -I"$here" -o "$out/runtime_programs" \
  "$here/runtime_programs.cu"
for source in "$here"/*.cpp; do
  name=$(basename "$source" .cpp)
  case $name in kernels_software | maps) continue ;; esac
  "${CXX:-c++}" -std=c++20 -O1 -Wall -Wextra -DFIRN_REAL_CUDA -isystem "$include" -I"$root" \
    -o "$out/$name" "$source" -L"$stubs" -lcuda -pthread
done
"${CC:-cc}" -O1 -DFIRN_REAL_CUDA -isystem "$include" -o "$out/vector_c" "$here/vector_c.c" \
  -L"$stubs" -lcuda
echo "built with $("$nvcc" --version | tail -2 | head -1)"
if ! nvidia-smi -L >/dev/null 2>&1 || [ -z "$preload" ]; then
  echo "no GPU, or no library to run with: not run"
  exit 0
fi
unset FIRN_TEST_GPU
for name in vector vector_c by_value capture_short copies cycles gemm structs globals graphs host_table \
            nodes streams threads pools; do
  python3 "$here/run_program.py" "$preload" "$out/$name" "$out/kernels.ptx"
done
python3 "$here/run_program.py" "$preload" "$out/list" "$out/kernels.ptx" \
  --expect-pinned "a kernel stored its address in memory"
for name in vector gemm by_value structs list graphs threads; do
  python3 "$here/run_program.py" "$preload" "$out/runtime_programs" "$name"
done
