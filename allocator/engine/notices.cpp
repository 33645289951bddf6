// Notices for a program that waits most of its time, each said once: that it is a fault storm; that
// memory comes and goes without end, whose, where, and how much of it would be enough.
#include <algorithm>

#include <fmt/format.h>

#include "allocator/base/sizes.h"
#include "allocator/engine/hot.h"

namespace firn {

namespace {
constexpr uint64_t mib = 1u << 20;

/// Rounded to what a reader wants to know; format_size() is as exact as a setting.
std::string about(uint64_t bytes) {
  return bytes >= 1024 * mib ? fmt::format("{:.1f}GiB", static_cast<double>(bytes) / (1024 * mib))
                             : fmt::format("{}MiB", (bytes + mib / 2) / mib);
}
}  // namespace

void EngineImpl::waited(const WaitedBy& who) {
  Lock lock(mutex_);
  if (!thrash_.asking()) return;
  notices_.waiters.add(who.name, who.site, who.waits, who.ns,
                       {.longest_ns = who.longest.ns,
                        .bytes = who.longest.bytes,
                        .room = !who.longest.block,
                        .maker = who.longest.maker ? who.longest.maker : ""});
}

void EngineImpl::made_by(const void* pointer, std::string_view maker) {
  Lock lock(mutex_);
  const Block* block = live_at(pointer, true);
  if (!block || block->pages == 0 || !thrash_.asking()) return;
  auto known = notices_.makers.find(maker);
  if (known == notices_.makers.end()) known = notices_.makers.emplace(maker).first;
  notices_.made[block->index] = {block->generation, known->c_str()};
}

/// The line that allocated it, if asked for in time, else the operator, else null.
const char* EngineImpl::maker_of(const Block& block) const {
  const auto made = notices_.made.find(block.index);
  if (made != notices_.made.end() && made->second.generation == block.generation)
    return made->second.maker;
  return block.maker_of.load(std::memory_order_relaxed) == block.generation
             ? block.maker.load(std::memory_order_relaxed)
             : nullptr;
}

/// Whether the observer is to report who waits, if that changes.
std::optional<bool> EngineImpl::look_for_thrash(const Stalled& stalled) {
  const Wait& wait = stalled.wait;
  const Thrash::Totals totals{
      counted_.faulted_bytes + counted_.prefetched_bytes, counted_.faults,
      static_cast<uint64_t>(std::max<int64_t>(hot_.allocated_bytes().current(), 0))};
  if (thrash_.asking()) {
    const uint64_t room = wait.block ? 0 : wait.bytes;
    notices_.working_bytes =
        std::max(notices_.working_bytes, working_bytes(notices_.since) + room);
    if (!observer_.load(std::memory_order_relaxed))  // no front end reports more
      notices_.waiters.add("", "", 1, wait.ns,
                           {.longest_ns = wait.ns, .bytes = wait.bytes, .room = !wait.block,
                            .maker = wait.maker ? wait.maker : ""});
  }
  const Thrash::Step step = thrash_.waited(stalled.begin_ns, stalled.end_ns, totals);
  if (step == Thrash::Step::none) return std::nullopt;
  if (step == Thrash::Step::ask) {
    notices_.since = tick();
    notices_.working_bytes = 0;
    notices_.waiters.clear();
    notices_.made.clear();
  }
  if (step == Thrash::Step::storm) {
    notice(storm_words(totals));
    return std::nullopt;
  }
  if (step == Thrash::Step::thrash) notice(thrash_words(totals));
  return step == Thrash::Step::ask;
}

/// Bytes on the device at once, if every live block used since that tick were there, with all that
/// cannot leave.
uint64_t EngineImpl::working_bytes(uint64_t since) const {
  uint64_t pages = frames_.shared().free_pages();
  for (const Block* block : live_) {
    const uint64_t w = block->word.load(std::memory_order_relaxed);
    const State state = word::state(w);
    if (block->segment != 0 || state == State::ready || state == State::draining ||
        (w & word::freed))
      continue;
    if (block->age.load(std::memory_order_relaxed) >= since || word::holds(w) > 0 ||
        immovable_pages(*block) > 0)
      pages += block->pages;
  }
  uint64_t bytes = pages * page_bytes +
                   static_cast<uint64_t>(std::max<int64_t>(reserved_tally_[0].current(), 0));
  for (const auto& region : placed_.regions()) bytes += region->mapped_granules() * granule_bytes;
  return bytes;
}

std::string EngineImpl::storm_words(const Thrash::Totals& totals) const {
  const Thrash::Stretch stretch = thrash_.stretch(totals);
  return fmt::format(
      "fault storm: the program spent {:.0f} % of the last {:.1f} s waiting for memory ({} blocks, "
      "{} came back; the budget is {}). firn top shows who waits; a larger firn_budget helps",
      100 * stretch.part, stretch.seconds, stretch.faults, about(stretch.arrived_bytes),
      format_size(frames_.budget_granules() * granule_bytes));
}

std::string EngineImpl::thrash_words(const Thrash::Totals& totals) const {
  const Thrash::Stretch stretch = thrash_.stretch(totals);
  std::string text = fmt::format(
      "thrash: the program spent {:.0f} % of the last {:.1f} s waiting for memory that left and "
      "came back again and again ({}, {:.1f} times all allocated memory)",
      100 * stretch.part, stretch.seconds, about(stretch.arrived_bytes), stretch.rounds);
  if (const auto* first = notices_.waiters.first()) {
    const auto& [who, waiter] = *first;
    text += fmt::format(". It waited longest for {} {}",
                        waiter.room ? "room for" : "a block of", about(waiter.bytes));
    if (!waiter.room)
      text += waiter.maker.empty() ? std::string(" (allocated before Firn recorded this)")
                                   : fmt::format(" (allocated by {})", waiter.maker);
    if (!who.first.empty()) text += ", in " + who.first;
    if (!who.second.empty()) text += ", " + who.second;
    text += fmt::format(" ({:.1f} s in {} waits)", static_cast<double>(waiter.ns) / 1e9,
                        waiter.times);
  }
  return text + ". " + enough_words();
}

std::string EngineImpl::enough_words() const {
  const uint64_t budget = frames_.budget_granules() * granule_bytes;
  const uint64_t enough = (notices_.working_bytes + granule_bytes - 1) / granule_bytes *
                          granule_bytes;
  if (enough <= budget)
    return fmt::format("The working set of {} fits in the budget of {}: Firn found no firn_budget "
                       "that would stop the thrashing",
                       format_size(enough), format_size(budget));
  std::string text =
      fmt::format("The working set is {}; firn_budget:{}MiB would stop the thrashing (the budget "
                  "is {} now)",
                  about(enough), enough / mib, format_size(budget));
  size_t free_bytes = 0, total_bytes = 0;
  if (driver_.mem_get_info(&free_bytes, &total_bytes) == CUDA_SUCCESS && enough > total_bytes)
    text += fmt::format("; the device has only {}: use a smaller batch or recomputation",
                        about(total_bytes));
  return text;
}

void EngineImpl::notice(const std::string& words) {
  counted_.notices.push_back(words);
  say(words);
  if (trace_) trace_->row(clock_.now_ns(), "notice", options_.device, 0, 0, 0, words);
}

}  // namespace firn
