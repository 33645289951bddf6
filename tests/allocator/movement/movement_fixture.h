// Movement with a driver and a store that only note what they are asked for, and an owner that
// notes what it is told. Copies are over when a test says so, and no byte moves on a device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "allocator/movement/movement.h"
#include "tests/allocator/fake_gpu.h"
#include "tests/allocator/fake_store.h"
#include "tests/hand_clock.h"

namespace firn::test {

inline constexpr size_t piece_bytes = granule_bytes;
inline constexpr uint32_t span_granules = 2;
inline constexpr uint64_t patience_ns = 10'000'000'000;

struct Wanted {
  uint64_t host_bytes = 64u << 20;
  bool store = true;
  bool sums = false, verify = false, guard = false, poison = false;
  bool host_has_bytes = false;
};

class OneMovement final : public Movement::Owner {
 public:
  explicit OneMovement(Wanted wanted = {})
      : has_store_(wanted.store),
        host(gpu.driver(), &store, wanted.host_bytes, nullptr, 0, !wanted.host_has_bytes),
        transfers({gpu.driver(), health, streams, uses, host, {}, &store, 0, clock,
                   [this](const std::string& words) { trouble(words); }}),
        mapper({gpu.driver(), health, frames, transfers.gate(), clock, 0, span_granules, 100}),
        movement({*this,
                  {span_granules * granule_bytes, piece_bytes, patience_ns, wanted.sums,
                   wanted.verify, wanted.guard, wanted.poison},
                  gpu.driver(), health, clock, wanted.store ? &store : nullptr, host, streams,
                  uses, transfers, mapper}) {
    EXPECT_TRUE(transfers.start(false));
    transfers.know_streams(static_cast<unsigned>(streams.see(transfers.out_stream())),
                           static_cast<unsigned>(streams.see(transfers.in_stream())));
    program_ = static_cast<unsigned>(streams.see(program_stream));
  }
  /// Everything ends; nothing may be left.
  ~OneMovement() override {
    for (Block* block : std::vector<Block*>(movement.spilling())) movement.keep(*block);
    for (Block& block : blocks) movement.drop_copies(block);
    while (!store.requests.empty()) store.answer(0, make_error(Code::io, 0, "at the end"));
    (void)movement.reap_store();
    finish_all();
    (void)movement.reap_copies();
    movement.sums().drop();
    for (Block& block : blocks) (void)mapper.give_up(block);
    unmap();
    EXPECT_EQ(host.used(), 0u) << "a reference to staging is left";
    EXPECT_FALSE(transfers.requesting());
    frames.trim();
    EXPECT_TRUE(health.dead() || gpu.frames_live == 0) << "frames were not given back";
    transfers.end();
  }

  // The owner.
  void trouble(const std::string& words) override { troubles.push_back(words); }
  void say(const std::string& words) const override { said.push_back(words); }
  void trace(const char* event, const Block&, const char* detail) override {
    traced.push_back(*detail ? std::string(event) + " " + detail : event);
  }
  void work_begins() override { ++works; }
  void leaves(Block& block) override { left.push_back(&block); }
  void dropped(const Block& block) override { without_copy.push_back(&block); }
  void make_young(Block& block) override { young.push_back(&block); }
  void lost(Block& block) override { lost_blocks.push_back(&block); }
  bool came_out(const PieceRef& ref) override {
    came.push_back(ref);
    return names_writes;
  }
  bool put_aside(Block&) override { return ++asides, goes_aside; }
  void take_back(Block& block) override { taken_back.push_back(&block); }
  bool keeps_all() const override { return stays; }
  std::optional<uint64_t> window() const override { return plan; }
  std::optional<PieceRef> next_write() override {
    if (!writes) return std::nullopt;
    return movement.host_copies().next_by_arrival();
  }
  std::vector<PieceRef> give_up_writes() override { return std::exchange(given_up, {}); }
  bool leaves_host(const Block&) const override { return goes_on; }
  std::string last_events(const Block&) const override { return " (its events)"; }

  /// A block on the device that may leave; its bytes are never used.
  Block& block(uint32_t granules = span_granules) {
    Block& block = blocks.emplace_back();
    block.address = uint64_t{blocks.size()} << 40;
    block.pages = granules * granule_pages;
    block.bytes = block.requested = granules * granule_bytes;
    block.shape = {0, granules, 0};
    make_spans(block, span_granules);
    transit_own(block, Event::allocate, word::proven);
    map(block);
    return block;
  }
  void map(Block& block, uint32_t granules = UINT32_MAX) {
    const uint64_t pages = std::min<uint64_t>(block.pages - block.mapped,
                                              uint64_t{granules} * granule_pages);
    Result<Mapping> claimed = mapper.claim(block, pages, frames.reserve(pages / granule_pages));
    ASSERT_TRUE(claimed);
    ASSERT_TRUE(mapper.map_apart(lock_, *claimed));
    Mapper::install(*claimed);
  }
  void unmap() {
    while (mapper.unmap_next(lock_, UINT64_MAX)) continue;
  }
  /// The program's stream works with it, until finish_program().
  void use(Block& block) {
    gpu.give(program_stream);
    block.use.store(streams.now(program_).bits);
  }
  void finish_program() { gpu.finish(program_stream); }
  void finish_out() { gpu.finish(transfers.out_stream()); }
  void finish_in() { gpu.finish(transfers.in_stream()); }
  void finish_all() {
    for (const unsigned index : {program_, transfers.out(), transfers.in()})
      (void)streams.close(streams.now(index));
    finish_program();
    finish_out();
    finish_in();
    (void)streams.poll();
  }
  /// As the engine's pump() does. True: something has changed.
  bool round() {
    bool changed = movement.begin_round();
    changed |= streams.poll();
    changed |= movement.reap_copies();
    changed |= movement.advance();
    if (has_store_) changed |= movement.write_back();
    changed |= movement.carry_out_sums(lock_);
    unmap();
    return changed;
  }
  void rounds() {
    for (int i = 0; i < 6; ++i) round();
  }
  /// Copies out as they come are over, until there are none; the store answers nothing.
  void rounds_out() {
    for (int i = 0; i < 6; ++i) {
      finish_out();
      round();
    }
  }
  void rounds_in() {
    for (int i = 0; i < 6; ++i) {
      finish_in();
      round();
    }
  }
  /// It is in host memory alone, and nothing of it on the device.
  void send_out(Block& block) {
    EXPECT_TRUE(movement.start_spill(block, true));
    rounds_out();
    EXPECT_EQ(block.state(), State::hosted);
    EXPECT_EQ(block.mapped, 0u);
  }
  /// It is in the store too; or, with `alone`, there alone.
  void send_on(Block& block, bool alone = true) {
    send_out(block);
    writes = true;
    round();
    while (!store.requests.empty()) {
      store.answer(0);
      round();
    }
    writes = false;
    EXPECT_EQ(block.state(), State::spilled);
    if (alone)
      for (Piece& piece : block.pieces) movement.host_copies().drop(piece);
    gpu.work.clear();
    traced.clear();
  }
  void bring_back(Block& block, bool prefetched = false) {
    map(block);
    movement.arrive(block, prefetched);
  }
  static Error failed(Code code) { return make_error(code, 0, "refused, in a test"); }
  /// Copies that were begun since the last look.
  std::vector<std::string> copies() {
    std::vector<std::string> all;
    for (const FakeGpu::Work& work : std::exchange(gpu.work, {})) all.push_back(work.call);
    return all;
  }
  bool told(const std::string& words) const { return found(troubles, words) == 1; }
  bool said_once(const std::string& words) const { return found(said, words) == 1; }

  static inline const auto program_stream = reinterpret_cast<CUstream>(uintptr_t{0x33});

  std::vector<std::string> troubles, traced;
  mutable std::vector<std::string> said;
  unsigned works = 0, asides = 0;
  std::vector<Block*> left, young, taken_back, lost_blocks;
  std::vector<const Block*> without_copy;
  std::vector<PieceRef> came, given_up;
  bool names_writes = false, goes_aside = true, stays = false, writes = false, goes_on = false;
  std::optional<uint64_t> plan;

 private:
  static size_t found(const std::vector<std::string>& all, const std::string& words) {
    return static_cast<size_t>(std::count_if(all.begin(), all.end(), [&](const auto& each) {
      return each.find(words) != std::string::npos;
    }));
  }
  const bool has_store_;
  DriverTimes times_;
  DriverTimedMutex mutex_{times_};
  Mapper::Lock lock_{mutex_};
  unsigned program_ = 0;

 public:
  FakeGpu gpu;
  FakeStore store;
  HandClock clock;
  DeviceHealth health{gpu.driver(), 0};
  Frames frames{gpu.driver(), health, 0, 64 * granule_bytes};
  Streams streams{gpu.driver(), health};
  Uses uses{streams};
  HostTier host;
  Transfers transfers;
  Mapper mapper;
  Movement movement;
  std::deque<Block> blocks;
};

}  // namespace firn::test
