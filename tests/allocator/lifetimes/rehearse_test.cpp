// What holds in every rehearsal, on random programs and machines from seeds: FIRN_SEED=N replays
// one, FIRN_SEEDS=N is how many.
#include "allocator/lifetimes/rehearse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "tests/allocator/lifetimes/draw.h"

using namespace firn;
using namespace firn::lifetimes;
using namespace firn::program;

namespace {

/// Follows every piece and every channel, knowing nothing of how the rehearsal keeps them.
class Watcher final : public RehearsalObserver {
 public:
  explicit Watcher(const RehearsalMachine& machine) : machine_(machine) {}

  void happened(const Happening& h) override {
    ASSERT_GE(h.ns, now_) << "time goes back";
    now_ = h.ns;
    ++count;
    ASSERT_LE(h.device, machine_.capacity) << "at " << h.ns;
    // What is wanted at once may be read beyond a host memory that is full, a piece at a time.
    ASSERT_LE(h.host, machine_.host + machine_.piece) << "at " << h.ns;
    if (h.what == Happening::What::taken) taken(h);
    if (h.what == Happening::What::given) given(h);
    if (h.what == Happening::What::transfer) transfer(h);
    if (h.what == Happening::What::change) change(h);
    if (h.what == Happening::What::compute) compute(h);
    if (h.what == Happening::What::use) use(h);
  }

  uint64_t count = 0, left = 0, bytes[channel_count] = {};

 private:
  struct Piece {
    uint64_t pages = 0;
    bool there = false;
    uint64_t valid_ns = UINT64_MAX;  // from then on there is a copy elsewhere; none: UINT64_MAX
    uint64_t busy_ns[channel_count] = {}; // until then it is copied
  };

  void taken(const Happening& h) {
    Piece& piece = pieces_[{h.block, h.piece}];
    ASSERT_FALSE(piece.there) << "taken twice";
    piece.there = true;
    piece.pages = h.pages;
    device_ += h.pages;
    ASSERT_EQ(device_, h.device);
  }

  /// The memory may be another's now.
  void given(const Happening& h) {
    Piece& piece = pieces_[{h.block, h.piece}];
    ASSERT_TRUE(piece.there) << "given back, but not taken";
    piece.there = false;
    device_ -= h.pages;
    ASSERT_EQ(device_, h.device);
    for (Channel channel : {Channel::host_out, Channel::host_in})
      ASSERT_LE(piece.busy_ns[static_cast<unsigned>(channel)], h.ns) << "copied still";
    ASSERT_FALSE(in_use(h.block, h.ns, used_, used_next_)) << "used still";
    left += piece.valid_ns <= h.ns;
    // That it is dead is seen by what follows: it is neither copied nor used any more.
    if (piece.valid_ns > h.ns) lost_.insert({h.block, h.piece});
  }

  void transfer(const Happening& h) {
    const auto channel = static_cast<unsigned>(h.channel);
    ASSERT_GE(h.ns, free_ns_[channel]) << "channel " << channel << " carries two at once";
    ASSERT_EQ(h.end_ns - h.ns, machine_.ns(h.channel, h.pages));
    free_ns_[channel] = h.end_ns;
    bytes[channel] += h.pages * machine_.page_bytes;
    Piece& piece = pieces_[{h.block, h.piece}];
    piece.busy_ns[channel] = h.end_ns;
    if (h.channel == Channel::host_out) {
      ASSERT_TRUE(piece.there) << "copied from where it is not";
      ASSERT_FALSE(in_use(h.block, h.ns, used_, used_next_)) << "copied while it is in use";
      piece.valid_ns = h.end_ns;
    }
    if (h.channel == Channel::host_in) {
      ASSERT_TRUE(piece.there) << "copied to memory it has not";
      ASSERT_FALSE(lost_.contains({h.block, h.piece})) << "its bytes were lost";
      piece.valid_ns = 0;  // what it comes from
      for (Channel from : {Channel::host_out, Channel::store_read})
        ASSERT_LE(piece.busy_ns[static_cast<unsigned>(from)], h.ns) << "before it has come";
    }
  }

  void change(const Happening& h) {
    for (auto it = pieces_.lower_bound({h.block, 0}); it != pieces_.end(); ++it) {
      if (it->first.first != h.block) break;
      it->second.valid_ns = UINT64_MAX;
    }
  }

  /// By the kernels that run next.
  void use(const Happening& h) {
    uint64_t pages = 0;
    for (auto it = pieces_.lower_bound({h.block, 0}); it != pieces_.end(); ++it) {
      if (it->first.first != h.block) break;
      if (it->second.there) pages += it->second.pages;
      ASSERT_LE(it->second.busy_ns[static_cast<unsigned>(Channel::host_in)], h.ns)
          << "used too soon";
      ASSERT_FALSE(lost_.contains(it->first)) << "its bytes were lost";
    }
    ASSERT_EQ(pages, h.pages) << "used, but not all of it is there";
    used_next_.insert(h.block);
  }

  void compute(const Happening& h) {
    ASSERT_GE(h.ns, computes_until_);
    computes_until_ = h.end_ns;
    used_ = std::exchange(used_next_, {});
  }

  bool in_use(uint32_t block, uint64_t ns, const std::set<uint32_t>& now,
              const std::set<uint32_t>& next) const {
    return next.contains(block) || (now.contains(block) && computes_until_ > ns);
  }

  const RehearsalMachine machine_;
  uint64_t now_ = 0, device_ = 0, computes_until_ = 0;
  std::map<std::pair<uint32_t, uint32_t>, Piece> pieces_;
  std::set<std::pair<uint32_t, uint32_t>> lost_;
  std::set<uint32_t> used_, used_next_;  // by the kernels that run, next
  uint64_t free_ns_[channel_count] = {};
};

struct Case {
  Kernels program;
  RehearsalMachine machine{.page_bytes = 2 << 20};
  Tuning tuning;
  unsigned periods = 2;
  bool warm = false, ends = false;

  Rehearsed run(RehearsalObserver* observer) const {
    Script script(program);
    if (warm) script.start_warm(machine.capacity);
    std::vector<uint64_t> in_store;
    for (const Item& item : script.items) in_store.push_back(machine.has_store() ? item.size : 0);
    Rehearsal rehearsal = script.rehearsal(machine);
    rehearsal.in_store = in_store;
    rehearsal.tuning = tuning;
    rehearsal.periods = periods;
    rehearsal.ends = ends;
    return rehearse(rehearsal, observer);
  }
  /// Kernels one after the other, and for every use all that is alive moves on every channel.
  uint64_t serial_ns() const {
    uint64_t ns = 0, move = 0;
    for (Channel channel : {Channel::host_out, Channel::host_in, Channel::store_write,
                            Channel::store_read})
      if (machine.bytes_s[static_cast<unsigned>(channel)] > 0)
        move += machine.ns(channel, 1) * (program.peak() + machine.piece);
    for (const auto& kernel : program.kernels) ns += kernel.ns + kernel.uses.size() * move;
    return ns * periods + move;
  }
};

Case draw_case(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  Case c;
  c.program = draw({.blocks = {2, 40}, .size = {1, 20}, .kernels = {2, 50}, .ns = {1, 200'000}},
                   random);
  c.machine.capacity =
      c.program.working_set() + below(c.program.peak() - c.program.working_set() + 3);
  c.machine.piece = 1 + below(8);
  const bool store = below(2);
  for (unsigned channel = 0; channel < (store ? 4u : 2u); ++channel)
    c.machine.bytes_s[channel] = 1e9 * static_cast<double>(1 + below(50));
  c.machine.host =
      store ? 4 * c.machine.piece + below(c.program.peak()) : 2 * c.program.peak() + 100;
  c.tuning = {.spare_part = below(20)};
  c.periods = 1 + static_cast<unsigned>(below(3));
  c.warm = below(2);
  c.ends = below(2);
  return c;
}

}  // namespace

TEST(Rehearse, holds_on_random_programs) {
  uint64_t begin = 1, end = 1500;
  if (const char* seeds = std::getenv("FIRN_SEEDS")) end = std::strtoull(seeds, nullptr, 0) + 1;
  if (const char* seed = std::getenv("FIRN_SEED")) {
    begin = std::strtoull(seed, nullptr, 0);
    end = begin + 1;
  }
  uint64_t left = 0, bytes[channel_count] = {};
  for (uint64_t seed = begin; seed < end; ++seed) {
    SCOPED_TRACE("replay: FIRN_SEED=" + std::to_string(seed) + " rehearse_test");
    const Case c = draw_case(seed);
    Watcher watcher(c.machine);
    const Rehearsed rehearsed = c.run(&watcher);
    if (HasFatalFailure()) return;
    ASSERT_TRUE(rehearsed.possible) << "it ends nowhere";
    ASSERT_LE(rehearsed.total_ns, c.serial_ns());
    uint64_t compute_ns = 0;
    for (const auto& kernel : c.program.kernels) compute_ns += kernel.ns * c.periods;
    ASSERT_EQ(rehearsed.total_ns, rehearsed.stall_ns + compute_ns);
    for (unsigned channel = 0; channel < channel_count; ++channel) {
      ASSERT_EQ(rehearsed.bytes[channel], watcher.bytes[channel]);
      bytes[channel] += watcher.bytes[channel];
    }
    left += watcher.left;
    Watcher other(c.machine);
    const Rehearsed again = c.run(&other);
    ASSERT_EQ(again.total_ns, rehearsed.total_ns);
    ASSERT_EQ(other.count, watcher.count);
    ASSERT_EQ(c.run(nullptr).total_ns, rehearsed.total_ns) << "it matters who looks";
  }
  if (end - begin < 100) return;
  EXPECT_GT(left, 10000u);  // the cases are of interest
  for (uint64_t moved : bytes) EXPECT_GT(moved, 1u << 30);
}

TEST(Rehearse, nothing_moves_where_everything_fits) {
  for (uint64_t seed = 1; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    Case c = draw_case(seed);
    for (const auto& block : c.program.blocks) c.machine.capacity += 2 * block.size;  // and spare
    c.tuning.spare_part = 16;
    c.warm = true;
    const Rehearsed rehearsed = c.run(nullptr);
    ASSERT_TRUE(rehearsed.possible);
    EXPECT_EQ(rehearsed.stall_ns, 0u);
    for (uint64_t bytes : rehearsed.bytes) EXPECT_EQ(bytes, 0u);
  }
}

TEST(Rehearse, what_does_not_fit_is_said_so) {
  Case c = draw_case(1);
  c.machine.capacity = c.program.working_set() - 1;
  EXPECT_FALSE(c.run(nullptr).possible);
}

/// rehearse.h's own.
TEST(Rehearse, the_example_of_three_blocks) {
  constexpr uint64_t page = 1'000'000;  // bytes
  std::vector<Item> items{{.size = 4, .on_device = 4, .clean = 4, .again = 0},
                          {.size = 4, .on_device = 4, .clean = 4, .again = 1},
                          {.size = 4, .again = 2}};
  const std::vector<Step> steps{{1, Step::Kind::read, 0}, {2, Step::Kind::read, 1},
                                {3, Step::Kind::read, 2}};
  const std::vector<uint64_t> before_ns{0, 10, 10};
  Rehearsal rehearsal;
  rehearsal.items = items;
  rehearsal.steps = steps;
  rehearsal.before_ns = before_ns;
  rehearsal.after_ns = 10;
  rehearsal.machine = {.capacity = 8, .host = 1000, .page_bytes = page, .piece = 4};
  for (const Channel link : {Channel::host_out, Channel::host_in})
    rehearsal.machine.bytes_s[static_cast<size_t>(link)] = 4 * page / 15e-9;
  rehearsal.tuning.spare_part = 0;
  const Rehearsed found = rehearse(rehearsal);
  ASSERT_TRUE(found.possible);
  EXPECT_EQ(found.first_ns, 35u);
  EXPECT_EQ(found.last_ns, 45u);
  EXPECT_EQ(found.total_ns, 80u);
  EXPECT_EQ(found.stall_ns, 20u);
  EXPECT_EQ(found.bytes[static_cast<size_t>(Channel::host_out)], 0u);
}
