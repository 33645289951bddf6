// Faults of the driver, as the program's steps bring them about, and what they excuse.
#include <fmt/format.h>

#include "tests/simulation/tag.h"
#include "tests/simulation/world.h"

namespace firn::sim {

namespace {
constexpr const char* entries[] = {
    "cuMemCreate", "cuMemCreate", "cuMemMap", "cuMemMap", "cuMemSetAccess", "cuMemUnmap",
    "cuMemRelease", "cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync",
    "cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync", "cuEventCreate", "cuEventRecord", "cuEventQuery",
    "cuStreamWaitEvent",
    "cuMemsetD8Async"};
}  // namespace

void World::inject(Draw& draw) {
  if (driver_ill_ || dead_) return;
  const uint64_t kind = draw.below(20);
  if (kind == 0 && options_.deaths && done_ > options_.operations / 4) {
    static constexpr int deaths[] = {700, 710, 719};
    machine_->gpu().die(deaths[draw.below(3)], draw.below(2) ? 0 : 1 + draw.below(200));
    driver_ill_ = was_ill_ = dead_ = true;
    ill_until_ = UINT64_MAX;
    met(Fault::device_death);
    return;
  }
  if (kind < 4) {
    const uint64_t ns = draw.below(draw.one_in(4) ? 400'000'000 : 5'000'000);
    machine_->events().not_ready_until_ns = machine_->gpu().now() + ns;
    met(Fault::not_ready);
    if (ns > 100'000'000) met(Probe::not_ready_for_long);
    return;
  }
  if (kind < 7) {
    const EngineInspector at = inspector(any_device(draw));
    (void)machine_->gpu().busy(draw.one_in(2) ? at.out_stream() : at.in_stream(),
                               draw.below(20'000'000));
    met(Fault::busy_copy_stream);
    return;
  }
  const char* entry = entries[draw.below(std::size(entries))];
  const int error = draw.one_in(2) ? 2 : 999;
  driver_ill_ = was_ill_ = true;
  ++illnesses_;
  if (draw.one_in(4)) {
    machine_->gpu().fail_from(entry, 1 + draw.below(6), error);
    ill_until_ = done_ + 1 + draw.below(20);
    met(Fault::driver_from_then_on);
  } else {
    machine_->gpu().fail_at(entry, 1 + draw.below(12), error);
    ill_until_ = done_ + 30;
    met(Fault::driver_call);
  }
}

void World::end_injections() {
  for (const char* entry : entries) machine_->gpu().fail_at(entry, 0, 0);
  machine_->events().not_ready_until_ns = 0;
  if (!dead_) driver_ill_ = false;
}

/// (An operation that waits while other threads go on may tell of what was over long before.)
bool World::excused(int device) const {
  if (driver_ill_ || dead_ || illnesses_ != operation_illnesses) return true;
  return EngineInspector(machine_->engine(device), *machine_, device).dead();
}

/// The engine refused what the program wanted: was it right to?
void World::refused(int device, size_t bytes, const Error& error, ModelBlock* block) {
  const bool by_recipe = error.text.find("made again") != std::string::npos;
  if (by_recipe && error.text.find(ProgramRemaker::said_no) != std::string::npos) {
    met(Probe::remake_refused);
    return;
  }
  if (error.code == Code::lost) {
    if (!block || block->lost) {
      if (!block) fail("lost", "an allocation is lost: " + describe(error));
      return;
    }
    block->lost = true;
    // (Small blocks are lost together, with their segment.)
    if (block->large() || lost_segments_.insert(segment_of(*block)).second)
      ++lost_seen_[static_cast<size_t>(device)];
    met(Probe::lost_met);
    const SeenStore::Bad bad =
        machine_->seen_store()
            ? machine_->seen_store()->bad(Tag::make(block->id, block->version).content())
            : SeenStore::Bad{};
    // (Reads that fail are tried again for longer than any of these disks is ill.)
    if (by_recipe) met(Probe::lost_with_input);
    if (bad.corrupt == 0 && block->version != 0 && block->large() && !by_recipe)
      fail("lost", fmt::format("block {} (version {}) is lost, and of its reads from the store {} "
                               "came back wrong and {} failed: {}",
                               block->id, block->version, bad.corrupt, bad.failed,
                               describe(error)));
    if (!options_.store_faults) fail("lost", "nothing was injected: " + describe(error));
    return;
  }
  if (error.code != Code::out_of_memory) {
    if (!excused(device))
      fail("driver", fmt::format("{} bytes: {}", bytes, describe(error)));
    return;
  }
  met(Probe::out_of_memory);
  // (Inputs have to fit beside what is made from them.)
  if (machine_->engine(device).stats().recipes > 0) return;
  if (dead_ || !options_.with_store || options_.store.capacity_bytes != SIZE_MAX) return;
  if (!well_ && (was_ill_ || short_ || options_.store_faults || options_.threads > 1 ||
                 stopped_[static_cast<size_t>(device)] ||
                 machine_->host_room.left_bytes != UINT64_MAX))
    return;
  // Right only when what may not leave, with the request, exceeds the budget.
  const EngineStats stats = machine_->engine(device).stats();
  uint64_t staying = stats.gap_bytes + (bytes + granule_bytes - 1) / granule_bytes * granule_bytes;
  for (const PinnedBytes& pinned : stats.pinned) staying += pinned.bytes;
  if (staying <= stats.budget_bytes)
    fail("out_of_memory", fmt::format("{} of {} bytes would have done: {}", staying,
                                      stats.budget_bytes, error.text));
}

void World::count_faults() {
  if (options_.refused_copies > 0) met(Fault::driver_call, machine_->events().refused_copies);
  if (!machine_->store()) return;
  const SimulatedFaults f = machine_->store()->faults();
  met(Fault::write_error, f.write_errors), met(Fault::read_error, f.read_errors);
  met(Fault::no_space, f.refused), met(Fault::late, f.late);
  met(Fault::short_transfer, f.short_transfers), met(Fault::flipped, f.flipped);
  met(Fault::stale_read, f.stale_reads), met(Fault::misdirected_read, f.misdirected_reads);
  met(Fault::lasting_flip, f.lasting_flips), met(Fault::lost_write, f.lost_writes);
  met(Fault::misdirected_write, f.misdirected_writes), met(Fault::torn_write, f.torn);
  met(Probe::late_completion, f.late), met(Probe::short_transfer, f.short_transfers);
  met(Probe::misdirected_write, f.misdirected_writes), met(Probe::lost_write, f.lost_writes);
  met(Probe::torn_write, f.torn), met(Probe::write_refused, f.refused);
}

}  // namespace firn::sim
