// Operators that can be run again: what they write depends on what their inputs hold, and each run,
// the first and later ones, compares these with what they held at the first.
#include "tests/simulation/recipes.h"

#include <algorithm>

#include <fmt/format.h>

#include "tests/simulation/world.h"

namespace firn::sim {

Result<void> ProgramRemaker::remake(uint64_t recipe, void* address, size_t bytes,
                             CUstream stream) noexcept {
  const Run& run = runs_.at(recipe);
  if (!under_way_.insert(recipe).second)
    world_.wrong("twice", fmt::format("recipe {} is made twice at once", recipe));
  if (run.output.address != address || run.output.bytes != bytes)
    world_.wrong("recipe", fmt::format("recipe {} is made at {} ({} bytes), not at {} ({})", recipe,
                                       address, bytes, run.output.address, run.output.bytes));
  world_.made(run);
  const bool refuses = draw_.one_in(64), early = draw_.one_in(2);
  bool done = refuses && early;
  if (!done) done = world_.enqueue(run, device_, stream);
  world_.let_others_go_on();
  under_way_.erase(recipe);
  if (refuses) return make_error(Code::not_supported, 0, said_no);
  if (!done) return make_error(Code::driver, 0, "a launch was refused");
  return {};
}

const Run* ProgramRemaker::of(uint64_t recipe) const {
  const auto found = runs_.find(recipe);
  return found == runs_.end() ? nullptr : &found->second;
}

void ProgramRemaker::add(uint64_t recipe, Run run) { runs_[recipe] = std::move(run); }

void ProgramRemaker::ended(const std::vector<uint64_t>& recipes) {
  for (const uint64_t recipe : recipes) runs_.erase(recipe);
}

/// The program writes `output` from these, and says how.
void World::run_operator(Draw& draw, ModelBlock& output, const std::vector<ModelBlock*>& inputs,
                         unsigned index) {
  if (output.lost || output.version >= 0xFFFFE) return;
  const int device = output.device;
  Engine& engine = machine_->engine(device);
  const Using uses(output);
  std::vector<Using> more;
  std::vector<ModelBlock*> read;
  for (ModelBlock* input : inputs) {
    if (input == &output || input->lost || input->device != device || input->version == 0 ||
        !has_tags(*input) || std::find(read.begin(), read.end(), input) != read.end())
      continue;
    more.emplace_back(*input);
    read.push_back(input);
  }
  std::vector<Hold> holds;
  const auto touch = [&](ModelBlock& block, Access access) {
    if (!order(block, index)) return false;
    Result<Hold> hold = engine.touch(block.address, stream(device, index), access);
    if (!hold) {
      refused(device, block.bytes, hold.error(), &block);
      return false;
    }
    if (hold->block) holds.push_back(*hold);
    return true;
  };
  bool all = true;
  for (ModelBlock* input : read) all = all && touch(*input, Access::read);
  all = all && touch(output, Access::write);
  if (all) {
    Run run{named(output), {}};
    run.output.version = output.version + 1;
    std::vector<const void*> addresses;
    for (const ModelBlock* input : read) {
      run.inputs.push_back(named(*input));
      addresses.push_back(input->address);
    }
    if (enqueue(run, device, stream(device, index))) {
      ++output.version;
      tell("runs an operator for", output, index);
      for (const ModelBlock* input : read) tell("  which reads", *input, index);
      const uint64_t recipe = next_recipe_++;
      const bool chosen = !draw.one_in(4);
      Result<void> given = engine.give_recipe(
          output.address, {recipe, addresses, 1000, chosen, chosen && draw.one_in(2)});
      if (given) {
        recipes_[static_cast<size_t>(device)]->add(recipe, std::move(run));
        met(Probe::recipe_given);
      } else if (given.error().code != Code::invalid_argument) {
        fail("recipe", describe(given.error()));
      }
    } else if (!excused(device)) {
      fail("driver", "a launch was refused");
    }
  }
  for (const Hold& hold : holds) engine.release(hold, stream(device, index));
  recipes_[static_cast<size_t>(device)]->ended(engine.take_ended_recipes());
}

Run::Named World::named(const ModelBlock& block) {
  const auto part = inspector(block.device).tagged(block.address, block.bytes);
  return {block.address, block.bytes, part, block.id, block.version};
}

/// Kernels that compare the inputs, and one that writes the output.
bool World::enqueue(const Run& run, int device, CUstream on) {
  const auto at = [](const Run::Named& block) {
    return reinterpret_cast<const void*>(block.part.address);
  };
  for (const Run::Named& input : run.inputs)
    if (!machine_->compare(device, at(input), input.part.bytes, input.id, input.version, on))
      return false;
  const Run::Named& out = run.output;
  return machine_->write(device, at(out), out.part.bytes, out.id, out.version, on);
}

void World::made(const Run& run) {
  met(Probe::remade);
  for (const Run::Named& input : run.inputs) {
    const auto is = [&](const auto& block) { return block->id == input.id; };
    if (std::none_of(blocks_.begin(), blocks_.end(), is)) met(Probe::input_kept);
  }
}

void World::wrong(const char* oracle, const std::string& words) {
  if (!machine_->wrong_oracle.empty()) return;
  machine_->wrong_oracle = oracle;
  machine_->wrong = words;
}

void World::let_others_go_on() {
  if (turns_ && !ended_ && turns_->yield()) met(Probe::threads_in_remakes);
}

/// An operator of the program, or what it says of one.
void World::recipe(Draw& draw, Do what) {
  ModelBlock* block = any(draw);
  if (!block || block->lost) return;
  if (what == Do::choose) {
    (void)machine_->engine(block->device).choose_remake(block->address, !draw.one_in(3));
    return;
  }
  std::vector<ModelBlock*> inputs;
  for (uint64_t i = 0, n = draw.below(4); i < n; ++i)
    if (ModelBlock* input = any(draw)) inputs.push_back(input);
  run_operator(draw, *block, inputs, static_cast<unsigned>(draw.below(options_.streams)));
  look_at(*block);
}

/// Of a block that was dropped: its recipe stands, and each input has the bytes that it had, or can
/// be made again in turn.
void World::look_at_way_back(int device, const EngineInspector::WayBack& way, unsigned depth) {
  met(Probe::dropped);
  if (depth > 0) met(Probe::dropped_in_row);
  const Run* run = recipes_[static_cast<size_t>(device)]->of(way.recipe);
  if (!way.stands || !run)
    fail("places", fmt::format("device {}: a block is dropped, and its recipe ({}) does not stand",
                               device, way.recipe));
  for (const Run::Named& input : run->inputs) {
    EngineInspector::Seen seen;
    const auto found = inspector(device).look(input.address, input.bytes, input.id, input.version,
                                              seen, true);
    if (found.oracle)
      fail(found.oracle, fmt::format("recipe {} reads block {} version {}: {}", way.recipe,
                                     input.id, input.version, found.words));
    if (seen.way_back) look_at_way_back(device, *seen.way_back, depth + 1);
  }
}

}  // namespace firn::sim
