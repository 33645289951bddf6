#include "allocator/engine/thrash_notices.h"

#include <algorithm>

#include <fmt/format.h>

#include "allocator/base/sizes.h"

namespace firn {

namespace {
constexpr uint64_t mib = 1u << 20;

/// Rounded to what a reader wants to know; format_size() is as exact as a setting.
std::string about(uint64_t bytes) {
  return bytes >= 1024 * mib ? fmt::format("{:.1f}GiB", static_cast<double>(bytes) / (1024 * mib))
                             : fmt::format("{}MiB", (bytes + mib / 2) / mib);
}
}  // namespace

void ThrashNotices::waited(const WaitedBy& who) {
  if (!asking()) return;
  waiters_.add(who.name, who.site, who.waits, who.ns,
               {.longest_ns = who.longest.ns,
                .bytes = who.longest.bytes,
                .room = !who.longest.block,
                .maker = who.longest.maker ? who.longest.maker : ""});
}

void ThrashNotices::made_by(const Block& block, std::string_view maker) {
  if (block.pages == 0 || !asking()) return;
  auto known = makers_.find(maker);
  if (known == makers_.end()) known = makers_.emplace(maker).first;
  made_[block.index] = {block.generation, known->c_str()};
}

const char* ThrashNotices::maker_of(const Block& block) const {
  const auto made = made_.find(block.index);
  if (made != made_.end() && made->second.generation == block.generation)
    return made->second.maker;
  return block.maker_of.load(std::memory_order_relaxed) == block.generation
             ? block.maker.load(std::memory_order_relaxed)
             : nullptr;
}

ThrashNotices::Notice ThrashNotices::look(uint64_t begin_ns, uint64_t end_ns, const Wait& wait,
                                          const Figures& figures) {
  if (asking()) {
    const uint64_t room = wait.block ? 0 : wait.bytes;
    working_bytes_ = std::max(working_bytes_, figures.working_bytes(since_) + room);
    if (!figures.observed)  // no front end reports more
      waiters_.add("", "", 1, wait.ns,
                   {.longest_ns = wait.ns, .bytes = wait.bytes, .room = !wait.block,
                    .maker = wait.maker ? wait.maker : ""});
  }
  switch (thrash_.waited(begin_ns, end_ns, figures.totals)) {
    case Thrash::Step::none: break;
    case Thrash::Step::storm: return {storm_words(figures), std::nullopt};
    case Thrash::Step::thrash: return {thrash_words(figures), false};
    case Thrash::Step::over: return {"", false};
    case Thrash::Step::ask:
      since_ = figures.tick;
      working_bytes_ = 0;
      waiters_.clear();
      made_.clear();
      return {"", true};
  }
  return {};
}

std::string ThrashNotices::storm_words(const Figures& figures) const {
  const Thrash::Stretch stretch = thrash_.stretch(figures.totals);
  return fmt::format(
      "fault storm: the program spent {:.0f} % of the last {:.1f} s waiting for memory ({} blocks, "
      "{} came back; the budget is {}). firn top shows who waits; a larger firn_budget helps",
      100 * stretch.part, stretch.seconds, stretch.faults, about(stretch.arrived_bytes),
      format_size(figures.budget_bytes));
}

std::string ThrashNotices::thrash_words(const Figures& figures) const {
  const Thrash::Stretch stretch = thrash_.stretch(figures.totals);
  std::string text = fmt::format(
      "thrash: the program spent {:.0f} % of the last {:.1f} s waiting for memory that left and "
      "came back again and again ({}, {:.1f} times all allocated memory)",
      100 * stretch.part, stretch.seconds, about(stretch.arrived_bytes), stretch.rounds);
  if (const auto* first = waiters_.first()) {
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
  return text + ". " + enough_words(figures);
}

std::string ThrashNotices::enough_words(const Figures& figures) const {
  const uint64_t budget = figures.budget_bytes;
  const uint64_t enough = (working_bytes_ + granule_bytes - 1) / granule_bytes * granule_bytes;
  if (enough <= budget)
    return fmt::format("The working set of {} fits in the budget of {}: Firn found no firn_budget "
                       "that would stop the thrashing",
                       format_size(enough), format_size(budget));
  std::string text =
      fmt::format("The working set is {}; firn_budget:{}MiB would stop the thrashing (the budget "
                  "is {} now)",
                  about(enough), enough / mib, format_size(budget));
  const std::optional<uint64_t> device_bytes = figures.device_bytes();
  if (device_bytes && enough > *device_bytes)
    text += fmt::format("; the device has only {}: use a smaller batch or recomputation",
                        about(*device_bytes));
  return text;
}

}  // namespace firn
