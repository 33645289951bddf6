// XXH3-128 with AVX2; this file alone is compiled for it.
#define FIRN_SUM_KERNEL sum_kernel_avx2
#include "backing/store/sum_kernel.inc"
