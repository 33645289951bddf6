// A machine in software, without bytes: the software GPU on its virtual clock, simulated SSDs, and
// one engine between them. One per process, as there is one software GPU per process.
// Owns: all of them. Locks: none (one thread).
#pragma once

#include <algorithm>
#include <bit>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "allocator/engine/engine.h"
#include "allocator/simulate/disks.h"
#include "allocator/simulate/oracle.h"
#include "allocator/simulate/turns.h"
#include "firn/software_gpu.h"
#include "firn/virtual_clock.h"

namespace firn::simulate {

/// How to choose what moves: the engine's own two, and two to compare them with.
enum class ComparedPolicy : uint8_t { age, lifetime, oracle, greedy };

/// Nanoseconds of mapping calls, as measured on an A100 (second run of the tool: a warm driver).
inline constexpr uint64_t create_ns = 7600, map_ns = 1100, access_ns = 21'000, unmap_ns = 11'000;

struct MachineOptions {
  std::string gpu_library;               // the software GPU's libcuda.so.1
  uint64_t gpu_bytes = 0;                // capacity and budget
  double link_bytes_s = 0;               // each way
  double ssd_read_bytes_s = 0, ssd_write_bytes_s = 0;  // of each SSD
  uint64_t ssd_latency_ns = 0;
  unsigned ssds = 1;
  uint64_t host_bytes = 0;               // staging and host tier together
  ComparedPolicy policy = ComparedPolicy::age;
  double spare_fraction = 1. / 16;       // see EngineOptions
  bool driver_costs = true;              // mapping calls take the time they take on an A100
  uint64_t piece_bytes = 0;              // see EngineOptions; 0: as piece() says
  double watch_fraction = 0;             // see EngineOptions; 0: every use is seen from the start

  /// The engine has four spans of 32 MiB on the way to the store at most, and each request keeps one
  /// SSD busy: of the pieces, two for each SSD are in them, or of those of programs, as many as
  /// there are. Few SSDs are as busy with large ones, which are less work to simulate.
  uint64_t piece() const {
    constexpr uint64_t most = 32u << 20;
    if (piece_bytes != 0) return piece_bytes;
    return std::clamp(std::bit_floor(2 * most / std::max(ssds, 1u)),
                      uint64_t{EngineOptions{}.piece_bytes}, most);
  }
};

/// The engine's clock. While the program waits, it does the service thread's work: pump() before
/// time advances. A wait without progress ends the process, with a message.
class ServiceClock final : public Clock {
 public:
  explicit ServiceClock(VirtualClock& clock) : clock_(clock), turns_(clock) {}
  uint64_t now_ns() override { return clock_.now_ns(); }
  void wait(uint64_t ns_max) override;
  void notify() override { clock_.notify(); }

  /// The engine to pump; null before it is there and while it is closed.
  void serve(Engine* engine) { engine_ = engine; }
  /// The program made progress: it has `patience_ns` for its next step. `where` returns what the
  /// program waits for, for the message.
  void progress(uint64_t patience_ns) { give_up_ns_ = now_ns() + patience_ns; }
  void explain(std::function<std::string()> where) { where_ = std::move(where); }
  /// The program's threads.
  Turns& turns() { return turns_; }

 private:
  [[noreturn]] void give_up();
  VirtualClock& clock_;
  Turns turns_;
  Engine* engine_ = nullptr;
  bool pumping_ = false;
  uint64_t give_up_ns_ = UINT64_MAX;
  std::function<std::string()> where_;
};

class Machine {
 public:
  static Result<std::unique_ptr<Machine>> open(const MachineOptions& options);
  ~Machine();  // aborts if the GPU ever held more frames than it has

  const MachineOptions& options() const { return options_; }
  Engine& engine() { return *engine_; }
  ServiceClock& clock() { return *service_; }
  Disks& disks() { return *disks_; }
  /// With ComparedPolicy::oracle only.
  Oracle& oracle() { return static_cast<Oracle&>(*baseline_); }
  CUstream stream() const { return stream_; }
  /// A further stream, which lives as long as the machine.
  Result<CUstream> make_stream();
  /// A kernel of `ns` on the stream.
  void launch(uint64_t ns);
  /// Calls `observer` for all work that takes time on the GPU, when it is over.
  void observe(FirnGpuObserver observer, void* context) { observe_(observer, context); }
  /// The GPU's own count; aborts when it exceeds the capacity.
  uint64_t check_peak_frame_bytes() const;

 private:
  explicit Machine(const MachineOptions& options) : options_(options) {}
  Result<void> start_gpu();
  Result<void> start_engine();

  const MachineOptions options_;
  std::unique_ptr<Driver> driver_;
  decltype(&firnGpuConfigure) configure_ = nullptr;
  decltype(&firnGpuReset) reset_ = nullptr;
  decltype(&firnGpuBusy) busy_ = nullptr;
  decltype(&firnGpuCounts) counts_ = nullptr;
  decltype(&firnGpuObserve) observe_ = nullptr;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  std::unique_ptr<VirtualClock> clock_;
  std::unique_ptr<ServiceClock> service_;
  std::unique_ptr<Disks> disks_;
  std::unique_ptr<Baseline> baseline_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace firn::simulate
