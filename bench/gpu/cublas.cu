// Products by cuBLAS, plain and batched (whose tables of pointers are in the device's memory), over
// matrices that do not all fit: `cublas NAME` prints a digest, the same with and without Firn.
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define DO(call)                                                                     \
  do {                                                                               \
    const int result = static_cast<int>(call);                                       \
    if (result != 0) {                                                               \
      std::fprintf(stderr, "line %d: %s: %d\n", __LINE__, #call, result);            \
      std::exit(3);                                                                  \
    }                                                                                \
  } while (0)

namespace {
constexpr int side = 2048, matrices = 16, batch = 4;
constexpr size_t bytes = sizeof(float) * side * side;

__global__ void fill(float* to, unsigned seed) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < side * side;
       i += gridDim.x * blockDim.x)
    to[i] = static_cast<float>((i * 2654435761u + seed * 40503u) >> 20) / 4096.f - .5f;
}
}  // namespace

int main() {
  std::vector<float*> all(matrices);
  for (int i = 0; i < matrices; ++i) {
    DO(cudaMalloc(&all[i], bytes));
    fill<<<64, 256>>>(all[i], i);
    DO(cudaGetLastError());
  }
  cublasHandle_t handle;
  DO(cublasCreate(&handle));
  const float scale = 1.f / side, add = .5f;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < matrices; ++i)
      DO(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, side, side, side, &scale, all[i], side,
                     all[(i + 3) % matrices], side, &add, all[(i + 7) % matrices], side));
    const float** tables = nullptr;
    DO(cudaMalloc(&tables, 3 * batch * sizeof(float*)));
    std::vector<const float*> host;
    for (int which : {0, 5, 10})
      for (int k = 0; k < batch; ++k) host.push_back(all[(which + k + round) % matrices]);
    DO(cudaMemcpy(tables, host.data(), host.size() * sizeof(float*), cudaMemcpyHostToDevice));
    DO(cublasSgemmBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, side, side, side, &scale, tables, side,
                          tables + batch, side, &add,
                          const_cast<float**>(tables + 2 * batch), side, batch));
    DO(cudaDeviceSynchronize());
    DO(cudaFree(tables));
  }
  unsigned long long digest = 14695981039346656037ull;
  std::vector<unsigned> words(side * side);
  for (const float* matrix : all) {
    DO(cudaMemcpy(words.data(), matrix, bytes, cudaMemcpyDeviceToHost));
    for (unsigned word : words) digest = (digest ^ word) * 1099511628211ull;
  }
  DO(cublasDestroy(handle));
  std::printf("digest %016llx bytes %llu\n", digest,
              static_cast<unsigned long long>(matrices) * bytes);
  return 0;
}
