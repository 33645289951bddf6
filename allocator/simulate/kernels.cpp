#include "allocator/simulate/kernels.h"

#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <utility>

namespace firn::program {

using lifetimes::Decision;
using lifetimes::Situation;
using lifetimes::Step;

uint64_t Kernels::working_set() const {
  uint64_t most = 0;
  for (const Kernel& kernel : kernels) {
    uint64_t pages = 0;
    for (const Use& use : kernel.uses) pages += blocks[use.block].size;
    most = std::max(most, pages);
  }
  return most;
}

uint64_t Kernels::peak() const {
  std::vector<uint64_t> born(kernels.size() + 1), died(kernels.size() + 1);
  uint64_t alive = 0, most = 0;
  for (const Block& block : blocks) {
    if (block.persistent) alive += block.size;
    born[block.persistent ? kernels.size() : block.born] += block.size;
    died[block.persistent ? kernels.size() : block.dies] += block.size;
  }
  for (size_t k = 0; k < kernels.size(); ++k) {
    alive += born[k];
    most = std::max(most, alive);
    alive -= died[k];
  }
  return most;
}

Kernels train(size_t layers, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto between = [&](uint64_t least, uint64_t most) {
    return least + random() % (most - least + 1);
  };
  const uint64_t weight = between(1, 12), state = between(1, 24), kept = between(2, 40);
  const uint64_t inner = between(1, 40), ns = between(200'000, 4'000'000);
  Kernels program;
  const auto block = [&](uint64_t size, bool persistent) {
    program.blocks.push_back({.size = size, .persistent = persistent});
    return static_cast<uint32_t>(program.blocks.size() - 1);
  };
  const auto kernel = [&](uint64_t time, std::vector<Kernels::Use> uses) {
    for (const auto& use : uses) {
      Kernels::Block& used = program.blocks[use.block];
      if (used.born == SIZE_MAX) used.born = program.kernels.size();
      used.dies = program.kernels.size();
    }
    program.kernels.push_back({std::max<uint64_t>(time, 1), std::move(uses)});
  };
  struct Layer {
    uint32_t first, second, moments[2], middle, act, out;
  };
  std::vector<Layer> all(layers);
  const auto temporary = [&](uint64_t size) {
    const uint32_t i = block(size, false);
    program.blocks[i].born = SIZE_MAX;
    return i;
  };
  for (Layer& layer : all)
    layer = {block(weight, true), block(weight, true), {block(state, true), block(state, true)},
             0, 0, 0};
  uint32_t in = temporary(kept);
  const uint32_t first = in;
  for (Layer& layer : all) {
    layer.middle = temporary(inner);
    layer.act = temporary(inner);
    layer.out = temporary(kept);
    kernel(ns, {{in, in == first}, {layer.first, false}, {layer.middle, true}});
    kernel(ns / 8, {{layer.middle, false}, {layer.act, true}});
    kernel(ns, {{layer.act, false}, {layer.second, false}, {layer.out, true}});
    in = layer.out;
  }
  uint32_t grad = temporary(kept);
  kernel(ns / 4, {{in, false}, {grad, true}});
  for (size_t i = layers; i-- > 0;) {
    const Layer& layer = all[i];
    const uint32_t to_act = temporary(inner), to_middle = temporary(inner), next = temporary(kept);
    const uint32_t sum = temporary(weight);
    kernel(ns, {{grad, false}, {layer.act, false}, {layer.second, false}, {to_act, true}});
    kernel(ns, {{layer.middle, false}, {to_act, false}, {to_middle, true}});
    kernel(ns, {{i ? all[i - 1].out : first, false}, {to_middle, false}, {layer.first, false},
                {sum, true}, {next, true}});
    kernel(ns / 16, {{sum, false}, {layer.first, true}, {layer.second, true},
                     {layer.moments[0], true}, {layer.moments[1], true}});
    grad = next;
  }
  return program;
}

Script::Script(const Kernels& program) {
  for (uint32_t i = 0; i < program.blocks.size(); ++i) {
    const Kernels::Block& block = program.blocks[i];
    items.push_back({.size = block.size, .born = !block.persistent});
    if (block.persistent) items.back().again = i;
  }
  const auto step = [&](Step::Kind kind, uint32_t item) {
    steps.push_back({steps.size() + 1, kind, item});
    before_ns.push_back(after_ns);
    after_ns = 0;
  };
  for (size_t k = 0; k < program.kernels.size(); ++k) {
    const Kernels::Kernel& kernel = program.kernels[k];
    // As an operator does: it holds what it is given before it makes its results.
    for (const bool born : {false, true})
      for (const auto& use : kernel.uses) {
        const Kernels::Block& block = program.blocks[use.block];
        if (born != (!block.persistent && block.born == k)) continue;
        if (born) step(Step::Kind::birth, use.block);
        step(use.write ? Step::Kind::write : Step::Kind::read, use.block);
      }
    after_ns += kernel.ns;
    for (const auto& use : kernel.uses) {
      const Kernels::Block& block = program.blocks[use.block];
      if (!block.persistent && block.dies == k) step(Step::Kind::death, use.block);
    }
  }
}

void Script::start_warm(uint64_t capacity) {
  for (lifetimes::Item& item : items) {
    if (item.born || item.size > capacity) continue;
    item.on_device = item.size;
    capacity -= item.size;
  }
}

lifetimes::Rehearsal Script::rehearsal(const lifetimes::RehearsalMachine& machine) const {
  lifetimes::Rehearsal rehearsal;
  rehearsal.items = items;
  rehearsal.steps = steps;
  rehearsal.before_ns = before_ns;
  rehearsal.after_ns = after_ns;
  rehearsal.machine = machine;
  return rehearsal;
}

double cpu_s() {
  timespec time{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) std::abort();
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double decision_s(const Kernels& program, int tries, Decision& decision) {
  Script script(program);
  script.start_warm(program.peak() / 2);
  const Situation situation{program.peak() / 2, program.peak() / 32, script.steps.size(),
                            script.items, script.steps};
  double least = 1e9;
  for (int i = 0; i < tries; ++i) {
    const double begin = cpu_s();
    decision = decide(situation);
    least = std::min(least, cpu_s() - begin);
  }
  return least;
}

}  // namespace firn::program
