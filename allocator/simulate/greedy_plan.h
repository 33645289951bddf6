// The published greedy plan of migrations, a baseline for deciding at run time (decide.h): G10
// (Zhang et al., MICRO 2023) and TERAIO (Yuan et al., 2025). For every stretch in which a tensor is
// unused it finds the earliest end of its write in the write bandwidth still free, and the latest
// begin of its read in the read bandwidth still free. If they cross, the tensor stays. Otherwise
// the benefit is the memory it takes off the part above the capacity, times how long; the cost is
// the bytes moved. The best ratio is booked, which uses up bandwidth and frees memory, and so on
// while memory exceeds the capacity and something helps. Tensors go to the store, or to host memory
// if the store's bandwidth does not suffice. In the end every read moves earlier as far as memory
// allows (G10's eager prefetch). An excess that is left then is not this plan's to solve.
//
// The period repeats: the stretch after an item's last use ends at the first use of the item that
// plays its part in the next period (Item::again). Pure, deterministic. Bookings and memory are per
// slot: the time between steps, or between several that are closer than 1/4096 of the period.
//
// Cost: quadratic in the worst case; .2 s for 2,500 kernels and 5,000 tensors (greedy_plan_test, on one
// core of a cloud machine).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/lifetimes/decide.h"

namespace firn::simulate {

using lifetimes::Item;
using lifetimes::Step;

struct GreedyInput {
  uint64_t capacity = 0;       // pages for items
  uint64_t host_capacity = 0;  // pages; 0: nothing stays in host memory
  uint64_t period = 0;         // events
  uint64_t period_ns = 0;      // device time of them
  std::span<const Item> items;
  std::span<const Step> steps;
  std::span<const uint64_t> step_ns;  // of each: device time from now, ascending, up to period_ns
  // Pages per second. Store traffic takes the link's bandwidth too.
  double store_write = 0, store_read = 0, link_out = 0, link_in = 0;
};

struct Migration {
  enum class Tier : uint8_t { store, host };
  uint32_t item = 0;    // leaves
  uint32_t reader = 0;  // comes back: itself, or the item that plays its part in the next period
  uint64_t size = 0;    // pages
  Tier to = Tier::store;
  bool wraps = false;       // it is read in the next period
  uint64_t write_ahead = 0; // events from now after which the write begins
  uint64_t read_ahead = 0;  // events from now, or from the next period's begin, after which to read
  // Slots: its uses are in `last` and `next` (-1: before the period; `next` may lie beyond its
  // end); it is away, its memory free, in (write_end, read_begin).
  int64_t last = 0, next = 0;
  int64_t write_begin = 0, write_end = 0, read_begin = 0, read_end = 0;
};

struct GreedyPlan {
  struct Slot {
    uint64_t begin_ns = 0, end_ns = 0;
    int64_t needed = 0, planned = 0;  // pages on the device, without and with the plan
    int64_t host = 0;                 // pages in host memory
    double store_write = 0, store_read = 0, link_out = 0, link_in = 0;  // pages booked
  };
  std::vector<Migration> migrations;  // in the order in which they were booked
  std::vector<Slot> slots;
};

GreedyPlan plan_greedy(const GreedyInput& input);

}  // namespace firn::simulate
