// Blocks of so many MiB, with libraries loaded before: PROGRAM KERNELS LIBRARY MIB...
#include <dlfcn.h>

#include "tests/gpu/program.h"

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  EXPECT(argc > 3 && ::dlopen(argv[2], RTLD_NOW) != nullptr);
  for (int i = 3; i < argc; ++i) {
    Block block = make((std::strtoull(argv[i], nullptr, 10) << 20) / sizeof(Word));
    fill(gpu, block, static_cast<Word>(i));
    add_to_digest(block);
    end(block);
  }
  return finish();
}
