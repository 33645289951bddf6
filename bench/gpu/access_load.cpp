// How long giving access to freshly mapped memory takes while the GPU copies: for each kind of
// work, cuMemSetAccess and cuMemUnmap of frames that the work does not use, counted only where the
// work was still under way when the call came back. One thread enqueues the work and makes the
// calls, so nobody competes for the driver. Prints one line of JSON; microseconds.
//
//   access_load KERNELS.ptx [--small]     KERNELS.ptx: bench/gpu/ask/kernels.ptx
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "costs.h"

namespace {

using namespace firn::costs;
using nlohmann::ordered_json;
constexpr unsigned no_timing = 2;  // CU_EVENT_DISABLE_TIMING

struct Memory {
  CUdeviceptr device = 0;
  std::byte* registered = nullptr;
  std::byte* allocated = nullptr;  // by cuMemHostAlloc
  size_t bytes = 0;
};

/// Enqueues work of some 15 ms.
using Work = std::function<void(CUstream)>;

/// How many threads are in a call that gives access: pieces of a gated copy wait for none.
std::atomic<uint32_t>* gate = nullptr;
bool held = false;  // closed for all calls of a round

ordered_json summary(std::vector<double> times) {
  size_t slow = 0;
  for (const double each : times) slow += each > 500;
  return {{"count", times.size()},
          {"median", rounded(median(times))},
          {"p90", rounded(quantile(times, .9))},
          {"most", rounded(quantile(times, 1))},
          {"above 500 us", slow}};
}

struct Frames {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  std::vector<CUmemGenericAllocationHandle> handles;
};

/// Rounds of: the work, then a call for each frame until the work is over; and more where the work
/// was over, each time, before the first call came back (a thread that did not get a core).
ordered_json measure(const Gpu& gpu, const Work& work, CUstream stream, const Frames& frames,
                     int rounds) {
  const firn::Driver& d = *gpu.driver;
  CUevent over = nullptr;
  DO(d.event_create(&over, no_timing));
  std::vector<double> access, unmap, beside;
  const auto under = [&](std::vector<double>& times, auto&& call) {
    const auto begun = Clock::now();
    if (work) {
      work(stream);
      DO(d.event_record(over, stream));
    }
    if (held) gate->fetch_add(1);
    for (size_t i = 0; i < frames.handles.size(); ++i) {
      const double taken = us([&] { call(frames.base + i * frames.bytes); });
      if (work && d.event_query(over) == CUDA_SUCCESS) {
        for (++i; i < frames.handles.size(); ++i) call(frames.base + i * frames.bytes);
        break;
      }
      times.push_back(taken);
    }
    if (held) gate->fetch_sub(1);
    DO(d.ctx_synchronize());
    beside.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begun).count());
  };
  const auto enough = [&](int round) {
    return round >= rounds && ((!access.empty() && !unmap.empty()) || round >= 20 * rounds);
  };
  for (int round = 0; !enough(round); ++round) {
    for (size_t i = 0; i < frames.handles.size(); ++i)
      DO(d.mem_map(frames.base + i * frames.bytes, frames.bytes, 0, frames.handles[i], 0));
    under(access,
          [&](CUdeviceptr at) {
          gate->fetch_add(1);
          DO(d.mem_set_access(at, frames.bytes, &gpu.access, 1));
          gate->fetch_sub(1);
        });
    under(unmap, [&](CUdeviceptr at) { DO(d.mem_unmap(at, frames.bytes)); });
  }
  double alone = 0;
  if (work) {
    alone = us([&] {
      work(stream);
      DO(d.ctx_synchronize());
    });
  }
  DO(d.event_destroy(over));
  return {{"access", summary(access)}, {"unmap", summary(unmap)}, {"work alone", rounded(alone)},
          {"work beside", rounded(median(beside))}};
}

Frames make(const Gpu& gpu, size_t bytes, size_t count) {
  const firn::Driver& d = *gpu.driver;
  Frames frames{0, bytes, std::vector<CUmemGenericAllocationHandle>(count)};
  DO(d.mem_address_reserve(&frames.base, bytes * count, 0, 0, 0));
  for (auto& handle : frames.handles) DO(d.mem_create(&handle, bytes, &gpu.prop, 0));
  return frames;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: access_load KERNELS.ptx [--small]\n");
    return 2;
  }
  Gpu gpu = open();
  gpu.small = argc > 2 && std::strcmp(argv[2], "--small") == 0;
  gpu.prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const firn::Driver& d = *gpu.driver;
  Memory memory;
  memory.bytes = (gpu.small ? 16 : 768) * MiB;
  CUmemGenericAllocationHandle handle = 0;
  DO(d.mem_address_reserve(&memory.device, 2 * memory.bytes, 0, 0, 0));
  DO(d.mem_create(&handle, 2 * memory.bytes, &gpu.prop, 0));
  DO(d.mem_map(memory.device, 2 * memory.bytes, 0, handle, 0));
  DO(d.mem_set_access(memory.device, 2 * memory.bytes, &gpu.access, 1));
  memory.registered = pages(memory.bytes);
  std::memset(memory.registered, 1, memory.bytes);
  DO(d.mem_host_register(memory.registered, memory.bytes, CU_MEMHOSTREGISTER_PORTABLE));
  void* allocated = nullptr;
  DO(gpu.entry<CUresult (*)(void**, size_t, unsigned)>("cuMemHostAlloc")(&allocated, memory.bytes,
                                                                         1));
  memory.allocated = static_cast<std::byte*>(allocated);
  const CUmodule module = d.software ? nullptr : gpu.module(argv[1]);
  const CUfunction fills = module ? gpu.kernel(module, "fills") : nullptr;
  const CUfunction spins = module ? gpu.kernel(module, "spins") : nullptr;
  const auto launch = [&](CUfunction function, unsigned grid, unsigned block, CUstream stream,
                          void** parameters) {
    DO(gpu.entry<CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, unsigned, CUstream, void**, void**)>("cuLaunchKernel")(
        function, grid, 1, 1, block, 1, 1, 0, stream, parameters, nullptr));
  };
  const auto pause = [&](CUstream stream, unsigned long long ns) {
    if (d.software) {
      DO(gpu.entry<int (*)(void*, uint64_t)>("firnGpuBusy")(stream, ns));
      return;
    }
    CUdeviceptr flag = memory.device + memory.bytes;
    void* parameters[] = {&flag, &ns};
    launch(spins, 1, 1, stream, parameters);
  };
  const auto fill = [&](CUstream stream, CUdeviceptr to, size_t bytes, unsigned times) {
    unsigned long long count = bytes / 4;
    unsigned value = 0;
    void* parameters[] = {&to, &count, &value, &times};
    launch(fills, 4096, 512, stream, parameters);
  };
  const auto out = [&](size_t piece, std::byte* host, unsigned long long ns) {
    return [&, piece, host, ns](CUstream stream) {
      for (size_t at = 0; at < memory.bytes; at += piece) {
        DO(d.memcpy_dtoh_async(host + at, memory.device + at, std::min(piece, memory.bytes - at),
                               stream));
        if (ns) pause(stream, ns);
      }
    };
  };
  const auto in = [&](size_t piece) {
    return [&, piece](CUstream stream) {
      for (size_t at = 0; at < memory.bytes; at += piece)
        DO(d.memcpy_htod_async(memory.device + at, memory.registered + at,
                               std::min(piece, memory.bytes - at), stream));
    };
  };
  std::byte* const gate_page = pages(4096);
  gate = new (gate_page) std::atomic<uint32_t>(0);
  DO(d.mem_host_register(gate_page, 4096, CU_MEMHOSTREGISTER_PORTABLE | 2));  // DEVICEMAP
  const auto wait_value = gpu.entry<CUresult (*)(CUstream, CUdeviceptr, uint32_t, unsigned)>(
      "cuStreamWaitValue32_v2");
  const auto gated = [&](size_t piece) {
    return [&, piece](CUstream stream) {
      for (size_t at = 0; at < memory.bytes; at += piece) {
        DO(wait_value(stream, reinterpret_cast<CUdeviceptr>(gate_page), 0, 1));  // EQ
        DO(d.memcpy_dtoh_async(memory.registered + at, memory.device + at,
                               std::min(piece, memory.bytes - at), stream));
      }
    };
  };
  CUstream stream = nullptr, other = nullptr;
  DO(d.stream_create(&stream, CU_STREAM_NON_BLOCKING));
  DO(d.stream_create(&other, CU_STREAM_NON_BLOCKING));
  DO(d.memset_d8_async(memory.device, 0, 2 * memory.bytes, stream));
  DO(d.ctx_synchronize());
  std::array<CUevent, 2> turns{};
  for (CUevent& each : turns) DO(d.event_create(&each, no_timing));
  // Each piece waits for an event behind the piece before it.
  const auto in_turns = [&](size_t piece, bool alternating) {
    return [&, piece, alternating](CUstream stream) {
      CUstream now = stream, next = other;
      for (size_t at = 0; at < memory.bytes; at += piece) {
        DO(d.memcpy_dtoh_async(memory.registered + at, memory.device + at,
                               std::min(piece, memory.bytes - at), now));
        DO(d.event_record(turns[0], now));
        DO(d.stream_wait_event(next, turns[0], 0));
        if (alternating) {
          std::swap(now, next);
        } else {
          DO(d.event_record(turns[1], next));
          DO(d.stream_wait_event(now, turns[1], 0));
        }
      }
      if (now != stream) {
        DO(d.event_record(turns[1], now));
        DO(d.stream_wait_event(stream, turns[1], 0));
      }
    };
  };
  std::vector<std::pair<std::string, Work>> works = {
      {"idle", nullptr},
      {"out", out(8 * MiB, memory.registered, 0)},
      {"out, pieces of 256 KiB", out(MiB / 4, memory.registered, 0)},
      {"out, pieces of 2 MiB", out(2 * MiB, memory.registered, 0)},
      {"out, one copy", out(memory.bytes, memory.registered, 0)},
      {"out, 8 MiB and a pause of 50 us", out(8 * MiB, memory.registered, 50'000)},
      {"out, 2 MiB and a pause of 50 us", out(2 * MiB, memory.registered, 50'000)},
      {"out, 512 KiB and a pause of 50 us", out(MiB / 2, memory.registered, 50'000)},
      {"out, 8 MiB, gated", gated(8 * MiB)},
      {"out, 4 MiB, gated", gated(4 * MiB)},
      {"out, 2 MiB, gated", gated(2 * MiB)},
      {"out, 8 MiB, gate held", gated(8 * MiB)},
      {"both, 8 MiB, gated",
       [&](CUstream on) {
         gated(8 * MiB)(on);
         in(8 * MiB)(other);
       }},
      {"out, 8 MiB in turns on two streams", in_turns(8 * MiB, true)},
      {"out, 2 MiB in turns on two streams", in_turns(2 * MiB, true)},
      {"out, 8 MiB, a stream's event between", in_turns(8 * MiB, false)},
      {"out, 4 MiB, a stream's event between", in_turns(4 * MiB, false)},
      {"out, 2 MiB, a stream's event between", in_turns(2 * MiB, false)},
      {"out, 1 MiB, a stream's event between", in_turns(MiB, false)},
      {"out, cuMemHostAlloc", out(8 * MiB, memory.allocated, 0)},
      {"in", in(8 * MiB)},
      {"both",
       [&](CUstream on) {
         out(8 * MiB, memory.registered, 0)(on);
         in(8 * MiB)(other);
       }},
      {"on the device", [&](CUstream on) {
         for (int i = 0; i < 32; ++i)
           DO(d.memcpy_dtod_async(memory.device + memory.bytes, memory.device, memory.bytes, on));
       }}};
  if (!d.software) {
    for (const int priority : {0, -5}) {
      CUstream with = nullptr;
      DO(gpu.entry<CUresult (*)(CUstream*, unsigned, int)>("cuStreamCreateWithPriority")(
          &with, CU_STREAM_NON_BLOCKING, priority));
      works.emplace_back("out, priority " + std::to_string(priority), [&, with](CUstream on) {
        out(8 * MiB, memory.registered, 0)(with);
        DO(d.event_record(turns[0], with));
        DO(d.stream_wait_event(on, turns[0], 0));
      });
    }
    works.emplace_back("a kernel that writes host memory", [&](CUstream on) {
      fill(on, reinterpret_cast<CUdeviceptr>(memory.registered), memory.bytes, 1);
    });
    works.emplace_back("a kernel that writes the device's", [&](CUstream on) {
      fill(on, memory.device + memory.bytes, memory.bytes, 40);
    });
    works.emplace_back("a kernel that waits",
                       [&](CUstream on) { pause(on, 15'000'000); });
  }
  ordered_json found;
  for (const size_t mib : gpu.small ? std::vector<size_t>{2} : std::vector<size_t>{2, 32}) {
    const Frames frames = make(gpu, mib * MiB, gpu.small ? 4 : 32);
    (void)measure(gpu, nullptr, stream, frames, 2);
    for (const auto& [name, work] : works) {
      held = name.ends_with("held");
      found[std::to_string(mib) + "MiB"][name] =
          measure(gpu, work, stream, frames, gpu.small ? 1 : 6);
    }
    held = false;
    for (const auto each : frames.handles) DO(d.mem_release(each));
  }
  std::printf("%s\n", found.dump().c_str());
  return 0;
}
