// What the driver's calls take that Firn makes, and how fast copies are, through firn::Driver: the
// machine's own driver or the software GPU (FIRN_TEST_DRIVER names the library). Prints one line of
// JSON; microseconds are medians.
//
//   driver_costs KERNELS [--small]     KERNELS: a module of tests/gpu/kernels.cu
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "costs.h"

namespace {

using namespace firn::costs;
using nlohmann::ordered_json;

struct Calls {
  std::vector<double> create, map, access, unmap, release;
};

/// `count` frames of `bytes`: made, mapped side by side, opened one by one, and back.
Calls frames(const Gpu& gpu, size_t bytes, size_t count) {
  const firn::Driver& d = *gpu.driver;
  Calls calls;
  CUdeviceptr base = 0;
  DO(d.mem_address_reserve(&base, bytes * count, 0, 0, 0));
  std::vector<CUmemGenericAllocationHandle> handles(count);
  for (auto& handle : handles)
    calls.create.push_back(us([&] { DO(d.mem_create(&handle, bytes, &gpu.prop, 0)); }));
  for (size_t i = 0; i < count; ++i)
    calls.map.push_back(us([&] { DO(d.mem_map(base + i * bytes, bytes, 0, handles[i], 0)); }));
  for (size_t i = 0; i < count; ++i)
    calls.access.push_back(
        us([&] { DO(d.mem_set_access(base + i * bytes, bytes, &gpu.access, 1)); }));
  for (size_t i = 0; i < count; ++i)
    calls.unmap.push_back(us([&] { DO(d.mem_unmap(base + i * bytes, bytes)); }));
  for (auto handle : handles) calls.release.push_back(us([&] { DO(d.mem_release(handle)); }));
  DO(d.mem_address_free(base, bytes * count));
  return calls;
}

ordered_json shown(const Calls& calls) {
  return {{"create_us", rounded(median(calls.create))}, {"map_us", rounded(median(calls.map))},
          {"access_us", rounded(median(calls.access))}, {"unmap_us", rounded(median(calls.unmap))},
          {"release_us", rounded(median(calls.release))}};
}

ordered_json mappings(const Gpu& gpu) {
  ordered_json found;
  for (size_t bytes : {2 * MiB, 32 * MiB, 256 * MiB}) {
    if (gpu.small && bytes > 32 * MiB) break;
    (void)frames(gpu, bytes, 1);
    found["frame_" + std::to_string(bytes / MiB) + "MiB"] =
        shown(frames(gpu, bytes, gpu.small ? 2 : 8));
  }
  const size_t many = gpu.small ? 32 : 2048;
  const Calls calls = frames(gpu, 2 * MiB, many);
  const auto part = [&](const std::vector<double>& all, bool last) {
    const auto tenth = static_cast<ptrdiff_t>(all.size() / 10);
    return rounded(median(last ? std::vector<double>(all.end() - tenth, all.end())
                               : std::vector<double>(all.begin(), all.begin() + tenth)));
  };
  found["many_frames"] = {{"frames", many}, {"create_first_us", part(calls.create, false)},
                          {"create_last_us", part(calls.create, true)},
                          {"unmap_first_us", part(calls.unmap, false)},
                          {"unmap_last_us", part(calls.unmap, true)}};
  std::vector<std::thread> threads;
  std::vector<Calls> each(4);
  for (Calls& mine : each)
    threads.emplace_back([&gpu, &mine] {
      DO(gpu.driver->ctx_set_current(gpu.context));
      mine = frames(gpu, 2 * MiB, gpu.small ? 4 : 64);
    });
  for (std::thread& thread : threads) thread.join();
  found["of_four_threads_one"] = shown(each[0]);
  return found;
}

ordered_json host_memory(const Gpu& gpu) {
  const size_t bytes = gpu.small ? 16 * MiB : 1024 * MiB;
  std::byte* host = pages(bytes);
  const double touch = us([&] { std::memset(host, 1, bytes); });
  const double taken =
      us([&] { DO(gpu.driver->mem_host_register(host, bytes, CU_MEMHOSTREGISTER_PORTABLE)); });
  const double back = us([&] { DO(gpu.driver->mem_host_unregister(host)); });
  void* of_driver = nullptr;
  const auto allocate = gpu.entry<CUresult (*)(void**, size_t, unsigned)>("cuMemHostAlloc");
  const double allocated = us([&] { DO(allocate(&of_driver, bytes, 1)); });
  DO(gpu.entry<CUresult (*)(void*)>("cuMemFreeHost")(of_driver));
  ::munmap(host, bytes);
  const auto per_gib = [&](double time) {
    return rounded(time / 1000 / (static_cast<double>(bytes) / (1024 * MiB)));
  };
  return {{"touch_ms_per_gib", per_gib(touch)}, {"register_ms_per_gib", per_gib(taken)},
          {"unregister_ms_per_gib", per_gib(back)},
          {"cuMemHostAlloc_ms_per_gib", per_gib(allocated)}};
}

/// GB/s with copies of `piece`, one after the other on a stream for each direction.
ordered_json copies(const Gpu& gpu) {
  const firn::Driver& d = *gpu.driver;
  const size_t whole = gpu.small ? 32 * MiB : 512 * MiB;
  const size_t rounds = gpu.small ? 1 : 4;
  std::byte* host = pages(2 * whole);
  std::memset(host, 1, 2 * whole);
  DO(d.mem_host_register(host, 2 * whole, CU_MEMHOSTREGISTER_PORTABLE));
  CUdeviceptr at = 0;
  CUmemGenericAllocationHandle handle = 0;
  DO(d.mem_address_reserve(&at, 2 * whole, 0, 0, 0));
  DO(d.mem_create(&handle, 2 * whole, &gpu.prop, 0));
  DO(d.mem_map(at, 2 * whole, 0, handle, 0));
  DO(d.mem_set_access(at, 2 * whole, &gpu.access, 1));
  CUstream out = nullptr, in = nullptr;
  DO(d.stream_create(&out, CU_STREAM_NON_BLOCKING));
  DO(d.stream_create(&in, CU_STREAM_NON_BLOCKING));
  const auto run = [&](size_t piece, bool outwards, bool inwards) {
    const auto once = [&] {
      for (size_t i = 0; i < whole; i += piece) {
        if (outwards) DO(d.memcpy_dtoh_async(host + i, at + i, piece, out));
        if (inwards) DO(d.memcpy_htod_async(at + whole + i, host + whole + i, piece, in));
      }
    };
    once();
    DO(d.ctx_synchronize());
    const double time = us([&] {
      for (size_t round = 0; round < rounds; ++round) once();
      DO(d.ctx_synchronize());
    });
    return rounded(static_cast<double>(rounds * whole) * (outwards + inwards) / time / 1000);
  };
  ordered_json found;
  for (size_t kib : {256, 1024, 2048, 8192, 32768}) {
    const size_t piece = kib << 10;
    found[kib < 1024 ? std::to_string(kib) + "KiB" : std::to_string(kib / 1024) + "MiB"] = {
        {"out_gb_s", run(piece, true, false)}, {"in_gb_s", run(piece, false, true)},
        {"both_gb_s", run(piece, true, true)}};
  }
  DO(d.mem_unmap(at, 2 * whole));
  DO(d.mem_release(handle));
  DO(d.mem_host_unregister(host));
  ::munmap(host, 2 * whole);
  return found;
}

void nothing(void*) {}

ordered_json work(const Gpu& gpu, CUfunction empty) {
  const firn::Driver& d = *gpu.driver;
  const int times = gpu.small ? 20 : 1000;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  DO(d.stream_create(&stream, CU_STREAM_NON_BLOCKING));
  DO(d.event_create(&event, CU_EVENT_DISABLE_TIMING));
  const auto launch = gpu.entry<CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned,
                                             unsigned, unsigned, unsigned, CUstream, void**, void**)>(
      "cuLaunchKernel");
  const auto host_function =
      gpu.entry<CUresult (*)(CUstream, CUhostFn, void*)>("cuLaunchHostFunc");
  uint64_t words[10] = {};
  void* parameters[10];
  for (int i = 0; i < 10; ++i) parameters[i] = &words[i];
  const auto each = [&](const std::function<void()>& call) {
    std::vector<double> taken;
    for (int i = 0; i < times; ++i) {
      taken.push_back(us(call));
      if (i % 100 == 99) DO(d.stream_synchronize(stream));
    }
    DO(d.stream_synchronize(stream));
    return rounded(median(taken));
  };
  ordered_json found;
  found["launch_us"] = each(
      [&] { DO(launch(empty, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr)); });
  found["event_record_us"] = each([&] { DO(d.event_record(event, stream)); });
  found["event_query_us"] = each([&] { (void)d.event_query(event); });
  found["stream_wait_event_us"] = each([&] { DO(d.stream_wait_event(stream, event, 0)); });
  found["host_function_round_trip_us"] = each([&] {
    DO(host_function(stream, nothing, nullptr));
    DO(d.stream_synchronize(stream));
  });
  found["launch_round_trip_us"] = each([&] {
    DO(launch(empty, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr));
    DO(d.stream_synchronize(stream));
  });
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: driver_costs KERNELS [--small]\n");
    return 2;
  }
  Gpu gpu = open();
  const CUfunction empty = gpu.kernel(gpu.module(argv[1]), "ten");
  gpu.small = argc > 2 && std::strcmp(argv[2], "--small") == 0;
  const ordered_json found = {{"mapping", mappings(gpu)}, {"host", host_memory(gpu)},
                              {"copies", copies(gpu)}, {"work", work(gpu, empty)}};
  std::printf("%s\n", found.dump().c_str());
  return 0;
}
