// XXH3-128 with the vector unit that every processor of this architecture has.
#define FIRN_SUM_KERNEL sum_kernel_generic
#include "backing/store/sum_kernel.inc"
