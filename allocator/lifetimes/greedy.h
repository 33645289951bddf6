// The published greedy plan of migrations, to be compared with deciding at run time (decide.h): G10
// (Zhang et al., MICRO 2023) and TERAIO (Yuan et al., 2025). Of every stretch in which a tensor is
// not used: the earliest time at which its write can be over in the write bandwidth still free, and
// the latest at which its read must begin in the read bandwidth still free. Where they cross it
// stays. Else its benefit is what it takes off the memory above the capacity, times how long, its
// cost the bytes it moves. The best ratio is booked, memory and bandwidth are less, and so on while
// memory exceeds the capacity and something helps: to the store first, to host memory where the
// store's bandwidth does not suffice. In the end every read is moved earlier as far as memory
// allows (G10's eager prefetch). What exceeds the capacity then is not this plan's to solve.
//
// The period repeats: what an item does after its last use in it is up to the first use of the item
// that plays its part in the next (Item::again). Pure, deterministic. Bookings and memory are per
// slot: the time between steps, or between several where they are closer than the period's 4096th
// part.
//
// Cost: quadratic in the worst case; .2 s for 2,500 kernels and 5,000 tensors (greedy_test, on one
// core of a cloud machine).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/lifetimes/decide.h"

namespace firn::lifetimes {

struct GreedyInput {
  uint64_t capacity = 0;       // grains for items
  uint64_t host_capacity = 0;  // grains; 0: none goes to host memory to stay
  uint64_t period = 0;         // events
  uint64_t period_ns = 0;      // device time of them
  std::span<const Item> items;
  std::span<const Step> steps;
  std::span<const uint64_t> step_ns;  // of each: device time from now, ascending, up to period_ns
  // Grains per second. What goes to and comes from the store takes the link's bandwidth too.
  double store_write = 0, store_read = 0, link_out = 0, link_in = 0;
};

struct Migration {
  enum class Place : uint8_t { store, host };
  uint32_t item = 0;    // leaves
  uint32_t reader = 0;  // comes back: itself, or the item that plays its part in the next period
  uint64_t size = 0;    // grains
  Place to = Place::store;
  bool wraps = false;       // it is read in the next period
  uint64_t write_ahead = 0; // events from now after which the write begins
  uint64_t read_ahead = 0;  // events from now, or from the next period's begin, after which to read
  // Slots: uses are in `last` and `next` (-1: before the period; `next` counts on over the period's
  // end), it is away, memory freed, in (write_end, read_begin).
  int64_t last = 0, next = 0;
  int64_t write_begin = 0, write_end = 0, read_begin = 0, read_end = 0;
};

struct GreedyPlan {
  struct Slot {
    uint64_t begin_ns = 0, end_ns = 0;
    int64_t needed = 0, planned = 0;  // grains on the device, without and with the plan
    int64_t host = 0;                 // grains in host memory
    double store_write = 0, store_read = 0, link_out = 0, link_in = 0;  // grains booked
  };
  std::vector<Migration> migrations;  // in the order in which they were booked
  std::vector<Slot> slots;
};

GreedyPlan plan_greedy(const GreedyInput& input);

}  // namespace firn::lifetimes
