// Locks: Part::mutex_.
#include "allocator/layout/part.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "allocator/layout/orders.h"
#include "allocator/layout/skyline.h"
#include "allocator/layout/sweep.h"

namespace firn::layout {
namespace {

/// Items times sections: a search's memory is of this order.
constexpr uint64_t searched_lifetimes_max = 10'000'000;
constexpr uint64_t searches_per_skyline = 15;
constexpr uint64_t core_every = 4, searches_per_height = 12;
constexpr double nearnesses[] = {0.97, 0.9, 0.99, 0.8};

}  // namespace

Part::Part(Problem problem, std::vector<uint32_t> members, uint64_t goal, uint64_t seed,
           uint64_t steps)
    : problem_(std::move(problem)), members_(std::move(members)), goal_(goal), seed_(seed),
      steps_(steps), impossible_end_(problem_.load) {
  uint64_t lifetimes = 0;
  for (const Item& item : problem_.items) lifetimes += item.last - item.first;
  searched_ = lifetimes <= searched_lifetimes_max;
  searched_whole_ = searched_ && problem_.items.size() <= CoreSearch::items_max;
  offsets_ = sweep(problem_);
  height_ = height_of(problem_, offsets_);
  done_ = height_ <= std::max(goal_, impossible_end_);
}

void Part::step(Bench& bench, const std::atomic<bool>& stop) {
  const uint64_t number = next_step_.fetch_add(1, std::memory_order_relaxed);
  if (number < skyline_orders_fixed || !searched_) return skyline_step(number, stop);
  const uint64_t later = number - skyline_orders_fixed;
  const uint64_t round = later / (searches_per_skyline + 1);
  const uint64_t turn = later % (searches_per_skyline + 1);
  if (turn == searches_per_skyline) return skyline_step(skyline_orders_fixed + round, stop);
  search_step(round * searches_per_skyline + turn, bench, stop);
}

void Part::skyline_step(uint64_t number, const std::atomic<bool>& stop) {
  const Order order = skyline_order(problem_, seed_, number);
  uint64_t height_end = 0;
  {
    const std::lock_guard lock(mutex_);
    height_end = height_;
  }
  const std::vector<uint64_t> offsets =
      run_skyline(problem_, shape(), {order.rank, order.choice, height_end}, stop);
  if (!offsets.empty()) take_offsets(offsets);
}

void Part::search_step(uint64_t number, Bench& bench, const std::atomic<bool>& stop) {
  if (bench.part != this) bench = {this, std::make_unique<CoreSearch>(problem_, stop)};
  const uint64_t height = height_to_try(number);
  // Mostly the whole part, if it is small enough.
  const double nearness = searched_whole_ && number % core_every != 0
                              ? 0
                              : nearnesses[number / core_every % std::size(nearnesses)];
  switch (bench.core->attempt(height, nearness, seed_, number)) {
    case Search::Outcome::found: return take_offsets(bench.core->offsets());
    case Search::Outcome::none: return prove_impossible(height);
    case Search::Outcome::gave_up: return;
  }
}

uint64_t Part::height_to_try(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const uint64_t least = impossible_end_, most = std::max(least, height_ - 1);
  // As tight as possible can be easier than loose.
  const uint64_t turn = number / searches_per_height % 4;
  if (goal_ > least) return turn == 3 ? least : std::min(goal_, most);
  if (turn == 0) return least;
  return turn == 1 ? most : least + (most - least) / (turn == 2 ? 8 : 2);
}

uint64_t Part::height() {
  const std::lock_guard lock(mutex_);
  return height_;
}

const LifetimesShape& Part::shape() {
  const std::lock_guard lock(mutex_);
  if (!shape_) shape_ = std::make_unique<LifetimesShape>(problem_);
  return *shape_;
}

void Part::take_offsets(std::span<const uint64_t> offsets) {
  const uint64_t height = height_of(problem_, offsets);
  const std::lock_guard lock(mutex_);
  if (height >= height_) return;
  offsets_.assign(offsets.begin(), offsets.end());
  height_ = height;
  if (height_ <= std::max(goal_, impossible_end_)) done_.store(true, std::memory_order_release);
}

void Part::prove_impossible(uint64_t height) {
  const std::lock_guard lock(mutex_);
  impossible_end_ = std::max(impossible_end_, height + 1);
  if (height_ <= impossible_end_) done_.store(true, std::memory_order_release);
}

}  // namespace firn::layout
