// Two processes and one of the first one's blocks: the second opens it, reads and writes it by
// copies and by a kernel, while the first needs more memory than there is for the others.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "tests/gpu/program.h"

namespace {
constexpr size_t count = 1u << 19;
constexpr Word seed = 77;

template <class What>
void send(int to, const What& what) {
  EXPECT(::write(to, &what, sizeof what) == static_cast<ssize_t>(sizeof what));
}
template <class What>
What receive(int from) {
  What what{};
  EXPECT(::read(from, &what, sizeof what) == static_cast<ssize_t>(sizeof what));
  return what;
}

/// The other process: what it finds in the block is its answer; then it fills it.
int other(const char* kernels, int from, int to) {
  Gpu gpu(kernels);
  const auto handle = receive<CUipcMemHandle>(from);
  Block block{0, count}, again{0, count};
  DO(cuIpcOpenMemHandle(&block.address, handle, 1));
  add_to_digest(block);
  send(to, digest);
  Block own = make(count);
  fill(gpu, own, seed);
  DO(cuMemcpyDtoD(block.address, own.address, own.bytes() / 2));
  mix(gpu.kernel("mix"), block, own, own, 3);
  DO(cuCtxSynchronize());
  if (cuIpcOpenMemHandle(&again.address, handle, 1) == CUDA_SUCCESS) {
    EXPECT(again.address == block.address);  // the same mapping, which is to be closed twice
    DO(cuIpcCloseMemHandle(again.address));
  }
  digest = 0;
  add_to_digest(block);
  send(to, digest);
  DO(cuIpcCloseMemHandle(block.address));
  EXPECT(cuIpcCloseMemHandle(block.address) != CUDA_SUCCESS);
  end(own);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  const char* const kernels = kernels_of(argc, argv);
  if (argc == 4) return other(kernels, std::atoi(argv[2]), std::atoi(argv[3]));
  int there[2], back[2];
  EXPECT(::pipe(there) == 0 && ::pipe(back) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::unsetenv("FIRN_STATS");  // of the first process
    const std::string from = std::to_string(there[0]), to = std::to_string(back[1]);
    ::execl("/proc/self/exe", argv[0], kernels, from.c_str(), to.c_str(), nullptr);
    ::_exit(9);
  }
  ::close(there[0]);
  ::close(back[1]);  // where the other ends early, reading ends too
  Gpu gpu(kernels);
  constexpr size_t arrays = 16;
  std::vector<Block> all;
  for (size_t i = 0; i < arrays; ++i) {
    all.push_back(make(count));
    fill(gpu, all[i], static_cast<Word>(i));
  }
  const CUfunction kernel = gpu.kernel("mix");
  const auto round = [&](Word salt) {
    for (size_t i = 0; i < arrays; ++i)
      if (i != 5) mix(kernel, all[i], all[(i + 1) % arrays], all[(i + 5) % arrays], salt);
  };
  round(1);
  round(2);
  CUipcMemHandle handle;
  DO(cuIpcGetMemHandle(&handle, all[5].address));
  CUdeviceptr mine = 0;
  EXPECT(cuIpcOpenMemHandle(&mine, handle, 1) != CUDA_SUCCESS);  // not where it comes from
  add_to_digest(all[5]);
  const unsigned long long before = digest;
  send(there[1], handle);
  EXPECT(receive<unsigned long long>(back[0]) == before);
  const auto after = receive<unsigned long long>(back[0]);
  int status = 0;
  EXPECT(::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  digest = 0;
  add_to_digest(all[5]);
  EXPECT(digest == after);
  round(3);
  round(4);
  for (Block& block : all) add_to_digest(block);
  return finish();
}
