// What the program does in a step.
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "tests/simulation/tag.h"
#include "tests/simulation/world.h"

namespace firn::sim {

size_t World::draw_bytes(Draw& draw) {
  switch (draw.below(16)) {
    case 0: return 1 + draw.below(4096);
    case 1: return 4096 + draw.below(1u << 20);
    case 2: return (2u << 20) + draw.below(3) - 1;  // a granule and its neighbours
    case 3: return (1u << 20) + draw.below(3) - 1;  // the border between small and large
    case 4: return (1u << 20) + draw.below(options_.block_bytes_most * 2);
    default: return (1u << 20) + draw.below(options_.block_bytes_most);
  }
}

/// One that no operation uses at this moment; null: there is none.
ModelBlock* World::any(Draw& draw) {
  if (blocks_.empty()) return nullptr;
  ModelBlock& block = *blocks_[draw.below(blocks_.size())];
  return block.busy ? nullptr : &block;
}

void World::allocate(Draw& draw, int device, size_t bytes) {
  const auto at = static_cast<size_t>(device);
  const auto home = static_cast<unsigned>(draw.below(options_.streams));
  if (live_bytes_[at] + bytes > options_.live_bytes) return;
  live_bytes_[at] += bytes;  // (Another thread may allocate while this one waits.)
  // Half are tensors, which may be made in host memory beside what their operator holds.
  const Told told = bytes / 7 % 2 ? Told::always : Told::unknown;
  Result<void*> made = machine_->engine(device).allocate(bytes, stream(device, home), 0, told);
  if (!made) {
    live_bytes_[at] -= bytes;
    return refused(device, bytes, made.error(), nullptr);
  }
  const auto address = reinterpret_cast<uint64_t>(*made);
  for (const auto& other : blocks_) {
    const auto begin = reinterpret_cast<uint64_t>(other->address);
    if (address < begin + other->bytes && begin < address + bytes)
      fail("overlap", fmt::format("block {} of {} bytes at {:#x} lies in block {}", next_id_, bytes,
                                  address, other->id));
  }
  auto block = std::make_unique<ModelBlock>();
  block->address = *made;
  block->bytes = bytes;
  block->id = next_id_++;
  block->device = device;
  block->home = block->last = home;
  block->home_stream = stream(device, home);
  block->used_on = 1u << home;
  if (machine_->version_done.size() <= block->id) machine_->version_done.resize(2 * block->id + 64);
  if (!block->large()) lost_segments_.erase(segment_of(*block));  // (Nothing comes into one that is.)
  ModelBlock& kept = *block;
  blocks_.push_back(std::move(block));
  tell("made", kept, home);
  if (!draw.one_in(4)) (void)write(draw, kept, home);
}

bool World::make_wait(int device, CUstream waits, CUstream behind) {
  Driver& driver = machine_->driver();
  Driver::ContextGuard context(driver, machine_->context(device));
  CUevent event = nullptr;
  if (driver.event_create(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return false;
  const bool ordered = driver.event_record(event, behind) == CUDA_SUCCESS &&
                       driver.stream_wait_event(waits, event, 0) == CUDA_SUCCESS;
  (void)driver.event_destroy(event);
  if (!ordered && !excused(device)) fail("driver", "the program's own event was refused");
  return ordered;
}

/// The program's own duty: this stream comes after the block's last use.
bool World::order(ModelBlock& block, unsigned index) {
  if (block.last != index && !make_wait(block.device, stream(block.device, index),
                                        stream(block.device, block.last)))
    return false;
  block.last = index;
  block.used_on |= 1u << index;
  return true;
}

/// (Small ones below 8 KiB may have none.)
bool World::has_tags(const ModelBlock& block) {
  return inspector(block.device).tagged(block.address, block.bytes).bytes > 0;
}

/// A kernel that writes the version, or compares with it.
bool World::launch(const ModelBlock& block, uint32_t version, bool writes, unsigned index) {
  const auto part = inspector(block.device).tagged(block.address, block.bytes);
  const auto* address = reinterpret_cast<const void*>(part.address);
  const CUstream on = stream(block.device, index);
  const bool done =
      writes ? machine_->write(block.device, address, part.bytes, block.id, version, on)
             : machine_->compare(block.device, address, part.bytes, block.id, version, on);
  if (!done && !excused(block.device)) fail("driver", "a launch was refused");
  return done;
}

bool World::write(Draw& draw, ModelBlock& block, unsigned index) {
  if (block.lost || block.version >= 0xFFFFE) return false;
  const Using use(block);
  if (!order(block, index)) return false;
  tell("writes", block, index);
  Engine& engine = machine_->engine(block.device);
  const bool anyway = draw.one_in(32);
  Result<Hold> hold = anyway ? engine.touch_anyway(block.address, stream(block.device, index),
                                                   Access::write)
                             : engine.touch(block.address, stream(block.device, index),
                                            Access::write);
  if (!hold) {
    refused(block.device, block.bytes, hold.error(), &block);
    return false;
  }
  bool launched = true;
  if (has_tags(block)) {
    launched = launch(block, block.version + 1, true, index);
    if (launched) ++block.version;
  }
  if (launched)
    engine.release(*hold, stream(block.device, index));
  else if (hold->block)  // (none of a small block before operators are watched)
    engine.release_unused({&*hold, 1});
  if (options_.engine.adversarial && draw.one_in(4)) engine.spill_all();
  return launched;
}

/// One operator that reads them all.
void World::read(std::vector<ModelBlock*> blocks, unsigned index, bool anyway) {
  std::vector<Using> uses;
  for (ModelBlock* block : blocks) uses.emplace_back(*block);
  std::vector<Hold> holds;
  const int device = blocks.front()->device;
  Engine& engine = machine_->engine(device);
  bool all = true;
  for (ModelBlock* block : blocks) {
    tell("reads", *block, index);
    all = order(*block, index);
    if (!all) break;
    Result<Hold> hold =
        anyway ? engine.touch_anyway(block->address, stream(device, index), Access::read)
               : engine.touch(block->address, stream(device, index), Access::read);
    if (!hold) {
      refused(device, block->bytes, hold.error(), block);
      all = false;
      break;
    }
    holds.push_back(*hold);
  }
  if (all)
    for (ModelBlock* block : blocks)
      if (block->version && has_tags(*block)) (void)launch(*block, block->version, false, index);
  for (const Hold& hold : holds) engine.release(hold, stream(device, index));
  for (ModelBlock* block : blocks) look_at(*block);
}

void World::copy(Draw& draw) {
  ModelBlock* from = any(draw);
  ModelBlock* to = any(draw);
  if (!from || !to || from == to || from->device != to->device || from->lost || to->lost) return;
  const auto index = static_cast<unsigned>(draw.below(options_.streams));
  const Using keeps(*to);
  read({from}, index, false);
  (void)write(draw, *to, index);
}

void World::touch_many(Draw& draw) {
  std::vector<ModelBlock*> chosen;
  for (unsigned i = 0; i < 6; ++i) {
    ModelBlock* block = any(draw);
    if (!block || block->lost || (!chosen.empty() && block->device != chosen[0]->device)) continue;
    if (std::find(chosen.begin(), chosen.end(), block) == chosen.end()) chosen.push_back(block);
  }
  if (chosen.empty()) return;
  const int device = chosen[0]->device;
  const auto index = static_cast<unsigned>(draw.below(options_.streams));
  std::vector<Using> uses;
  std::vector<uint64_t> addresses;
  std::vector<ModelBlock*> ordered;
  for (ModelBlock* block : chosen)
    if (order(*block, index)) {
      uses.emplace_back(*block);
      ordered.push_back(block);
      addresses.push_back(reinterpret_cast<uint64_t>(block->address) + block->bytes / 2);
    }
  if (ordered.empty()) return;
  Engine& engine = machine_->engine(device);
  std::vector<Hold> holds(ordered.size());
  size_t held = 0, done = 0;
  while (done < ordered.size()) {
    done += engine.touch_many({addresses.data() + done, addresses.size() - done}, Access::read,
                              holds.data(), held);
    if (done == ordered.size()) break;
    Result<Hold> hold = engine.touch(ordered[done]->address, stream(device, index), Access::read);
    if (!hold) {
      refused(device, ordered[done]->bytes, hold.error(), ordered[done]);
      break;
    }
    if (hold->block) holds[held++] = *hold;
    ++done;
  }
  for (size_t i = 0; i < done; ++i)
    if (ordered[i]->version && has_tags(*ordered[i]))
      (void)launch(*ordered[i], ordered[i]->version, false, index);
  engine.release_many({holds.data(), held}, stream(device, index));
}

void World::release(Draw& draw, size_t number, bool held) {
  const std::unique_ptr<ModelBlock> block = std::move(blocks_[number]);
  blocks_.erase(blocks_.begin() + static_cast<ptrdiff_t>(number));
  live_bytes_[static_cast<size_t>(block->device)] -= block->bytes;
  tell(held ? "frees while it is held" : "frees", *block, block->home);
  Engine& engine = machine_->engine(block->device);
  const auto must = [&](const Result<void>& result, const char* what) {
    if (!result && !excused(block->device))
      fail("free", fmt::format("{} of block {}: {}", what, block->id, describe(result.error())));
  };
  for (unsigned i = 0; i < options_.streams; ++i)
    if ((block->used_on >> i & 1) && stream(block->device, i) != block->home_stream)
      must(engine.record_stream(block->address, stream(block->device, i)), "record_stream");
  if (held && !block->lost) {
    Result<Hold> hold =
        engine.touch(block->address, stream(block->device, block->home), Access::read);
    if (hold) {
      must(engine.free(block->address), "free while held");
      engine.release(*hold, stream(block->device, block->home));
      if (hold->block) met(Probe::freed_while_held);
      return;
    }
  }
  if (draw.one_in(8)) {  // on its way in
    (void)engine.prefetch(block->address, block->bytes, stream(block->device, block->home));
    (void)engine.pump();
    const auto info = engine.find(block->address);
    if (info && std::string(info->state) == "faulting")
      met(Probe::freed_while_faulting);
  }
  must(engine.free(block->address), "free");
  if (draw.one_in(16) && engine.free(block->address)) fail("free", "a second free passed");
}

void World::release_behind(Draw&, size_t number) {
  ModelBlock& block = *blocks_[number];
  const int device = block.device;
  const CUstream fence = fences_[static_cast<size_t>(device)];
  for (unsigned i = 0; i < options_.streams; ++i)
    if ((block.used_on >> i & 1) && !make_wait(device, fence, stream(device, i))) return;
  const std::unique_ptr<ModelBlock> gone = std::move(blocks_[number]);
  blocks_.erase(blocks_.begin() + static_cast<ptrdiff_t>(number));
  live_bytes_[static_cast<size_t>(device)] -= gone->bytes;
  tell("frees behind the fence", *gone, 0);
  Result<void> freed = machine_->engine(device).free_behind(
      gone->address, fence, ++fence_given_[static_cast<size_t>(device)]);
  if (!freed && !excused(device)) fail("free", "free_behind: " + describe(freed.error()));
  met(Probe::behind_fence);
}

/// A network's training: weights that stay, activations that are made and used in reverse.
void World::layer(Draw& draw, uint64_t place) {
  const unsigned layers = options_.layers;
  const auto weight_bytes = [&](uint64_t l) {
    return (1u << 20) + Draw(options_.seed * 31 + l).below(options_.block_bytes_most);
  };
  if (kept_ == 0) {
    for (unsigned l = 0; l < layers; ++l) allocate(draw, 0, weight_bytes(l));
    kept_ = blocks_.size();
    return;
  }
  const auto weight = [&](uint64_t l) -> ModelBlock* {
    // (Another thread's iteration may have freed some.)
    return l < std::min<uint64_t>(kept_, blocks_.size()) && !blocks_[l]->busy && !blocks_[l]->lost ? blocks_[l].get() : nullptr;
  };
  const uint64_t l = place < layers ? place : place < 2 * layers ? 2 * layers - 1 - place
                                                                   : place - 2 * layers;
  ModelBlock* w = weight(l);
  if (place < layers) {  // forward
    if (w) read({w}, w->home, false);
    ModelBlock* before =
        options_.recipes && blocks_.size() > kept_ && !blocks_.back()->busy ? blocks_.back().get()
                                                                            : nullptr;
    std::optional<Using> keeps;
    if (before) keeps.emplace(*before);
    allocate(draw, 0, weight_bytes(l + 100));
    const size_t made = blocks_.size();
    if (options_.recipes && made > 0 && !blocks_.back()->busy && blocks_.back().get() != before) {
      std::vector<ModelBlock*> inputs;
      if (ModelBlock* still = weight(l)) inputs.push_back(still);
      if (before) inputs.push_back(before);
      run_operator(draw, *blocks_.back(), inputs, blocks_.back()->home);
    }
    allocate(draw, 0, weight_bytes(l + 200));  // for a moment only: such have planned places
    if (blocks_.size() == made + 1 && !blocks_.back()->busy) release(draw, made, false);
  } else if (place < 2 * layers) {  // backward
    if (w) read({w}, w->home, false);
    const size_t made = blocks_.size();
    allocate(draw, 0, weight_bytes(l + 300));
    if (blocks_.size() == made + 1 && !blocks_.back()->busy) release(draw, made, false);
    if (blocks_.size() > kept_ && !blocks_.back()->busy) {
      ModelBlock* last = blocks_.back().get();
      if (!last->lost) read({last}, last->home, false);
      if (!blocks_.empty() && blocks_.back().get() == last)
        release(draw, blocks_.size() - 1, false);
    }
  } else if (w) {  // the optimizer
    (void)write(draw, *w, w->home);
  }
}

void World::end_iteration(Draw& draw) {
  if (kept_ == 0 && options_.layers == 0) kept_ = blocks_.size() / 2 + 1;
  for (size_t i = blocks_.size(); i-- > kept_;)
    if (i < blocks_.size() && !blocks_[i]->busy) release(draw, i, false);
}

void World::operate(Draw& draw, Do what, uint64_t number) {
  const auto index = static_cast<unsigned>(draw.below(options_.streams));
  switch (what) {
    case Do::allocate: return allocate(draw, any_device(draw), draw_bytes(draw));
    case Do::write:
      if (ModelBlock* block = any(draw)) (void)write(draw, *block, index);
      return;
    case Do::read:
    case Do::touch_anyway: {
      std::vector<ModelBlock*> chosen;
      for (uint64_t i = 0, n = 1 + draw.below(3); i < n; ++i) {
        ModelBlock* block = any(draw);
        if (block && !block->lost && (chosen.empty() || block->device == chosen[0]->device) &&
            std::find(chosen.begin(), chosen.end(), block) == chosen.end())
          chosen.push_back(block);
      }
      if (!chosen.empty()) read(chosen, index, what == Do::touch_anyway);
      return;
    }
    case Do::copy: return copy(draw);
    case Do::touch_many: return touch_many(draw);
    case Do::layer: return layer(draw, number % options_.period);
    case Do::free:
    case Do::free_held:
    case Do::free_behind: {
      if (blocks_.size() <= kept_) return;
      const size_t at = kept_ + draw.below(blocks_.size() - kept_);
      if (blocks_[at]->busy) return;
      if (what == Do::free_behind) return release_behind(draw, at);
      return release(draw, at, what == Do::free_held);
    }
    case Do::cold: case Do::prefetch: case Do::pin: case Do::unpin: case Do::export_memory:
    case Do::give_address:
      return hint(draw, what);
    case Do::inject: return inject(draw);
    case Do::run_operator:
    case Do::choose:
      return recipe(draw, what);
    default: return control(draw, what);
  }
}

}  // namespace firn::sim
