// Locks: Improver::mutex_.
#include "allocator/order/improve.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/order/cut.h"

namespace firn::order {
namespace {

using Clock = Stop::Clock;
constexpr unsigned conflicts_max = 100;
/// Gives up after so much work of each thread without progress, or after half of the work up to the
/// last progress if that is more.
constexpr uint64_t patience_least = 8'000'000;

/// A topological order that strays from the one given: operators come by their position plus noise.
std::vector<uint32_t> stray(const Graph& graph, const Sequence& given, uint64_t seed) {
  std::mt19937_64 random(seed);
  const uint64_t reach = 1 + random() % (1 + given.size() / 4);
  std::vector<uint64_t> key(graph.ops());
  for (const uint32_t op : given.ops()) {
    key[op] = given.position(op) + random() % reach;
    for (const uint32_t other : graph.before[op]) key[op] = std::max(key[op], key[other]);
  }
  std::vector<uint32_t> ops = given.ops();
  std::stable_sort(ops.begin(), ops.end(), [&](uint32_t a, uint32_t b) { return key[a] < key[b]; });
  return ops;
}

}  // namespace

Improver::Improver(const Graph& graph, Sequence given, uint64_t seed)
    : graph_(graph), given_(std::move(given)), seed_(seed), begin_(Clock::now()),
      bound_(graph.at_start), peak_(given_.peak()),
      best_(given_) {
  // The worst first, alternating with random ones: an order's worst may be its own fault.
  std::vector<uint32_t> by_bytes(given_.size()), anywhere(given_.size());
  std::iota(by_bytes.begin(), by_bytes.end(), 0u);
  anywhere = by_bytes;
  std::stable_sort(by_bytes.begin(), by_bytes.end(), [&](uint32_t a, uint32_t b) {
    return given_.during(a) > given_.during(b);
  });
  std::mt19937_64 random(seed);
  std::shuffle(anywhere.begin(), anywhere.end(), random);
  for (uint32_t i = 0; i < given_.size(); ++i) {
    to_cut_.push_back(by_bytes[i]);
    to_cut_.push_back(anywhere[i]);
  }
}

void Improver::improve(unsigned threads, Clock::time_point end) {
  if (done() || given_.size() == 0) return;
  // A share of the time for the bound, while nothing is known of the order.
  const Stop cuts(begin_ + (end - begin_) / 4);
  work(threads, [&] { cut_each(cuts); });
  Stop stop(end);
  const Greedy::Else modes[] = {Greedy::Else::next_given, Greedy::Else::least_growth};
  std::atomic<unsigned> next{0};
  work(std::min(threads, 2u), [&] {
    for (unsigned mode = next++; mode < std::size(modes); mode = next++) bisect(modes[mode], stop);
  });
  note_progress();
  work(threads, [&] { search(stop, threads); });
}

void Improver::work(unsigned threads, const std::function<void()>& job) {
  if (threads == 1) return job();
  std::exception_ptr failed;
  {
    std::vector<std::jthread> all;
    for (unsigned i = 0; i < threads; ++i)
      all.emplace_back([&] {
        try {
          job();
        } catch (...) {
          const std::lock_guard lock(mutex_);
          failed = std::current_exception();
        }
      });
  }
  if (failed) std::rethrow_exception(failed);
}

void Improver::cut_each(const Stop& stop) {
  const Precedence precedence(graph_);
  Cutter cutter(graph_, precedence);
  Turn turn(stop, work_);
  while (!stop.now()) {
    const size_t next = next_cut_++;
    if (next >= to_cut_.size()) return;
    const uint32_t position = to_cut_[next];
    // The cut is at most what this order has alive there: it could not raise the bound.
    if (given_.during(position) <= bound_.load()) continue;
    raise_bound(cutter.cut(given_, 0, given_.size(), position, Cutter::Side::fewest));
    turn.spend(cutter.take_work());
  }
}

void Improver::bisect(Greedy::Else otherwise, const Stop& stop) {
  Turn turn(stop, work_);
  Greedy greedy(graph_, given_.ops(), turn);
  uint64_t low = bound_.load(), high = peak_.load();
  // From above, where there surely is an order; to a ten thousandth, as the searches do the rest.
  for (uint64_t budget = high; low < high && !stop.now();) {
    const Sequence sequence(graph_, greedy.run(budget, otherwise));
    take(sequence);
    if (sequence.peak() > budget) low = budget + 1 + budget / 10'000;
    high = std::min(high, sequence.peak());
    budget = low + (high - std::min(low, high)) / 2;
  }
}

uint64_t Improver::peak_to_try(uint64_t number) const {
  const uint64_t low = bound_.load(), high = std::max(low + 1, peak_.load());
  switch (number % 4) {
    case 0: return high - 1;
    case 1: return low + (high - low) / 2;
    case 2: return low + (high - low) / 8 * 7;
    default: return low + (high - low) / 8;
  }
}

void Improver::search(Stop& stop, unsigned threads) {
  for (uint64_t number = next_search_++; !done() && !stop.now(); number = next_search_++) {
    const uint64_t last = progress_.load();
    const uint64_t patience = std::max(patience_least * threads, last / 2);
    if (work_.load() > last + patience) return;
    Turn turn(stop, work_, patience / threads);
    const uint64_t peak = std::min(peak_to_try(number), peak_.load() - 1);
    const std::vector<uint32_t> given =
        number < 8 ? given_.ops() : stray(graph_, given_, seed_ * 1'000'003 + number);
    Greedy greedy(graph_, given, turn);
    const Greedy::Else mode =
        number / 4 % 2 ? Greedy::Else::least_growth : Greedy::Else::next_given;
    const Sequence start(graph_, greedy.run(peak, mode));
    take(start);
    if (start.peak() <= peak) continue;
    Refiner refiner(graph_, turn, seed_ + number);
    const Refiner::Outcome outcome = refiner.search(start, peak, conflicts_max);
    take(refiner.best());
    if (outcome == Refiner::Outcome::none) raise_bound(peak + 1);
  }
  if (done()) stop.say();
}

Sequence Improver::another(uint64_t number, Clock::time_point end) const {
  const Stop stop(end);
  const std::vector<uint32_t> given = stray(graph_, best_, seed_ * 1'000'003 + number);
  Turn turn(stop, work_);
  Greedy greedy(graph_, given, turn);
  return Sequence(graph_, greedy.run(peak_.load(), number % 2 ? Greedy::Else::next_given
                                                              : Greedy::Else::least_growth));
}

void Improver::take(const Sequence& sequence) {
  const uint64_t peak = sequence.peak();
  const std::lock_guard lock(mutex_);
  if (peak >= peak_.load()) return;
  peak_.store(peak);
  best_ = sequence;
  note_progress();
}

void Improver::raise_bound(uint64_t bound) {
  uint64_t before = bound_.load();
  while (bound > before && !bound_.compare_exchange_weak(before, bound)) {
  }
  if (bound > before) note_progress();
}

void Improver::note_progress() { progress_.store(work_.load()); }

}  // namespace firn::order
