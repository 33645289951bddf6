#!/bin/bash
# The kernels for GPUs, by nvcc: kernels.fatbin (tests/gpu/kernels.cu for every generation that this
# nvcc knows, and PTX for later ones), kernels.ptx, and the programs over the CUDA runtime, with the
# static and the shared one.
#
#   bench/gpu/kernels.sh NVCC FOLDER
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
nvcc=$1 out=$2
mkdir -p "$out"
known=$("$nvcc" --list-gpu-arch)
images=()
for generation in 75 80 86 89 90 100 120; do
  if grep -qx "compute_$generation" <<<"$known"; then
    images+=(-gencode "arch=compute_$generation,code=sm_$generation")
  fi
done
"$nvcc" "${images[@]}" -gencode arch=compute_75,code=compute_75 -fatbin -o "$out/kernels.fatbin" \
  tests/gpu/kernels.cu &
"$nvcc" "${images[@]}" -gencode arch=compute_75,code=compute_75 -fatbin \
  -o "$out/no_kernel.fatbin" bench/gpu/no_kernel.cu &
"$nvcc" -arch=compute_75 -ptx -o "$out/kernels.ptx" tests/gpu/kernels.cu &
# One generation and PTX: several would make the programs large.
for runtime in static shared; do
  "$nvcc" -cudart "$runtime" -gencode arch=compute_75,code=compute_75 -gencode \
    arch=compute_90,code=sm_90 -std=c++17 -Itests/gpu -o "$out/runtime_$runtime" \
    tests/gpu/runtime_programs.cu &
done
for job in $(jobs -p); do wait "$job"; done
