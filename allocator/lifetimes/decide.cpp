#include "allocator/lifetimes/decide.h"

#include <algorithm>
#include <queue>
#include <utility>

namespace firn::lifetimes {

namespace {

/// Future memory use: `kept` stays from now on; `change` sums the births and deaths since.
class Window {
 public:
  explicit Window(uint64_t capacity) : capacity_(static_cast<int64_t>(capacity)) {}
  /// Reserves room from now until its death. False: there is no room; nothing changed.
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
  uint64_t room() const {
    return static_cast<uint64_t>(std::max<int64_t>(capacity_ - kept_ - peak_, 0));
  }
  void death(uint64_t size) { change_ -= static_cast<int64_t>(size); }

 private:
  const int64_t capacity_;
  int64_t kept_ = 0, change_ = 0, peak_ = 0;
};

bool at_host(const Step& step) {
  return step.kind == Step::Kind::host_read || step.kind == Step::Kind::host_write;
}

bool uses(const Step& step) {
  return step.kind == Step::Kind::read || step.kind == Step::Kind::write;
}

/// When each item is next used or dies, and when its bytes next change or die: events from now.
/// `left`: when it is next used in host memory, for which it leaves.
struct NextTimes {
  std::vector<uint64_t> use, change, left;

  explicit NextTimes(const Situation& s)
      : use(s.items.size(), no_use), change(s.items.size(), no_use),
        left(s.items.size(), no_use) {
    for (const Step& step : s.steps) {
      if (step.kind == Step::Kind::birth) continue;
      if (at_host(step)) {
        left[step.item] = std::min(left[step.item], step.ahead);
        continue;
      }
      if (use[step.item] == no_use) use[step.item] = step.ahead;
      if (change[step.item] == no_use && step.kind != Step::Kind::read)
        change[step.item] = step.ahead;
    }
    // Unused in the rest of the period: as its part begins the next period, or as assumed.
    const std::vector<uint64_t> first_use = use, first_change = change;
    for (size_t i = 0; i < s.items.size(); ++i) {
      const uint32_t again = s.items[i].again;
      const auto later = [&](const std::vector<uint64_t>& first) {
        return again != Item::none && first[again] != no_use ? first[again] + s.period
                                                             : s.items[i].assumed;
      };
      if (use[i] == no_use) use[i] = later(first_use);
      if (change[i] == no_use) change[i] = later(first_change);
    }
  }
  /// Until then a copy that is made now covers it.
  uint64_t covered_until(uint32_t i) const { return std::min(change[i], left[i]); }
};

/// Pages of the item that are away, or can leave without a write.
uint64_t covering(const Item& item) { return item.size - (item.on_device - item.clean); }

/// The peak, and the shortage beyond what is covered already.
class Cover {
 public:
  explicit Cover(const Situation& s) {
    int64_t alive = 0, covered = 0;
    const auto capacity = static_cast<int64_t>(s.capacity);
    for (const Item& item : s.items) {
      if (item.born) continue;
      alive += static_cast<int64_t>(item.size);
      covered += static_cast<int64_t>(covering(item));
    }
    peak_ = alive;
    lacks_.push_back({0, alive - covered - capacity});
    std::vector<int64_t> covers(s.items.size());  // of each item
    for (size_t i = 0; i < s.items.size(); ++i)
      if (!s.items[i].born) covers[i] = static_cast<int64_t>(covering(s.items[i]));
    for (const Step& step : s.steps) {
      const auto size = static_cast<int64_t>(s.items[step.item].size);
      if (step.kind == Step::Kind::birth) alive += size;
      if (step.kind != Step::Kind::read) {
        const int64_t covered_then = at_host(step) ? size : 0;
        covered += covered_then - std::exchange(covers[step.item], covered_then);
      }
      peak_ = std::max(peak_, alive);
      if (step.kind != Step::Kind::read) lacks_.push_back({step.ahead, alive - covered - capacity});
      if (step.kind == Step::Kind::death) alive -= size;
    }
  }
  uint64_t peak() const { return static_cast<uint64_t>(peak_); }
  /// (events from now, pages short then), wherever that changes.
  const std::vector<std::pair<uint64_t, int64_t>>& lacks() const { return lacks_; }

 private:
  int64_t peak_ = 0;
  std::vector<std::pair<uint64_t, int64_t>> lacks_;
};

/// The order in which dirty items are chosen if they cover the same.
class Order {
 public:
  Order(const Situation& s, const NextTimes& next)
      : first_(s.prefer == Prefer::used_last ? next.use : next.change),
        second_(s.prefer == Prefer::used_last ? next.change : next.use) {}
  bool operator()(uint32_t a, uint32_t b) const {
    if (first_[a] != first_[b]) return first_[a] > first_[b];
    return second_[a] != second_[b] ? second_[a] > second_[b] : a < b;
  }

 private:
  const std::vector<uint64_t>&first_, &second_;
};

/// The pages of each dirty item that cover the shortage, and `spare` beyond. Goes backwards from
/// the last instant, which only items unchanged until then can cover: so the total is minimal.
std::vector<uint64_t> choose_parts(const Situation& s, const Cover& cover, const NextTimes& next,
                                   const std::vector<uint32_t>& by_change, uint64_t spare) {
  std::vector<uint64_t> parts(s.items.size());
  const auto later = [order = Order(s, next)](uint32_t a, uint32_t b) { return order(b, a); };
  std::priority_queue<uint32_t, std::vector<uint32_t>, decltype(later)> unchanged(later);
  auto entering = by_change.begin();
  int64_t chosen = 0;
  for (auto at = cover.lacks().rbegin(); at != cover.lacks().rend(); ++at) {
    for (; entering != by_change.end() && next.covered_until(*entering) > at->first; ++entering)
      unchanged.push(*entering);
    const int64_t wanted = at->second + static_cast<int64_t>(spare);
    while (chosen < wanted && !unchanged.empty()) {
      const uint32_t i = unchanged.top();
      const uint64_t left = s.items[i].on_device - s.items[i].clean - parts[i];
      const uint64_t part = std::min(left, static_cast<uint64_t>(wanted - chosen));
      parts[i] += part;
      chosen += static_cast<int64_t>(part);
      if (part == left) unchanged.pop();
    }
  }
  return parts;
}

void choose_leaving(const Situation& s, const Cover& cover, const NextTimes& next,
                    Decision& decision) {
  std::vector<uint32_t> dirty;
  for (uint32_t i = 0; i < s.items.size(); ++i)
    if (s.items[i].on_device > s.items[i].clean) dirty.push_back(i);
  // A fetched block is on the device a little before and after its use: the spare part makes up for
  // that, once the shortage is covered. Without a shortage nothing is fetched; with a small one,
  // little is.
  const uint64_t lacks_most = cover.peak() - std::min(cover.peak(), s.capacity);
  const uint64_t spare = std::min(s.spare, lacks_most);
  std::sort(dirty.begin(), dirty.end(),
            [&](uint32_t a, uint32_t b) {
              return next.covered_until(a) > next.covered_until(b);
            });
  const std::vector<uint64_t> needed = choose_parts(s, cover, next, dirty, 0),
                              more = choose_parts(s, cover, next, dirty, spare);
  std::sort(dirty.begin(), dirty.end(), Order(s, next));
  for (uint32_t i : dirty)
    if (needed[i] > 0) decision.leaving.push_back({i, covering(s.items[i]) + needed[i], false});
  for (uint32_t i : dirty)
    if (more[i] > needed[i]) decision.leaving.push_back({i, covering(s.items[i]) + more[i], true});
}

void look_through_window(const Situation& s, Decision& decision) {
  std::vector<bool> kept(s.items.size()), at_host_last(s.items.size());
  Window window(s.capacity);
  decision.lacking = 0;
  for (const Item& item : s.items)  // dirty pages stay: they cannot leave at once
    if (!window.keep(item.on_device - item.clean)) return;
  for (const Step& step : s.steps) {
    const Item& item = s.items[step.item];
    bool room = true;
    if (step.kind == Step::Kind::birth) {
      room = window.birth(item.size);
      kept[step.item] = true;
    } else if (at_host_last[step.item]) {  // it is away, and is not fetched before
      if (at_host(step)) continue;
      at_host_last[step.item] = false;
      if (uses(step)) room = window.birth(item.size);
      kept[step.item] = true;
    } else if (at_host(step) && kept[step.item]) {
      window.death(item.size);
      kept[step.item] = false;
      at_host_last[step.item] = true;
    } else if (!kept[step.item]) {
      const bool use = uses(step);  // one that dies unused is there until then
      const uint64_t left = window.room();
      room = window.keep(use ? covering(item) : item.clean);
      const uint64_t away = item.size - item.on_device, part = left - std::min(left, item.clean);
      if (use && away > 0 && (room || part > 0)) {  // as much of it as there is room for
        decision.fetch.push_back(step.item);
        decision.last_pages = item.on_device + std::min(away, part);
      }
      at_host_last[step.item] = at_host(step);
      if (use)
        kept[step.item] = true;
      else
        window.death(item.on_device);
    } else if (step.kind == Step::Kind::death) {
      window.death(item.size);
    }
    if (!room) {
      decision.lacking = step.ahead;
      return;
    }
    decision.window = step.ahead;
  }
  decision.lacking = no_use;
}

}  // namespace

Decision decide(const Situation& situation) {
  Decision decision;
  NextTimes next(situation);
  const Cover cover(situation);
  decision.peak = cover.peak();
  look_through_window(situation, decision);
  for (uint32_t i = 0; i < situation.items.size(); ++i)
    if (situation.items[i].on_device > 0) decision.farthest.push_back(i);
  std::sort(decision.farthest.begin(), decision.farthest.end(), [&](uint32_t a, uint32_t b) {
    return next.use[a] != next.use[b] ? next.use[a] > next.use[b] : a < b;
  });
  choose_leaving(situation, cover, next, decision);
  decision.next_use = std::move(next.use);
  decision.next_change = std::move(next.change);
  return decision;
}

uint64_t pages_to_clean(const Decision& decision, std::span<const Item> items) {
  uint64_t pages = 0;
  for (const Decision::Leaving& leaving : decision.leaving) {
    const Item& item = items[leaving.item];
    const uint64_t covered = item.size - item.on_device + item.clean;
    pages += leaving.pages - std::min(leaving.pages, covered);
  }
  return pages;
}

}  // namespace firn::lifetimes
