#include "tests/allocator/lifetimes/meaning.h"

#include <algorithm>
#include <cstdlib>

namespace firn::program {

using lifetimes::Operator;
using lifetimes::Operators;

namespace {

uint64_t mix(uint64_t hash, uint64_t with) {
  hash = (hash * 31 + with + 1) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 29);
}

bool holds(std::span<const uint32_t> values, uint32_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

Meaning meaning_of(const Operators& operators, size_t given) {
  Meaning meaning;
  constexpr uint64_t nothing = 0;
  std::vector<uint64_t> content(operators.values.size(), nothing);
  std::vector<bool> named(operators.values.size(), false);
  for (size_t v = 0; v < given; ++v) content[v] = mix(1, v);
  std::vector<bool> ran;
  for (const Operator& one : operators.operators) {
    if (one.source >= ran.size()) {
      ran.resize(one.source + 1);
      meaning.read.resize(one.source + 1);
    }
    std::vector<uint64_t> read, state;
    const auto reads = operators.reads(one), writes = operators.writes(one);
    const auto is_state = [&](uint32_t value) {
      return one.leaves_state && operators.values[value].persistent && holds(writes, value);
    };
    for (const uint32_t value : reads) {
      (is_state(value) ? state : read).push_back(content[value]);
      if (content[value] == nothing)
        meaning.broken += "source " + std::to_string(one.source) + " reads what nothing wrote; ";
    }
    // What is overwritten in part, for all that the operators say.
    for (const uint32_t value : writes)
      if (!holds(reads, value) && (named[value] || operators.values[value].persistent))
        (is_state(value) ? state : read).push_back(content[value]);
    if (!ran[one.source]) {
      meaning.read[one.source] = read;
    } else {
      if (!one.again)
        meaning.broken += "source " + std::to_string(one.source) + " may not run again; ";
      if (meaning.read[one.source] != read)
        meaning.broken += "source " + std::to_string(one.source) + " runs again with others; ";
    }
    ran[one.source] = true;
    uint64_t made = mix(2, one.source);
    for (const uint64_t each : read) made = mix(made, each);
    uint64_t of_state = made;
    for (const uint64_t each : state) of_state = mix(of_state, each);
    for (size_t w = 0, results = 0; w < writes.size(); ++w)
      content[writes[w]] = is_state(writes[w]) ? mix(of_state, w) : mix(made, ++results);
    for (const uint32_t value : operators.named(one)) named[value] = true;
  }
  for (uint32_t v = 0; v < given; ++v)
    if (operators.values[v].persistent) meaning.persistent.push_back(content[v]);
  return meaning;
}

Operators draw_operators(const OperatorBounds& bounds, std::mt19937_64& random) {
  const auto between = [&](const uint64_t(&range)[2]) {
    return range[0] + random() % (range[1] - range[0] + 1);
  };
  std::uniform_real_distribution<> share;
  Operators program;
  const auto value = [&](bool persistent) {
    program.values.push_back({between(bounds.bytes) * bounds.page_bytes, persistent});
    return static_cast<uint32_t>(program.values.size() - 1);
  };
  const auto add = [&](std::vector<uint32_t> reads, const std::vector<uint32_t>& writes) {
    std::sort(reads.begin(), reads.end());
    reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
    program.add({.ns = between(bounds.ns), .again = share(random) < bounds.again,
                 .source = program.count()},
                reads, writes);
  };
  std::vector<uint32_t> weights, made{value(false)};  // the first is given
  for (uint64_t i = 1 + random() % 3; i > 0; --i) weights.push_back(value(true));
  const auto recent = [&] {
    return made[made.size() - 1 - random() % std::min<size_t>(made.size(), 3)];
  };
  const uint64_t count = between(bounds.operators);
  for (uint64_t i = 0; i < count; ++i) {
    std::vector<uint32_t> reads{recent()}, writes;
    if (random() % 2) reads.push_back(recent());
    if (random() % 2) reads.push_back(weights[random() % weights.size()]);
    if (share(random) < bounds.in_place) writes.push_back(reads[0]);
    if (writes.empty() || share(random) < bounds.more_results) {
      writes.push_back(value(false));
      made.push_back(writes.back());
    }
    add(reads, writes);
    if (random() % 8) continue;
    // One with running statistics.
    const uint32_t statistics = value(true);
    writes = {value(false), statistics};
    made.push_back(writes[0]);
    if (random() % 2) reads.push_back(statistics);
    add(reads, writes);
    program.operators.back().leaves_state = true;
  }
  uint32_t gradient = value(false);
  add({made.back()}, {gradient});
  for (uint64_t i = 0; i < count; ++i) {
    // Mostly what was made as long before the turn as this is after it.
    const size_t back = std::min<size_t>(i + random() % 2, made.size() - 1);
    std::vector<uint32_t> reads{gradient, made[made.size() - 1 - back]};
    if (random() % 3 == 0) reads.push_back(made[random() % made.size()]);
    if (random() % 3 == 0) reads.push_back(weights[random() % weights.size()]);
    std::vector<uint32_t> writes{value(false)};
    gradient = writes[0];
    if (share(random) < bounds.in_place / 2) writes.push_back(reads[1]);
    if (share(random) < bounds.in_place) writes.push_back(weights[random() % weights.size()]);
    add(reads, writes);
  }
  for (const uint32_t weight : weights)
    if (random() % 2) add({weight, gradient}, {weight});
  return program;
}

uint64_t first_seed() {
  const char* seed = std::getenv("FIRN_SEED");
  return seed ? std::strtoull(seed, nullptr, 0) : 1;
}

uint64_t seeds(uint64_t count) {
  if (std::getenv("FIRN_SEED")) return 1;
  const char* seeds = std::getenv("FIRN_SEEDS");
  return seeds ? std::strtoull(seeds, nullptr, 0) : count;
}

uint64_t drawn_least(double share, uint64_t seeds) {
  return seeds < 20 ? 0 : static_cast<uint64_t>(share * static_cast<double>(seeds));
}

std::string replay(const char* test, uint64_t seed) {
  return "replay: FIRN_SEED=" + std::to_string(seed) + " build/tests/allocator/" + test;
}

}  // namespace firn::program
