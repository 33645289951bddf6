/* A vector pipeline in C, that asks the loader for nothing but the driver. */
#include <stdio.h>
#include <stdlib.h>

#ifdef FIRN_REAL_CUDA
#include <cuda.h>
#else
typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st* CUcontext;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef struct CUstream_st* CUstream;
#define CUDA_SUCCESS 0
#define cuMemAlloc cuMemAlloc_v2
#define cuMemFree cuMemFree_v2
#define cuMemcpyDtoH cuMemcpyDtoH_v2
CUresult cuInit(unsigned);
CUresult cuDeviceGet(CUdevice*, int);
CUresult cuDevicePrimaryCtxRetain(CUcontext*, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuModuleLoad(CUmodule*, const char*);
CUresult cuModuleGetFunction(CUfunction*, CUmodule, const char*);
CUresult cuMemAlloc(CUdeviceptr*, size_t);
CUresult cuMemFree(CUdeviceptr);
CUresult cuMemcpyDtoH(void*, CUdeviceptr, size_t);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CUstream, void**, void**);
#endif

#define ARRAYS 16
static const unsigned long long count = 1u << 20;

static void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "%s: %d\n", what, (int)result);
  exit(3);
}
#define DO(call) check(call, #call)

int main(int argc, char** argv) {
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction fill, mix;
  CUdeviceptr all[ARRAYS];
  const size_t bytes = count * sizeof(unsigned);
  unsigned* words = malloc(bytes);
  unsigned long long digest = 14695981039346656037ull;
  if (argc < 2 || !words) return 2;
  DO(cuInit(0));
  DO(cuDeviceGet(&device, 0));
  DO(cuDevicePrimaryCtxRetain(&context, device));
  DO(cuCtxSetCurrent(context));
  DO(cuModuleLoad(&module, argv[1]));
  DO(cuModuleGetFunction(&fill, module, "fill"));
  DO(cuModuleGetFunction(&mix, module, "mix"));
  for (unsigned i = 0; i < ARRAYS; ++i) {
    DO(cuMemAlloc(&all[i], bytes));
    void* arguments[] = {&all[i], (void*)&count, &i};
    DO(cuLaunchKernel(fill, 64, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
  }
  for (unsigned round = 0; round < 3; ++round)
    for (int i = 0; i < ARRAYS; ++i) {
      void* arguments[] = {&all[i], &all[(i + 1) % ARRAYS], &all[(i + 7) % ARRAYS], (void*)&count,
                           &round};
      DO(cuLaunchKernel(mix, 64, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
    }
  for (int i = 0; i < ARRAYS; ++i) {
    DO(cuMemcpyDtoH(words, all[i], bytes));
    for (unsigned long long k = 0; k < count; ++k)
      digest = (digest ^ words[k]) * 1099511628211ull;
    DO(cuMemFree(all[i]));
  }
  free(words);
  printf("digest %016llx bytes %llu\n", digest, (unsigned long long)bytes * ARRAYS);
  return 0;
}
