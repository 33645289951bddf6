// What a seed is: the machine, the program, and the rates of every fault, drawn from its number.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "allocator/engine/engine.h"
#include "firn/store.h"

namespace firn::sim {

struct Controls;

/// What a program does in one step.
enum class Do : unsigned {
  allocate, write, read, copy, free, layer, cold, prefetch, pin, unpin, wait, pump, ponder, trim,
  spill_all, spill_away, stop_spilling, set_budget, give_way, synchronize, foreign, touch_many,
  touch_anyway, free_held, free_behind, export_memory, busy, give_address, new_stream, end_stream,
  press_host, inject, run_operator, choose, count
};
inline constexpr unsigned do_count = static_cast<unsigned>(Do::count);
extern const char* const do_names[do_count];

struct Options {
  uint64_t seed = 0;
  unsigned operations = 0;
  int devices = 1;
  unsigned streams = 3, threads = 1;
  EngineOptions engine;            // of each device
  bool greedy = false;             // the published plan decides what moves
  bool with_store = true;
  bool recipes = false;            // operators can be run again
  SimulatedStoreOptions store;
  bool host_shared = false;        // the devices' host memory is one budget, a part of it their own
  bool host_pressed = false;       // the machine's memory gets short, and comes free
  uint64_t gpu_bytes = 0;
  uint64_t call_ns = 0;
  double link_bytes_s = 16e9;
  uint64_t link_latency_ns = 10'000;
  size_t block_bytes_most = 0;     // but for a few
  uint64_t live_bytes = 0;         // per device: no more is allocated
  unsigned period = 0;             // operations after which the program is the same again; 0: never
  unsigned layers = 0;             // then: of a network
  std::array<unsigned, do_count> weight{};
  unsigned weights = 0;
  bool faults = false;             // any at all
  bool driver_faults = false, deaths = false, refuses_host = false;
  double refused_copies = 0;       // rate at which the driver refuses copies in
  bool store_faults = false, lasting = false;
  uint64_t close_at = UINT64_MAX;  // operation before which the engines are closed
  /// Called before the first engine is opened: for faults that are met there.
  std::function<void(const Controls&)> before_open;
  std::string words() const;
};

/// Seeds from this one on are of a kind of their own: their operators can be run again.
inline constexpr uint64_t seeds_with_recipes = uint64_t{1} << 32;

Options draw_options(uint64_t seed, unsigned operations);

}  // namespace firn::sim
