// Copies of boxes, and many copies in one call; tables of addresses travel in both.
#include "tests/gpu/program.h"

namespace {
constexpr size_t arrays = 16, count = 1u << 19, entries = 2;

CUDA_MEMCPY3D box(CUdeviceptr to, CUdeviceptr from, size_t pitch, size_t height) {
  CUDA_MEMCPY3D is{};
  is.srcMemoryType = is.dstMemoryType = static_cast<CUmemorytype>(2);
  is.srcDevice = from;
  is.dstDevice = to;
  is.srcPitch = is.dstPitch = pitch;
  is.srcHeight = is.dstHeight = height;
  return is;
}
}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  std::vector<Block> all;
  for (size_t i = 0; i < arrays; ++i) {
    all.push_back(make(count));
    fill(gpu, all[i], static_cast<Word>(i));
  }
  CUdeviceptr tables = 0;
  DO(cuMemAlloc(&tables, 1 << 16));
  CUstream stream = nullptr;
  DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const CUfunction kernel = gpu.kernel("mix"), products = gpu.kernel("products");
  const unsigned number = entries;
  const unsigned long long words = count;
  const auto multiply = [&](CUdeviceptr at, size_t pitch) {
    const CUdeviceptr parts[] = {at, at + pitch, at + 2 * pitch};
    launch(products, {&parts[0], &parts[1], &parts[2], &number, &words}, stream);
    DO(cuStreamSynchronize(stream));
  };
  Word salt = 0;
  const auto stir = [&] {
    for (size_t i = 0; i < arrays; ++i)
      mix(kernel, all[i], all[(i + 1) % arrays], all[(i + 5) % arrays], ++salt);
    DO(cuCtxSynchronize());
  };
  stir();
  // Boxes within the device: ten slices of 20 rows.
  CUDA_MEMCPY3D is = box(all[0].address, all[9].address, 1024, 40);
  is.srcXInBytes = 64;
  is.dstY = 3;
  is.srcZ = 1;
  is.WidthInBytes = 640;
  is.Height = 20;
  is.Depth = 10;
  DO(cuMemcpy3D(&is));
  DO(cuCtxSynchronize());
  is.srcDevice = all[10].address;
  DO(cuMemcpy3DAsync(&is, stream));
  DO(cuStreamSynchronize(stream));
  // Tables of addresses, each in a row of a box from the host.
  CUdeviceptr addresses[3][64] = {};
  for (size_t t = 0; t < 3; ++t)
    for (size_t e = 0; e < entries; ++e) addresses[t][e] = all[4 * t + e].address;
  CUDA_MEMCPY3D rows = box(tables, 0, 512, 3);
  rows.srcMemoryType = static_cast<CUmemorytype>(1);
  rows.srcHost = addresses;
  rows.WidthInBytes = entries * sizeof(CUdeviceptr);
  rows.Height = 3;
  rows.Depth = 1;
  DO(cuMemcpy3DAsync(&rows, stream));
  stir();
  multiply(tables, 512);
  // And in a batch: from the host, and within the device.
  CUdeviceptr to[4], from[4];
  size_t bytes[4];
  for (size_t t = 0; t < 3; ++t) {
    for (size_t e = 0; e < entries; ++e) addresses[t][e] = all[15 - 3 * t - e].address;
    to[t] = tables + 4096 + 64 * t;
    from[t] = reinterpret_cast<CUdeviceptr>(addresses[t]);
    bytes[t] = entries * sizeof(CUdeviceptr);
  }
  to[3] = all[2].address;
  from[3] = all[12].address;
  bytes[3] = 1 << 20;
  DO(COPY_BATCH(to, from, bytes, 4, stream));
  DO(cuStreamSynchronize(stream));
  stir();
  multiply(tables + 4096, 64);
  for (size_t t = 0; t < 3; ++t) {
    to[t] = tables + 8192 + 64 * t;
    from[t] = tables + 4096 + 64 * ((t + 1) % 3);
  }
  DO(COPY_BATCH(to, from, bytes, 3, stream));
  stir();
  multiply(tables + 8192, 64);
  for (Block& block : all) add_to_digest(block);
  return finish();
}
