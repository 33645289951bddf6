#include "allocator/lifetimes/decide.h"

#include <algorithm>

namespace firn::lifetimes {

namespace {

/// Memory as it will be: `kept` is there from now on, `change` is by what is born and dies since.
class Window {
 public:
  explicit Window(uint64_t capacity) : capacity_(static_cast<int64_t>(capacity)) {}
  /// From now on, until it dies. False: there is no room for it, and nothing was changed.
  bool keep(uint64_t size) {
    if (kept_ + static_cast<int64_t>(size) + peak_ > capacity_) return false;
    kept_ += static_cast<int64_t>(size);
    return true;
  }
  bool birth(uint64_t size) {
    change_ += static_cast<int64_t>(size);
    peak_ = std::max(peak_, change_);
    return kept_ + peak_ <= capacity_;
  }
  void death(uint64_t size) { change_ -= static_cast<int64_t>(size); }

 private:
  const int64_t capacity_;
  int64_t kept_ = 0, change_ = 0, peak_ = 0;
};

/// When an item is used next, or dies.
struct Uses {
  std::vector<uint64_t> after;  // by step: after it
  std::vector<uint64_t> first;  // by item: from now
};

Uses uses_of(const Situation& s) {
  Uses uses{std::vector<uint64_t>(s.steps.size(), no_use),
            std::vector<uint64_t>(s.items.size(), no_use)};
  for (size_t i = s.steps.size(); i-- > 0;)  // first uses, for what comes around
    if (s.steps[i].kind == Step::Kind::use) uses.first[s.steps[i].item] = s.steps[i].ahead;
  std::vector<uint64_t> next(s.items.size());
  for (size_t i = 0; i < s.items.size(); ++i) {
    next[i] = s.items[i].assumed;
    if (uint32_t again = s.items[i].again; again != Item::none && uses.first[again] != no_use)
      next[i] = uses.first[again] + s.period;
  }
  for (size_t i = s.steps.size(); i-- > 0;) {
    const Step& step = s.steps[i];
    uses.after[i] = next[step.item];
    // Until its death a block is kept like one that is used then: a write would be for nothing.
    if (step.kind != Step::Kind::birth) next[step.item] = step.ahead;
  }
  uses.first = std::move(next);
  return uses;
}

/// What of the item leaves without a write, or has left.
uint64_t covering(const Item& item) { return item.size - (item.on_device - item.clean); }

/// The peak, and what has to be covered beyond what is covered already.
class Cover {
 public:
  explicit Cover(const Situation& s) {
    int64_t alive = 0, covered = 0;
    for (const Item& item : s.items) {
      if (item.born) continue;
      alive += static_cast<int64_t>(item.size);
      covered += static_cast<int64_t>(covering(item));
    }
    peak_ = alive;
    const auto capacity = static_cast<int64_t>(s.capacity);
    short_.push_back({0, alive - covered - capacity});
    std::vector<bool> seen(s.items.size());
    for (const Step& step : s.steps) {
      const Item& item = s.items[step.item];
      const auto size = static_cast<int64_t>(item.size);
      if (step.kind == Step::Kind::birth) alive += size;
      if (!seen[step.item] && !item.born) covered -= static_cast<int64_t>(covering(item));
      seen[step.item] = true;
      peak_ = std::max(peak_, alive);
      if (int64_t lacks = alive - covered - capacity; lacks > short_.back().second)
        short_.push_back({step.ahead, lacks});
      if (step.kind == Step::Kind::death) alive -= size;
    }
  }
  uint64_t peak() const { return static_cast<uint64_t>(peak_); }
  /// What lacks at most at any instant before `ahead`.
  int64_t before(uint64_t ahead) const {
    auto after = std::partition_point(short_.begin(), short_.end(),
                                      [&](const auto& at) { return at.first < ahead; });
    return after == short_.begin() ? 0 : std::prev(after)->second;
  }

 private:
  int64_t peak_ = 0;
  std::vector<std::pair<uint64_t, int64_t>> short_;  // (events from now, the most until then)
};

/// Every block chosen covers all instants before the next use of those chosen after it.
void choose_leaving(const Situation& s, const Cover& cover, Decision& decision) {
  int64_t chosen = 0;
  for (uint32_t i : decision.farthest) {
    const Item& item = s.items[i];
    const uint64_t dirty = item.on_device - item.clean;
    const int64_t lacks = cover.before(decision.next_use[i]) - chosen;
    if (lacks <= 0 || dirty == 0) continue;
    const uint64_t part = std::min(dirty, static_cast<uint64_t>(lacks));
    decision.leaving.push_back({i, covering(item) + part});
    chosen += static_cast<int64_t>(part);
  }
}

void look_through_window(const Situation& s, Decision& decision) {
  enum : uint8_t { unseen, kept, gone };
  std::vector<uint8_t> seen(s.items.size(), unseen);
  Window window(s.capacity);
  for (const Item& item : s.items)  // what cannot leave at once stays
    if (!window.keep(item.on_device - item.clean)) return;
  for (const Step& step : s.steps) {
    const Item& item = s.items[step.item];
    bool room = true;
    if (step.kind == Step::Kind::birth) {
      room = window.birth(item.size);
      seen[step.item] = kept;
    } else if (seen[step.item] == unseen) {
      const bool use = step.kind == Step::Kind::use;  // one that dies unused is there until then
      room = window.keep(use ? covering(item) : item.clean);
      if (room && use && item.on_device < item.size) decision.fetch.push_back(step.item);
      if (use)
        seen[step.item] = kept;
      else
        window.death(item.on_device);
    } else if (step.kind == Step::Kind::death) {
      window.death(item.size);
    }
    if (!room) break;
    decision.window = step.ahead;
  }
}

}  // namespace

Decision decide(const Situation& situation) {
  Decision decision;
  Uses uses = uses_of(situation);
  const Cover cover(situation);
  decision.peak = cover.peak();
  look_through_window(situation, decision);
  decision.next_use = std::move(uses.first);
  for (uint32_t i = 0; i < situation.items.size(); ++i)
    if (situation.items[i].on_device > 0) decision.farthest.push_back(i);
  std::sort(decision.farthest.begin(), decision.farthest.end(), [&](uint32_t a, uint32_t b) {
    const uint64_t at_a = decision.next_use[a], at_b = decision.next_use[b];
    return at_a != at_b ? at_a > at_b : a < b;
  });
  choose_leaving(situation, cover, decision);
  return decision;
}

}  // namespace firn::lifetimes
