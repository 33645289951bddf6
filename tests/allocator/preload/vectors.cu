// The least that a CUDA program does.
#include <cstdio>

__global__ void add(float* to, const float* from, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] += from[i];
}

int main() {
  float *to = nullptr, *from = nullptr;
  cudaError_t error = cudaMalloc(&to, 1 << 22);
  if (error == cudaSuccess) error = cudaMalloc(&from, 1 << 22);
  if (error == cudaSuccess) add<<<64, 64>>>(to, from, 64 * 64);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  std::printf("%s\n", cudaGetErrorName(error));
  return 0;
}
