#!/bin/bash
# What nvcc writes of kernels' parameters, for several GPUs, is understood.
# images_nvcc_test.sh IMAGES_TEST KERNELS.cu ; 77: no nvcc.
set -eu
nvcc=$(bash "$(dirname "$0")/../../nvcc.sh") || { echo "no nvcc"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
several="-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]"
for form in "-arch=compute_75 -code=sm_75 -cubin" "-arch=sm_90 -cubin" "$several -fatbin -no-compress"
do
  # shellcheck disable=SC2086
  if ! "$nvcc" $form -o "$folder/image" "$2" >"$folder/log" 2>&1; then
    echo "nvcc does not work here, or has no $form:"
    cat "$folder/log"
    exit 77
  fi
  FIRN_TEST_CUBIN=$folder/image "$1" --gtest_filter='Images.of_nvcc'
done
