// A kernel with ten parameters that does nothing: what bench/preload/launch launches on a GPU.
extern "C" __global__ void no_kernel(void*, void*, void*, void*, void*, void*, void*, void*, void*,
                                     void*) {}
