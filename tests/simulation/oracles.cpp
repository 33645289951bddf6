// What has to hold after each step, and at the end.
#include <utility>

#include <fmt/format.h>

#include "tests/simulation/world.h"

namespace firn::sim {

void World::look_at(ModelBlock& block) {
  if (block.lost || ended_) return;
  EngineInspector::Seen seen;
  const auto found = inspector(block.device)
                         .look(block.address, block.bytes, block.id,
                               machine_->version_done[block.id], seen);
  if (found.oracle) fail(found.oracle, found.words);
  if (seen.way_back) look_at_way_back(block.device, *seen.way_back, 0);
  const auto was = static_cast<State>(block.state), is = static_cast<State>(seen.state);
  if (was == State::faulting && (is == State::hosted || is == State::spilled)) met(Probe::unfault);
  if (was == State::spilling && is == State::resident) met(Probe::kept_while_spilling);
  if (was == State::resident && is == was && seen.host_pieces > 0 &&
      seen.host_pieces < block.host_pieces)
    met(Probe::returned_host_dropped);
  block.state = seen.state;
  block.host_pieces = seen.host_pieces;
  if (seen.two_places) met(Probe::two_places);
  if (seen.only_in_store) met(Probe::only_in_store);
  if (seen.partly_away) met(Probe::partly_away);
  if (seen.shared) met(Probe::shared_frame);
  if (seen.placed) met(Probe::placed);
  if (seen.zero_copy) met(Probe::zero_copy);
  if (seen.guarded) met(Probe::guarded);
}

/// Whatever is on its way back has the most to lose.
void World::look_at_faulting() {
  for (int device = 0; device < options_.devices; ++device)
    for (const Block* coming : inspector(device).faulting())
      for (const auto& block : blocks_)
        if (reinterpret_cast<uint64_t>(block->address) == coming->address) look_at(*block);
}

void World::look_at_all() {
  for (const auto& block : blocks_) look_at(*block);
  for (int device = 0; device < options_.devices; ++device) {
    const EngineInspector at = inspector(device);
    // (What could not leave when the budget was lowered is above it.)
    if (at.held_bytes() <= at.budget() || !short_) machine_->engine(device).check();
  }
}

void World::after(uint64_t number) {
  if (!machine_->wrong_oracle.empty()) fail(machine_->wrong_oracle.c_str(), machine_->wrong);
  if (!blocks_.empty() && !dead_) look_at(*blocks_[number % blocks_.size()]);
  if (!dead_) look_at_faulting();
  for (int device = 0; device < options_.devices; ++device) {
    const EngineInspector at = inspector(device);
    if (at.dead() && !dead_) {
      if (!was_ill_) fail("driver", "the engine takes the device for dead: " + at.death());
      dead_ = driver_ill_ = true;
      ill_until_ = UINT64_MAX;
    }
  }
  if (dead_) {
    met(Probe::device_died);
    // What is dead stays so: a while of being asked is enough.
    if (number % 256 == 255) {
      Draw draw = Draw::of(options_.seed, ~number);
      close_now(draw);
    }
    return;
  }
  for (int device = 0; device < options_.devices; ++device) expect_budget(device);
  if (number % 8 == 0)  // the service threads' part
    for (int device = 0; device < options_.devices; ++device) {
      Engine& engine = machine_->engine(device);
      if (engine.ponder_due()) (void)engine.ponder();
      if (options_.engine.host_ahead && engine.host_due()) (void)engine.prepare_host();
    }
  if (number % 32 == 0) look_at_all();
  if (number % 32 != 0) return;
  for (int device = 0; device < options_.devices; ++device) {
    if (const uint64_t peak = machine_->counts(device).frame_bytes_peak;
        peak > options_.engine.budget_bytes)
      fail("budget", fmt::format("device {} held {} bytes of frames of a budget of {}", device, peak,
                                 options_.engine.budget_bytes));
    if (stopped_[static_cast<size_t>(device)] &&
        machine_->engine(device).stats().evictions != evictions_[static_cast<size_t>(device)])
      fail("stopped", "a block was evicted while spilling was stopped");
  }
}

/// The engines have ended, and with them all that they had of the driver.
void World::expect_nothing_left() {
  for (int device = 0; device < options_.devices; ++device) {
    const FirnGpuCounts counts = machine_->counts(device);
    const uint64_t streams = machine_->streams_of_others(device);
    if (counts.mapped_bytes || counts.frames || counts.events || counts.streams > streams)
      fail("leak", fmt::format("device {}: {} bytes mapped, {} frames, {} events, {} streams of "
                               "the engine's are left",
                               device, counts.mapped_bytes, counts.frames, counts.events,
                               counts.streams - streams));
  }
  if (const uint64_t bytes = machine_->counts(0).host_registered_bytes; bytes != 0)
    fail("leak", fmt::format("{} bytes of host memory are registered still", bytes));
  if (const uint64_t bytes = machine_->gpu().reserved_bytes(); bytes != 0)
    fail("leak", fmt::format("{} bytes of addresses are reserved still", bytes));
}

/// Once no more is held than the budget of now, it stays so until another one is set.
void World::expect_budget(int device) {
  const EngineInspector at = inspector(device);
  const uint64_t held = at.held_bytes(), budget = at.budget();
  auto within = within_[static_cast<size_t>(device)];
  if (within && held > budget)
    fail("budget", fmt::format("device {} holds {} bytes of frames, and its budget is {} now",
                               device, held, budget));
  within = held <= budget;
}

/// The process ends, or the library does, with work in flight: all comes down.
void World::close_now(Draw& draw) {
  ended_ = true;
  bool in_flight = false;
  if (turns_) {  // (Others may be within the engine.)
    ended_ = false;
    return;
  }
  bool dead = dead_;
  for (int device = 0; device < options_.devices; ++device) {
    if (machine_->store())
      in_flight |= machine_->store()->in_flight(static_cast<unsigned>(device)) > 0;
    dead |= inspector(device).dead();
  }
  count_probes();
  if (options_.driver_faults && draw.one_in(2)) {  // the end itself is refused something
    static constexpr const char* entries[] = {"cuMemUnmap", "cuMemRelease", "cuCtxSynchronize",
                                              "cuEventSynchronize", "cuMemHostUnregister",
                                              "cuStreamDestroy"};
    const auto fail = draw.one_in(2) ? machine_->gpu().fail_from : machine_->gpu().fail_at;
    fail(entries[draw.below(std::size(entries))], 1 + draw.below(4), 999);
    met(Fault::driver_call);
    driver_ill_ = true;
  }
  for (int device = 0; device < options_.devices; ++device) {
    machine_->close(device);
    if (machine_->store())
      if (const size_t left = machine_->store()->in_flight(static_cast<unsigned>(device)); left > 0)
        fail("close", fmt::format("device {}: {} requests of the store's go on after its end",
                                  device, left));
    if (!machine_->wrong_oracle.empty()) fail(machine_->wrong_oracle.c_str(), machine_->wrong);
  }
  if (in_flight) met(Probe::closed_in_flight);
  if (dead || driver_ill_) return;  // what the driver refuses to take back stays
  if (machine_->store())
    if (const uint64_t slots = machine_->store()->stats().slots_in_use; slots != 0)
      fail("close", fmt::format("{} slots are left", slots));
  expect_nothing_left();
}

/// Faults stop: within a bounded time all that is not lost is there, and then nothing is left.
void World::finish() {
  end_injections();
  if (options_.refused_copies > 0) machine_->gpu().fail_rate("cuMemcpyHtoDAsync", 0, 1, 0);
  if (dead_) {
    Draw draw;
    return close_now(draw);
  }
  if (machine_->store()) machine_->store()->end_faults();
  turns_.reset();
  done_ = options_.operations;
  for (int device = 0; device < options_.devices; ++device) {
    const auto at = static_cast<size_t>(device);
    machine_->engine(device).stop_spilling(stopped_[at] = false);
    Result<void> set = machine_->engine(device).set_budget(options_.engine.budget_bytes);
    if (!set) fail("liveness", describe(set.error()));
    within_[at] = false;
  }
  machine_->host_room.left_bytes = UINT64_MAX;
  for (int device = 0; device < options_.devices; ++device)
    (void)machine_->engine(device).give_host_back(false);
  well_ = true;
  // A full store is left alone for a second.
  const uint64_t soon = machine_->gpu().now() + 1'000'000'000;
  while (machine_->gpu().now() <= soon) machine_->clock().wait(soon + 1 - machine_->gpu().now());
  const uint64_t began = machine_->gpu().now();
  step_began();
  for (const auto& block : blocks_) {
    if (block->pinned) (void)machine_->engine(block->device).unpin(block->address);
    block->pinned = false;
  }
  // What was given away stays, and there may be too little room beside it: not what it says then.
  for (const auto& block : blocks_)
    if (!block->lost) read({block.get()}, block->home, false);
  machine_->synchronize();
  if (!machine_->wrong_oracle.empty()) fail(machine_->wrong_oracle.c_str(), machine_->wrong);
  Draw draw = Draw::of(options_.seed, 0xe4d);
  while (!blocks_.empty()) release(draw, blocks_.size() - 1, false);
  for (int device = 0; device < options_.devices; ++device) {
    step_began();
    Engine& engine = machine_->engine(device);
    engine.trim();
    for (int i = 0; i < 10'000 && (engine.pump() || engine.busy()); ++i)
      machine_->clock().wait(1'000'000);
    engine.trim();
    engine.check();
    if (const auto left = inspector(device).quiet(); left.oracle) fail(left.oracle, left.words);
    const EngineStats stats = engine.stats();
    if (stats.allocated_bytes != 0)
      fail("leak", fmt::format("{} bytes allocated", stats.allocated_bytes));
    if (stats.lost_blocks < lost_seen_[static_cast<size_t>(device)])
      fail("lost", fmt::format("{} blocks are lost, {} were met", stats.lost_blocks,
                               lost_seen_[static_cast<size_t>(device)]));
    if (stats.unseen_writes != 0) fail("net", "an unseen write");
    if (const uint64_t bytes = machine_->counts(device).frame_bytes; bytes != 0)
      fail("leak", fmt::format("device {}: {} bytes of frames are left", device, bytes));
  }
  if (machine_->store() && machine_->store()->stats().slots_in_use != 0)
    fail("leak", "slots are left");
  count_probes();
  for (int device = 0; device < options_.devices; ++device) machine_->close(device);
  expect_nothing_left();
  if (machine_->gpu().now() - began > 600'000'000'000)
    fail("liveness", "it took ten minutes to end");
}

void World::count_probes() {
  if (std::exchange(counted_, true)) return;
  const auto some = [&](Probe probe, uint64_t times) {
    if (times) met(probe, times);
  };
  if (SeenStore* store = machine_->seen_store()) {
    some(Probe::cancelled_in_flight, store->cancelled);
    some(Probe::discarded_in_flight, store->discarded_in_flight);
    some(Probe::stale_completion, store->stale);
    some(Probe::write_failed, store->writes_failed);
    some(Probe::healed_read, machine_->store()->stats().reread);
  }
  const Events& events = machine_->events();
  some(Probe::unmap_refused, events.refused_unmaps), some(Probe::map_refused, events.refused_maps);
  some(Probe::create_refused, events.refused_creates);
  some(Probe::copy_refused, events.refused_copies);
  some(Probe::register_refused, events.refused_registers);
  for (int device = 0; device < options_.devices; ++device) {
    if (!machine_->open(device)) continue;
    const EngineStats stats = machine_->engine(device).stats();
    some(Probe::forwarded, stats.forwarded_bytes);
    some(Probe::clean_dropped, stats.clean_dropped_bytes);
    some(Probe::prefetched, stats.prefetched_bytes);
    some(Probe::zero_copy, stats.zero_copy_touches);
    some(Probe::period_found, stats.period_found);
    some(Probe::placed, stats.placed);
    report_.lost += stats.lost_blocks;
    report_.evictions += stats.evictions;
    report_.faults_served += stats.faults;
    report_.written_bytes += stats.store_written_bytes;
    report_.read_bytes += stats.store_read_bytes;
  }
}

}  // namespace firn::sim
