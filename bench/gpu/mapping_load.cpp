// What mapping and unmapping cost while the GPU is at work, with the handles that Firn's frames
// have (POSIX_FD): by size, beside copies both ways, beside kernels that fill the GPU, beside other
// processes that map; a call for each handle and one for a run of them; which calls wait for a
// kernel or a copy. Prints one line of JSON; microseconds, medians and 99th of 100.
//
//   mapping_load KERNELS.ptx [--small]     KERNELS.ptx: bench/gpu/ask/kernels.ptx
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include "costs.h"

namespace {

using namespace firn::costs;
using nlohmann::ordered_json;
constexpr unsigned no_timing = 2;  // CU_EVENT_DISABLE_TIMING

/// What keeps the GPU busy: a thread that always has some work queued. None: it is idle.
class Load {
 public:
  enum Kind { idle, copies, kernels, both };

  Load(const Gpu& gpu, const char* module, Kind kind, size_t bytes) : gpu_(gpu), bytes_(bytes) {
    if (kind == copies || kind == both) {
      host_ = pages(2 * bytes);
      std::memset(host_, 1, 2 * bytes);
      DO(gpu.driver->mem_host_register(host_, 2 * bytes, CU_MEMHOSTREGISTER_PORTABLE));
      add([this](CUstream on) { copy(on, true); });
      add([this](CUstream on) { copy(on, false); });
    }
    if (kind == kernels || kind == both) {
      if (!gpu.driver->software) fills_ = gpu.kernel(gpu.module(module), "fills");
      add([this](CUstream on) { compute(on); });
    }
    if (feeds_.empty()) return;
    const size_t all = 3 * bytes;
    DO(gpu.driver->mem_address_reserve(&device_, all, 0, 0, 0));
    DO(gpu.driver->mem_create(&handle_, all, &gpu.prop, 0));
    DO(gpu.driver->mem_map(device_, all, 0, handle_, 0));
    DO(gpu.driver->mem_set_access(device_, all, &gpu.access, 1));
    feeder_ = std::thread([this] { feed(); });
    while (fed_.load() < 2 * feeds_.size()) std::this_thread::yield();
  }
  ~Load() {
    over_ = true;
    if (!feeder_.joinable()) return;
    feeder_.join();
    DO(gpu_.driver->ctx_synchronize());
    DO(gpu_.driver->mem_unmap(device_, 3 * bytes_));
    DO(gpu_.driver->mem_release(handle_));
    DO(gpu_.driver->mem_address_free(device_, 3 * bytes_));
    if (!host_) return;
    DO(gpu_.driver->mem_host_unregister(host_));
    ::munmap(host_, 2 * bytes_);
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  uint64_t rounds() const { return fed_.load(); }

 private:
  struct Feed {
    CUstream stream = nullptr;
    std::array<CUevent, 2> events{};
    std::function<void(CUstream)> work;
  };

  void add(std::function<void(CUstream)> work) {
    Feed feed{nullptr, {}, std::move(work)};
    DO(gpu_.driver->stream_create(&feed.stream, CU_STREAM_NON_BLOCKING));
    for (CUevent& event : feed.events) DO(gpu_.driver->event_create(&event, no_timing));
    feeds_.push_back(std::move(feed));
  }
  void copy(CUstream on, bool out) {
    constexpr size_t piece = 8 * MiB;  // as Firn's
    for (size_t at = 0; at < bytes_; at += piece) {
      const size_t size = std::min(piece, bytes_ - at);
      if (out)
        DO(gpu_.driver->memcpy_dtoh_async(host_ + at, device_ + at, size, on));
      else
        DO(gpu_.driver->memcpy_htod_async(device_ + bytes_ + at, host_ + bytes_ + at, size, on));
    }
  }
  void compute(CUstream on) {
    if (gpu_.driver->software) {
      DO(gpu_.entry<int (*)(void*, uint64_t)>("firnGpuBusy")(on, 2'000'000));
      return;
    }
    CUdeviceptr to = device_ + 2 * bytes_;
    unsigned long long count = bytes_ / 4;
    unsigned value = 7, times = 20;
    void* parameters[] = {&to, &count, &value, &times};
    DO(gpu_.entry<CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                               unsigned, unsigned, CUstream, void**, void**)>("cuLaunchKernel")(
        fills_, 4096, 1, 1, 512, 1, 1, 0, on, parameters, nullptr));
  }
  /// Two rounds of each are queued at any time.
  void feed() {
    DO(gpu_.driver->ctx_set_current(gpu_.context));
    for (size_t round = 0; !over_; ++round) {
      for (Feed& feed : feeds_) {
        CUevent event = feed.events[round % 2];
        if (round >= 2) DO(gpu_.driver->event_synchronize(event));
        feed.work(feed.stream);
        DO(gpu_.driver->event_record(event, feed.stream));
        ++fed_;
      }
    }
  }

  const Gpu& gpu_;
  const size_t bytes_;
  std::byte* host_ = nullptr;
  CUdeviceptr device_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
  CUfunction fills_ = nullptr;
  std::vector<Feed> feeds_;
  std::atomic<bool> over_{false};
  std::atomic<uint64_t> fed_{0};
  std::thread feeder_;
};

struct Calls {
  std::vector<double> create, map, access, unmap, run_access, run_unmap, release;
};

/// `count` frames of `bytes`, mapped side by side, each by itself; then in runs of `run`.
void measure(const Gpu& gpu, size_t bytes, size_t count, size_t run, Calls& calls) {
  const firn::Driver& d = *gpu.driver;
  CUdeviceptr base = 0;
  DO(d.mem_address_reserve(&base, bytes * count, 0, 0, 0));
  std::vector<CUmemGenericAllocationHandle> handles(count);
  for (auto& handle : handles)
    calls.create.push_back(us([&] { DO(d.mem_create(&handle, bytes, &gpu.prop, 0)); }));
  const auto each = [&](std::vector<double>& times, auto&& call) {
    for (size_t i = 0; i < count; ++i)
      times.push_back(us([&] { call(base + i * bytes, handles[i]); }));
  };
  const auto map = [&](CUdeviceptr at, CUmemGenericAllocationHandle handle) {
    DO(d.mem_map(at, bytes, 0, handle, 0));
  };
  each(calls.map, map);
  each(calls.access,
       [&](CUdeviceptr at, auto) { DO(d.mem_set_access(at, bytes, &gpu.access, 1)); });
  each(calls.unmap, [&](CUdeviceptr at, auto) { DO(d.mem_unmap(at, bytes)); });
  each(calls.map, map);
  for (size_t i = 0; i + run <= count; i += run)
    calls.run_access.push_back(us([&] {
      DO(d.mem_set_access(base + i * bytes, run * bytes, &gpu.access, 1));
    }));
  for (size_t i = 0; i + run <= count; i += run)
    calls.run_unmap.push_back(us([&] { DO(d.mem_unmap(base + i * bytes, run * bytes)); }));
  for (auto handle : handles) calls.release.push_back(us([&] { DO(d.mem_release(handle)); }));
  DO(d.mem_address_free(base, bytes * count));
}

constexpr size_t run_most = 8;

ordered_json table(const Gpu& gpu, const std::vector<size_t>& sizes, size_t most_bytes,
                   int rounds) {
  ordered_json found;
  for (const size_t bytes : sizes) {
    const size_t count = std::max(run_most, std::min<size_t>(64, most_bytes / bytes));
    Calls calls;
    for (int round = 0; round < rounds; ++round) measure(gpu, bytes, count, run_most, calls);
    ordered_json& row = found[std::to_string(bytes / MiB) + "MiB"];
    for (const auto& [name, times] :
         std::initializer_list<std::pair<const char*, const std::vector<double>&>>{
             {"create", calls.create}, {"map", calls.map}, {"access", calls.access},
             {"unmap", calls.unmap}, {"access of 8", calls.run_access},
             {"unmap of 8", calls.run_unmap}, {"release", calls.release}})
      row[name] = {rounded(median(times)), rounded(quantile(times, .99))};
    row["handles"] = count;
  }
  return found;
}

/// Each call beside work that uses other memory: how long it took, and whether it came back only
/// when the work was over.
ordered_json waiting(const Gpu& gpu, const char* module) {
  const firn::Driver& d = *gpu.driver;
  const size_t large = gpu.small ? 64 * MiB : 2048 * MiB, bytes = 32 * MiB;
  std::byte* host = pages(large);
  DO(d.mem_host_register(host, large, CU_MEMHOSTREGISTER_PORTABLE));
  CUdeviceptr block = 0, address = 0;
  CUmemGenericAllocationHandle of_block = 0, handle = 0;
  DO(d.mem_address_reserve(&block, large, 0, 0, 0));
  DO(d.mem_create(&of_block, large, &gpu.prop, 0));
  DO(d.mem_map(block, large, 0, of_block, 0));
  DO(d.mem_set_access(block, large, &gpu.access, 1));
  DO(d.mem_address_reserve(&address, bytes, 0, 0, 0));
  CUstream stream = nullptr;
  CUevent over = nullptr;
  DO(d.stream_create(&stream, CU_STREAM_NON_BLOCKING));
  DO(d.event_create(&over, no_timing));
  const CUfunction spins = d.software ? nullptr : gpu.kernel(gpu.module(module), "spins");
  const auto spin = [&](unsigned blocks) {
    constexpr unsigned long long ns = 30'000'000;
    if (d.software) {
      DO(gpu.entry<int (*)(void*, uint64_t)>("firnGpuBusy")(stream, ns));
      return;
    }
    unsigned long long most = ns;
    void* parameters[] = {&block, &most};  // its first word is 0
    DO(gpu.entry<CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, unsigned, CUstream, void**, void**)>("cuLaunchKernel")(
        spins, blocks, 1, 1, blocks == 1 ? 1 : 1024, 1, 1, 0, stream, parameters, nullptr));
  };
  DO(d.memset_d8_async(block, 0, large, stream));
  const std::pair<const char*, std::function<void()>> works[] = {
      {"a kernel of one thread", [&] { spin(1); }},
      {"a kernel that fills the GPU", [&] { spin(264); }},
      {"a copy out", [&] { DO(d.memcpy_dtoh_async(host, block, large, stream)); }},
      {"a copy in", [&] { DO(d.memcpy_htod_async(block, host, large, stream)); }}};
  const std::pair<const char*, std::function<CUresult()>> calls[] = {
      {"create", [&] { return d.mem_create(&handle, bytes, &gpu.prop, 0); }},
      {"map", [&] { return d.mem_map(address, bytes, 0, handle, 0); }},
      {"access", [&] { return d.mem_set_access(address, bytes, &gpu.access, 1); }},
      {"unmap", [&] { return d.mem_unmap(address, bytes); }},
      {"release", [&] { return d.mem_release(handle); }}};
  for (const auto& [_, work] : works) work();
  for (const auto& [_, call] : calls) DO(call());
  DO(d.ctx_synchronize());
  ordered_json found;
  for (const auto& [beside, work] : works)
    for (const auto& [name, call] : calls) {
      std::memset(host, 0, 64);  // (the copy in brings the word for which kernels look)
      work();
      DO(d.event_record(over, stream));
      CUresult result = CUDA_SUCCESS;
      const double taken = us([&] { result = call(); });
      DO(result);
      found[beside][name] = {{"us", rounded(taken)},
                             {"waited", d.event_query(over) == CUDA_SUCCESS}};
      DO(d.ctx_synchronize());
    }
  DO(d.mem_unmap(block, large));
  DO(d.mem_release(of_block));
  DO(d.mem_host_unregister(host));
  ::munmap(host, large);
  return found;
}

ordered_json loads(const Gpu& gpu, const char* module) {
  const std::vector<size_t> sizes = gpu.small
                                        ? std::vector<size_t>{2 * MiB, 8 * MiB}
                                        : std::vector<size_t>{2 * MiB, 8 * MiB, 32 * MiB, 64 * MiB,
                                                              128 * MiB};
  const size_t most = (gpu.small ? 32 : 2048) * MiB;
  const int rounds = gpu.small ? 1 : 4;
  ordered_json found;
  for (const auto& [name, kind] : std::initializer_list<std::pair<const char*, Load::Kind>>{
           {"idle", Load::idle}, {"copies both ways", Load::copies},
           {"kernels that fill the GPU", Load::kernels}, {"copies and kernels", Load::both}}) {
    const Load load(gpu, module, kind, (gpu.small ? 16 : 256) * MiB);
    if (kind == Load::idle) (void)table(gpu, sizes, most, 1);  // warmed up
    const uint64_t before = load.rounds();
    found[name] = table(gpu, sizes, most, rounds);
    found[name]["rounds of work meanwhile"] = load.rounds() - before;
  }
  return found;
}

Gpu open_as_firn(bool small) {
  Gpu gpu = open();
  gpu.small = small;
  gpu.prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  if (gpu.driver->mem_create(&handle, 2 * MiB, &gpu.prop, 0) != CUDA_SUCCESS) {
    gpu.prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    return gpu;
  }
  DO(gpu.driver->mem_release(handle));
  return gpu;
}

/// `count` processes that map at the same time: what the first one sees. Called before this process
/// has opened a driver (nothing of CUDA's survives a fork).
ordered_json processes(int count, bool small) {
  int ready[2], go[2], out[2];
  if (::pipe(ready) != 0 || ::pipe(go) != 0 || ::pipe(out) != 0) give_up("pipe", errno);
  std::vector<pid_t> children;
  for (int i = 0; i < count; ++i) {
    const pid_t child = ::fork();
    if (child < 0) give_up("fork", errno);
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    ::close(go[1]);
    const Gpu gpu = open_as_firn(small);
    const std::vector<size_t> sizes = {2 * MiB, small ? 8 * MiB : 32 * MiB};
    const size_t most = (small ? 16 : 512) * MiB;
    (void)table(gpu, sizes, most, 1);
    char word = 'r';
    if (::write(ready[1], &word, 1) != 1 || ::read(go[0], &word, 1) != 0) std::_Exit(4);
    const std::string found = table(gpu, sizes, most, small ? 1 : 6).dump();
    if (i == 0 && ::write(out[1], found.data(), found.size()) < 0) std::_Exit(4);
    std::_Exit(0);  // (the driver's own exit of so many processes is not measured)
  }
  ::close(ready[1]), ::close(out[1]), ::close(go[0]);
  char word = 0;
  int begun = 0;
  while (begun < count && ::read(ready[0], &word, 1) == 1) ++begun;
  ::close(go[1]);  // all begin
  std::string text(1 << 16, '\0');
  const ssize_t got = ::read(out[0], text.data(), text.size());
  bool well = begun == count && got > 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    well = well && status == 0;
  }
  ::close(ready[0]), ::close(out[0]);
  if (!well) return {{"failed", "only " + std::to_string(begun) + " processes began"}};
  return ordered_json::parse(text.substr(0, static_cast<size_t>(got)));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: mapping_load KERNELS.ptx [--small]\n");
    return 2;
  }
  const bool small = argc > 2 && std::strcmp(argv[2], "--small") == 0;
  ordered_json found;
  for (const int count : {2, 8})
    if (!small || count == 2)
      found[std::to_string(count) + " processes"] = processes(count, small);
  const Gpu gpu = open_as_firn(small);
  found["handles"] = gpu.prop.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE ? "none" : "posix_fd";
  found["loads"] = loads(gpu, argv[1]);
  found["waiting"] = waiting(gpu, argv[1]);
  std::printf("%s\n", found.dump().c_str());
  return 0;
}
