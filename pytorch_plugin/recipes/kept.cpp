#include "pytorch_plugin/recipes/kept.h"

#include <algorithm>
#include <array>
#include <memory>
#include <thread>

#include "allocator/runtime/runtime.h"

namespace firn::pytorch {

namespace {

// An iteration's activations of a megabyte and more are some thousands.
constexpr unsigned slot_bits = 13;
constexpr size_t slot_count = size_t{1} << slot_bits;
constexpr size_t ways = 4;  // an address may be in so many neighbouring slots, of one cache line

struct Slot {
  std::atomic<bool> in_use{false};  // by a thread that reads or writes what follows, and its base
  uint8_t result_at = 0;
  std::unique_ptr<Recipe> recipe;

  bool take() {
    return !in_use.load(std::memory_order_relaxed) &&
           !in_use.exchange(true, std::memory_order_acquire);
  }
  void give_back() { in_use.store(false, std::memory_order_release); }
};

alignas(64) std::array<std::atomic<const void*>, slot_count> bases{};
std::array<Slot, slot_count>& slots() {
  static auto* const all = new std::array<Slot, slot_count>;  // operators run until the very end
  return *all;
}
std::atomic<uint64_t> no_slot{0};

size_t first_slot(const void* base) {
  const uint64_t hash = (reinterpret_cast<uintptr_t>(base) >> 9) * 0x9e3779b97f4a7c15ull;
  return (hash >> (64 - slot_bits)) & ~(ways - 1);
}

constexpr size_t none = slot_count;

/// The slot of `base`, or one that is free for it, taken. `none`: none can be had at once.
size_t take_slot(const void* base) {
  const size_t first = first_slot(base);
  size_t free = none;
  for (size_t at = first; at < first + ways; ++at) {
    const void* const there = bases[at].load(std::memory_order_relaxed);
    if (there == base) return slots()[at].take() ? at : none;
    if (!there && free == none) free = at;
  }
  if (free != none) return slots()[free].take() ? free : none;
  for (size_t at = first; at < first + ways; ++at) {
    Slot& slot = slots()[at];
    if (!slot.take()) continue;
    if (slot.recipe->standing(slot.result_at) != Recipe::Standing::stands) return at;
    slot.give_back();
  }
  return none;
}

bool large(const TensorName& result, uint64_t least_bytes) {
  return result.kind == TensorName::Kind::device && result.storage_bytes >= least_bytes;
}

/// (A statistic: where two threads come at once, one may go uncounted.)
void count_kept(const RemadeOperator& made_by) {
  made_by.kept.store(made_by.kept.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace

bool keep_recipes(uint64_t least_bytes, bool products) {
  Runtime* runtime = Runtime::get();
  if (least_bytes != 0 && (!runtime || !runtime->driver().stand_in)) return false;
  Writes::all().note_unseen();  // what was kept before may have been written since
  recipes::of_products = products;
  recipes::least_bytes = least_bytes;
  return true;
}

void keep_recipe(std::unique_ptr<Recipe>& recipe) {
  const uint64_t least = recipes::least_bytes.load(std::memory_order_relaxed);
  const size_t results = least == 0 ? 0 : recipe->results;
  size_t left = 0;
  for (size_t i = 0; i < results; ++i) left += large(recipe->result(i), least);
  for (size_t i = 0; left > 0; ++i) {
    if (!large(recipe->result(i), least)) continue;
    const void* const base = recipe->result(i).base;
    const bool last = --left == 0;
    const size_t at = take_slot(base);
    if (at == none) {
      no_slot.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    count_kept(*recipe->made_by);
    Slot& slot = slots()[at];
    bases[at].store(base, std::memory_order_relaxed);
    slot.result_at = static_cast<uint8_t>(i);
    if (!slot.recipe) slot.recipe = std::make_unique<Recipe>();
    if (last)
      slot.recipe.swap(recipe);
    else
      slot.recipe->assign(*recipe);
    slot.give_back();
  }
}

bool find_recipe(const void* base, Recipe& recipe, size_t& result_at) {
  const size_t first = first_slot(base);
  for (size_t at = first; at < first + ways; ++at) {
    if (bases[at].load(std::memory_order_relaxed) != base) continue;
    Slot& slot = slots()[at];
    while (!slot.take()) std::this_thread::yield();
    const bool same = slot.recipe && bases[at].load(std::memory_order_relaxed) == base;
    if (same) {
      recipe.assign(*slot.recipe);
      result_at = slot.result_at;
    }
    slot.give_back();
    if (same) return true;
  }
  return false;
}

std::string kept_text() {
  return "{\"no_slot\": " + std::to_string(no_slot) + "}";
}

}  // namespace firn::pytorch
