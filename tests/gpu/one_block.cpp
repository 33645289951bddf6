// Blocks of so many MiB, with libraries loaded before: PROGRAM KERNELS LIBRARY MIB... ("own12": memory
// of 12 MiB that the program maps by itself).
#include <dlfcn.h>

#include <cstring>

#include "tests/gpu/program.h"

namespace {
void map_own(size_t mib) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle = 0;
  DO(cuMemCreate(&handle, mib << 20, &prop, 0));
  DO(cuMemRelease(handle));
}
}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  EXPECT(argc > 3 && ::dlopen(argv[2], RTLD_NOW) != nullptr);
  for (int i = 3; i < argc; ++i) {
    if (std::strncmp(argv[i], "own", 3) == 0) {
      map_own(std::strtoull(argv[i] + 3, nullptr, 10));
      continue;
    }
    Block block = make((std::strtoull(argv[i], nullptr, 10) << 20) / sizeof(Word));
    fill(gpu, block, static_cast<Word>(i));
    add_to_digest(block);
    end(block);
  }
  return finish();
}
