#include "allocator/preload/tables.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

namespace firn::preload {

namespace {
uint64_t past_key(uint64_t at, uint64_t value) {
  uint64_t h = at * 0x9E3779B97F4A7C15ull ^ (value + 0x7F4A7C15ull) * 0xBF58476D1CE4E5B9ull;
  return h ^ h >> 31;
}
uint64_t aligned_up(uint64_t at) { return (at + 7) & ~uint64_t{7}; }
}  // namespace

void scan_words(uint64_t to, const void* from, size_t bytes, Range values,
                const std::function<void(size_t, uint64_t)>& found) {
  const auto* source = static_cast<const char*>(from);
  size_t offset = aligned_up(to) - to;
  // Scans blocks of words without a branch for each word: nearly none holds an address.
  constexpr size_t at_once = 64;
  for (; offset + at_once * 8 <= bytes; offset += at_once * 8) {
    uint64_t words[at_once];
    std::memcpy(words, source + offset, sizeof words);
    uint64_t any = 0;
    for (uint64_t word : words) any |= static_cast<uint64_t>(word - values.base < values.bytes);
    if (!any) continue;
    for (size_t i = 0; i < at_once; ++i)
      if (values.contains(words[i])) found(offset + 8 * i, words[i]);
  }
  for (; offset + 8 <= bytes; offset += 8) {
    uint64_t word;
    std::memcpy(&word, source + offset, 8);
    if (values.contains(word)) found(offset, word);
  }
}

/// All zero; pages without a count are never touched.
Tables::Counts Tables::counts(uint64_t number) {
  void* memory = std::calloc(number, sizeof(std::atomic<uint32_t>));
  if (!memory) throw std::bad_alloc();
  return Counts(static_cast<std::atomic<uint32_t>*>(memory), std::free);
}

bool Tables::holds(uint64_t at, size_t bytes) const {
  const Arena* arena = arena_of(at);
  if (!arena || bytes == 0) return false;
  uint64_t granule_at = (at - arena->range.base) / granule;
  const uint64_t last = (at + bytes - 1 - arena->range.base) / granule;
  while (granule_at <= last) {
    if (arena->stretches[granule_at / stretch].load(std::memory_order_acquire) == 0) {
      granule_at = (granule_at / stretch + 1) * stretch;
      continue;
    }
    if (arena->granules[granule_at++].load(std::memory_order_acquire) != 0) return true;
  }
  return false;
}

void Tables::add_arena(Range arena) {
  std::lock_guard lock(mutex_);
  const unsigned index = arena_count_.load(std::memory_order_relaxed);
  if (index == arenas_most || arena.bytes == 0) return;
  arenas_[index].range = arena;
  arenas_[index].granules = counts(arena.bytes / granule + 1);
  arenas_[index].stretches = counts(arena.bytes / granule / stretch + 1);
  arena_count_.store(index + 1, std::memory_order_release);
}

void Tables::count(uint64_t at, int64_t change) {
  words_.fetch_add(static_cast<uint64_t>(change), std::memory_order_relaxed);
  if (const Arena* arena = arena_of(at)) {
    const uint64_t number = (at - arena->range.base) / granule;
    arena->granules[number].fetch_add(static_cast<uint32_t>(change), std::memory_order_acq_rel);
    arena->stretches[number / stretch].fetch_add(static_cast<uint32_t>(change),
                                                 std::memory_order_acq_rel);
  } else {
    foreign_.fetch_add(static_cast<uint64_t>(change), std::memory_order_acq_rel);
    foreign_version_.fetch_add(1, std::memory_order_acq_rel);
  }
}

void Tables::remember_past(uint64_t at, uint64_t value) {
  if (past_.size() >= past_most) past_.clear();
  past_.insert(past_key(at, value));
}

void Tables::set_locked(uint64_t at, uint64_t value) {
  Page& words = pages_[at / page];
  const auto index = static_cast<uint16_t>(at % page / 8);
  auto it = std::lower_bound(words.begin(), words.end(), index,
                             [](const Word& word, uint16_t i) { return word.index < i; });
  if (it != words.end() && it->index == index) {
    it->value = value;
    if (!in_arena(at)) foreign_version_.fetch_add(1, std::memory_order_acq_rel);
  } else {
    words.insert(it, {index, value});
    count(at, 1);
  }
  remember_past(at, value);
}

void Tables::forget_locked(uint64_t at, size_t bytes) {
  const uint64_t first = aligned_up(at), end = (at + bytes) & ~uint64_t{7};
  if (end <= first) return;
  for (auto it = pages_.lower_bound(first / page); it != pages_.end();) {
    const uint64_t base = it->first * page;
    if (base >= end) break;
    std::erase_if(it->second, [&](const Word& word) {
      const uint64_t address = base + 8 * uint64_t{word.index};
      if (address < first || address >= end) return false;
      count(address, -1);
      return true;
    });
    it = it->second.empty() ? pages_.erase(it) : std::next(it);
  }
}

template <class See>
void Tables::each_locked(uint64_t at, size_t bytes, See&& see) const {
  const uint64_t first = aligned_up(at), end = at + bytes;
  for (auto it = pages_.lower_bound(first / page); it != pages_.end(); ++it) {
    const uint64_t base = it->first * page;
    if (base >= end) break;
    for (const Word& word : it->second) {
      const uint64_t address = base + 8 * uint64_t{word.index};
      if (address >= first && address + 8 <= end) see(address, word.value);
    }
  }
}

Range Tables::arenas() const {
  uint64_t low = UINT64_MAX, high = 0;
  for (unsigned i = 0, n = arena_count_.load(std::memory_order_acquire); i < n; ++i) {
    low = std::min(low, arenas_[i].range.base);
    high = std::max(high, arenas_[i].range.base + arenas_[i].range.bytes);
  }
  return high ? Range{low, high - low} : Range{};
}

size_t Tables::write(uint64_t to, const void* from, size_t bytes, bool keep) {
  const Range all = arenas();
  if (all.bytes == 0) return 0;
  std::vector<std::pair<uint64_t, uint64_t>> found;
  scan_words(to, from, bytes, all, [&](size_t offset, uint64_t value) {
    if (in_arena(value)) found.emplace_back(to + offset, value);
  });
  // The common case, with nothing remembered, takes no lock.
  if (found.empty() && words_.load(std::memory_order_acquire) == 0) return 0;
  std::lock_guard lock(mutex_);
  if (!keep) forget_locked(to, bytes);
  for (const auto& [at, value] : found) set_locked(at, value);
  return found.size();
}

void Tables::forget(uint64_t at, size_t bytes) {
  if (words_.load(std::memory_order_acquire) == 0) return;
  std::lock_guard lock(mutex_);
  forget_locked(at, bytes);
}

void Tables::copy(uint64_t to, uint64_t from, size_t bytes, bool keep) {
  if (words_.load(std::memory_order_acquire) == 0 || to == from) return;
  std::lock_guard lock(mutex_);
  std::vector<std::pair<uint64_t, uint64_t>> carried;
  each_locked(from, bytes, [&](uint64_t address, uint64_t value) {
    carried.emplace_back(address - from + to, value);
  });
  if (!keep) forget_locked(to, bytes);
  for (const auto& [at, value] : carried)
    if (at % 8 == 0) set_locked(at, value);
}

void Tables::add(uint64_t at, uint64_t value) {
  std::lock_guard lock(mutex_);
  set_locked(at, value);
}

void Tables::collect(uint64_t at, size_t bytes, std::vector<uint64_t>& values) const {
  std::shared_lock lock(mutex_);
  each_locked(at, bytes, [&](uint64_t, uint64_t value) { values.push_back(value); });
}

void Tables::collect_foreign(std::vector<uint64_t>& values) const {
  struct Known {
    const Tables* of = nullptr;
    uint64_t version = 0;
    std::vector<uint64_t> values;
  };
  thread_local Known known;
  if (known.of != this || known.version != foreign_version_.load(std::memory_order_acquire)) {
    std::shared_lock lock(mutex_);
    known.of = this;
    known.version = foreign_version_.load(std::memory_order_acquire);
    known.values.clear();
    for (const auto& [number, words] : pages_)
      if (!in_arena(number * page))
        for (const Word& word : words) known.values.push_back(word.value);
  }
  values.insert(values.end(), known.values.begin(), known.values.end());
}

bool Tables::was(uint64_t at, uint64_t value) const {
  std::shared_lock lock(mutex_);
  return past_.contains(past_key(at, value));
}

}  // namespace firn::preload
