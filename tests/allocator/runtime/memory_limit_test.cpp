// A job in a memory cgroup of 520 MiB: 1.5 GiB of blocks leave the device while the program itself
// comes to hold 300 MiB. Host memory is made as far as there is room, and given back: the kernel
// kills nobody, and all bytes come back. Needs a cgroup that may be written to, as root has; else
// skipped (status 77).
//
//   memory_limit_test           makes the cgroup, and runs itself in it
//   memory_limit_test --job     the job
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "allocator/runtime/machine_memory.h"
#include "firn/cuda_abi.h"
#include "firn/firn.h"

namespace fs = std::filesystem;

namespace {

constexpr size_t mib = 1u << 20, block_bytes = 4 * mib, blocks_most = 384, own_most = 300 * mib;
constexpr uint64_t limit_bytes = 520 * mib;
constexpr int skipped = 77;

std::string text_of(const std::string& name) {
  std::ifstream in(name);
  return {std::istreambuf_iterator<char>(in), {}};
}

[[noreturn]] void give_up(const std::string& what) {
  std::printf("%s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}
void must(int status, const char* what) {
  if (status != FIRN_OK) give_up(std::string(what) + ": " + firn_error());
}

struct Gpu {
  CUresult (*fill)(CUdeviceptr, unsigned char, size_t, CUstream);
  CUresult (*copy)(void*, CUdeviceptr, size_t);
  CUresult (*init)(unsigned);
  CUresult (*retain)(CUcontext*, CUdevice);
  CUresult (*set_current)(CUcontext);
  template <class T>
  void get(T& into, const char* name) {
    static void* handle = ::dlopen(std::getenv("FIRN_TEST_GPU"), RTLD_NOW);
    into = reinterpret_cast<T>(handle ? ::dlsym(handle, name) : nullptr);
    if (!into) give_up(std::string("no ") + name);
  }
};

void touch(void* block, int how) {
  must(firn_touch(&block, &how, 1, nullptr), "firn_touch");
}

int job(const char* folder) {
  Gpu gpu{};
  gpu.get(gpu.fill, "cuMemsetD8Async");
  gpu.get(gpu.copy, "cuMemcpyDtoH_v2");
  gpu.get(gpu.init, "cuInit");
  gpu.get(gpu.retain, "cuDevicePrimaryCtxRetain");
  gpu.get(gpu.set_current, "cuCtxSetCurrent");
  CUcontext context = nullptr;
  if (gpu.init(0) != CUDA_SUCCESS || gpu.retain(&context, 0) != CUDA_SUCCESS ||
      gpu.set_current(context) != CUDA_SUCCESS)
    give_up("no context");
  std::string conf = std::string("firn_budget:48MiB,firn_watch:0,firn_dir:") + folder +
                     ",firn_driver:" + std::getenv("FIRN_TEST_GPU");
  must(firn_init(conf.c_str()), "firn_init");
  std::vector<void*> blocks;
  std::vector<std::vector<char>> own;  // what the program holds by itself
  size_t own_bytes = 0;
  for (size_t i = 0; i < blocks_most; ++i) {
    void* block = nullptr;
    must(firn_malloc(&block, block_bytes, 0, nullptr), "firn_malloc");
    blocks.push_back(block);
    touch(block, FIRN_WRITE);
    if (gpu.fill(reinterpret_cast<CUdeviceptr>(block), static_cast<unsigned char>(i * 7),
                 block_bytes, nullptr) != CUDA_SUCCESS)
      give_up("cuMemsetD8Async");
    firn_launched();
    if (i > blocks_most / 3 && own_bytes < own_most) {  // after host memory has grown
      own.emplace_back(4 * mib, static_cast<char>(i));
      own_bytes += 4 * mib;
      ::usleep(10'000);  // a program that grows at 400 MB/s
    }
  }
  std::vector<unsigned char> bytes(block_bytes);
  for (size_t i = 0; i < blocks_most; ++i) {
    touch(blocks[i], FIRN_READ);
    if (gpu.copy(bytes.data(), reinterpret_cast<CUdeviceptr>(blocks[i]), block_bytes) !=
        CUDA_SUCCESS)
      give_up("cuMemcpyDtoH");
    firn_launched();
    const std::vector<unsigned char> expected(block_bytes, static_cast<unsigned char>(i * 7));
    if (bytes != expected) give_up("wrong bytes in block " + std::to_string(i));
  }
  std::string text(firn_stats(nullptr, 0) + 1, '\0');
  text.resize(firn_stats(text.data(), text.size()));
  const nlohmann::json stats = nlohmann::json::parse(text);
  const nlohmann::json& device = stats["devices"][0];
  if (device.at("lost_blocks") != 0) give_up("blocks were lost");
  std::printf("trouble: %s\n", device.at("trouble").dump().c_str());
  return 0;
}

/// A cgroup below this process's own with the limit; empty: it cannot be made.
std::string make_group(int& version) {
  for (const firn::MemoryGroup& group :
       firn::memory_groups(text_of("/proc/self/cgroup"), text_of("/proc/self/mountinfo"))) {
    const std::string folder = group.folder + "/firn-memory-limit-" + std::to_string(::getpid());
    std::error_code error;
    if (!fs::create_directory(folder, error)) continue;
    const char* limit = group.version == 2 ? "/memory.max" : "/memory.limit_in_bytes";
    std::ofstream out(folder + limit);
    out << limit_bytes << std::flush;
    if (fs::exists(folder + limit) && out) {
      version = group.version;
      return folder;
    }
    (void)::rmdir(folder.c_str());
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--job") == 0) return job(argv[2]);
  int version = 0;
  const std::string group = make_group(version);
  if (group.empty()) {
    std::printf("skipped: no memory cgroup can be made here (root, a writable /sys/fs/cgroup)\n");
    return skipped;
  }
  std::string folder = (fs::temp_directory_path() / "memory-limit-XXXXXX").string();
  if (!::mkdtemp(folder.data())) give_up("mkdtemp");
  const pid_t child = ::fork();
  if (child == 0) {
    std::ofstream(group + "/cgroup.procs") << ::getpid() << std::flush;
    ::execl("/proc/self/exe", argv[0], "--job", folder.c_str(), nullptr);
    ::_exit(1);
  }
  int status = -1;
  (void)::waitpid(child, &status, 0);
  const std::string peak =
      text_of(group + (version == 2 ? "/memory.peak" : "/memory.max_usage_in_bytes"));
  (void)::rmdir(group.c_str());
  fs::remove_all(folder);
  std::printf("status %#x, at most %llu MiB of %llu\n", static_cast<unsigned>(status),
              std::strtoull(peak.c_str(), nullptr, 10) / mib,
              (unsigned long long)(limit_bytes / mib));
  return status == 0 ? 0 : 1;
}
