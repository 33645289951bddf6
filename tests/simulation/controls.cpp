// Hints, and what a program asks of the engine as a whole.
#include <fmt/format.h>

#include "tests/simulation/tag.h"
#include "tests/simulation/world.h"

namespace firn::sim {

void World::hint(Draw& draw, Do what) {
  ModelBlock* block = any(draw);
  if (!block || block->lost) return;
  ++block->busy;
  Engine& engine = machine_->engine(block->device);
  const auto must = [&](const Result<void>& result, const char* words) {
    if (!result && !excused(block->device))
      fail("hint", fmt::format("{} of block {}: {}", words, block->id, describe(result.error())));
  };
  switch (what) {
    case Do::cold:
      must(engine.cold(block->address, block->bytes), "cold");
      if (block->id % 3 == 0) use_on_host(*block);
      break;
    case Do::prefetch: {
      // (Of some blocks both hints at one place: no number is drawn for it.)
      const CUstream at = stream(block->device, block->home);
      if (block->id % 4 == 0) must(engine.cold(block->address, block->bytes, at), "cold");
      must(engine.prefetch(block->address, block->bytes, at), "prefetch");
      if (block->id % 4 == 1) must(engine.cold(block->address, block->bytes, at), "cold");
      break;
    }
    case Do::pin:
      if (!block->pinned && block->large()) {
        Result<void> pinned = engine.pin(block->address, "by the simulation");
        if (pinned) block->pinned = true;
        else refused(block->device, block->bytes, pinned.error(), block);
      }
      break;
    case Do::unpin:
      if (block->pinned) {
        must(engine.unpin(block->address), "unpin");
        block->pinned = false;
      } else {
        use_on_host(*block);
      }
      break;
    case Do::give_address:
      if (!block->given && block->bytes < options_.engine.budget_bytes / 16) {
        Result<void> given = engine.give_address(block->address, "given by the simulation");
        if (given) block->given = true;
        else refused(block->device, block->bytes, given.error(), block);
      }
      break;
    case Do::export_memory:
      if (block->bytes < options_.engine.budget_bytes / 16) {
        auto exported = engine.export_memory(block->address, "exported by the simulation");
        if (exported) {
          block->given = true;
          met(Probe::exported);
        } else {
          refused(block->device, block->bytes, exported.error(), block);
        }
      }
      break;
    default: break;
  }
  --block->busy;
  look_at(*block);
}

/// The processor compares all of it in host memory, and writes the next version there, or not. (No
/// number is drawn.)
void World::use_on_host(ModelBlock& block) {
  if (block.version >= 0xFFFFE) return;
  const bool writes = block.id % 2 == 0;
  tell(writes ? "writes in host memory" : "reads in host memory", block, block.home);
  Engine& engine = machine_->engine(block.device);
  Result<OnHost> there = engine.on_host(block.address, writes ? Access::write : Access::read);
  if (!there) {
    const Code code = there.error().code;
    const bool leaves = block.large() && !block.pinned && !block.given && block.version != 0 &&
                        !options_.engine.places && options_.threads == 1 &&
                        !stopped_[static_cast<size_t>(block.device)];
    if (code == Code::invalid_argument && leaves && !excused(block.device))
      fail("on_host", describe(there.error()));
    if (code == Code::host_out_of_memory) met(Probe::no_host_memory);
    if (code != Code::invalid_argument && code != Code::host_out_of_memory)
      refused(block.device, block.bytes, there.error(), &block);
    return;
  }
  met(writes ? Probe::written_on_host : Probe::read_on_host);
  const uint64_t version = machine_->version_done[block.id];
  if (block.version != version)
    fail("on_host", fmt::format("block {} has version {}, and work that writes {} is not over",
                                block.id, version, block.version));
  for (const OnHost::Piece& piece : there->pieces) {
    const auto address = reinterpret_cast<uint64_t>(piece.data);
    const auto tag_of = [&](uint64_t of) {
      return Tag::make(block.id, of).bits + piece.offset / store_alignment;
    };
    uint64_t at = 0, found = 0;
    if (version != 0 && machine_->gpu().compare(-1, address, piece.bytes, tag_of(version), &at,
                                                &found) != firn_gpu_tags_done)
      fail("on_host", fmt::format("block {} in host memory has {:#x} at 4 KiB number {} of the "
                                  "piece at {}, not version {}",
                                  block.id, found, at, piece.offset, version));
    if (writes) (void)machine_->gpu().fill(-1, address, piece.bytes, tag_of(block.version + 1));
  }
  if (writes) machine_->version_done[block.id] = ++block.version;
  look_at(block);
  if (block.id % 5 == 0) (void)engine.pump();
  Result<void> ended = engine.end_on_host(there->name);
  if (!ended) fail("on_host", describe(ended.error()));
}

void World::change_streams(Draw& draw, Do what) {
  const int device = any_device(draw);
  const auto index = static_cast<unsigned>(draw.below(options_.streams));
  auto& known = streams_[static_cast<size_t>(device)];
  if (index == 0) return;
  if (what == Do::new_stream) {  // the program may end it unseen
    machine_->engine(device).may_end(known[index]);
    return;
  }
  // Its owner destroys it; blocks that name it go on.
  CUstream fresh = machine_->make_stream(device);
  if (!fresh) return;
  CUstream old = known[index];
  machine_->engine(device).stream_ends(old);
  // The new one is behind the old one, as far as the program goes.
  if (!make_wait(device, fresh, old)) {
    Driver::ContextGuard context(machine_->driver(), machine_->context(device));
    (void)machine_->driver().stream_synchronize(old);
  }
  machine_->destroy_stream(device, old);
  known[index] = fresh;
  met(Probe::streams_ended);
}

/// The machine's memory gets short, for a while, or has room again.
void World::press_host(Draw& draw, Engine& engine) {
  const bool pressed = !draw.one_in(3);
  machine_->host_room.left_bytes = pressed ? draw.below(24) << 20 : UINT64_MAX;
  for (unsigned i = 0; i < 4 && engine.give_host_back(pressed); ++i) met(Probe::host_given_back);
}

void World::control(Draw& draw, Do what) {
  const int device = any_device(draw);
  const auto at = static_cast<size_t>(device);
  const auto index = static_cast<unsigned>(draw.below(options_.streams));
  Engine& engine = machine_->engine(device);
  switch (what) {
    case Do::wait: machine_->clock().wait(draw.below(500'000)); return;
    case Do::pump: (void)engine.pump(); return;
    case Do::ponder: (void)engine.ponder(); return;
    case Do::trim: engine.trim(); return;
    case Do::spill_all: engine.spill_all(); return;
    case Do::spill_away: engine.spill_away(); return;
    case Do::stop_spilling:
      engine.stop_spilling(stopped_[at] = !stopped_[at]);
      evictions_[at] = engine.stats().evictions;
      return;
    case Do::set_budget: {
      const uint64_t granules = options_.engine.budget_bytes >> 21;
      const uint64_t part = granules / 2 + draw.below(granules / 2 + 1);
      const uint64_t bytes = (draw.one_in(2) ? granules : part) << 21;
      short_ |= bytes < options_.engine.budget_bytes;
      within_[at] = false;
      Result<void> set = engine.set_budget(bytes);
      if (!set && !excused(device)) fail("budget", describe(set.error()));
      met(Probe::budget_lowered);
      return;
    }
    case Do::give_way: {
      short_ = true;
      within_[at] = false;
      (void)engine.give_way(draw.below(16) << 20, draw.below(20'000'000));
      (void)engine.set_budget(options_.engine.budget_bytes);
      return;
    }
    case Do::press_host: return press_host(draw, engine);
    case Do::synchronize: machine_->synchronize(); return;
    case Do::foreign: {
      int inside = 0;
      if (engine.free(&inside)) fail("free", "a foreign pointer was freed");
      if (ModelBlock* block = any(draw); block && block->bytes > 1)
        if (machine_->engine(block->device).free(static_cast<char*>(block->address) + 1))
          fail("free", "an interior pointer was freed");
      return;
    }
    case Do::busy:
      (void)machine_->gpu().busy(stream(device, index),
                                 draw.below(draw.one_in(16) ? 50'000'000 : 300'000));
      return;
    case Do::new_stream:
    case Do::end_stream: return change_streams(draw, what);
    default: return;
  }
}

}  // namespace firn::sim
