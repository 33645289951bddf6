#include "allocator/simulate/greedy_plan.h"

#include <algorithm>
#include <optional>
#include <queue>

namespace firn::simulate {

using lifetimes::no_use;

namespace {

using Tier = Migration::Tier;
using Slot = GreedyPlan::Slot;

constexpr uint64_t slots_most = 4096;
constexpr double crumb = 1e-6;  // pages that rounding leaves over

/// A part of a transfer; its slot may lie beyond the period's end.
struct Booked {
  int64_t slot;
  double pages;
};

/// The bandwidth that a migration would take, and its worth.
struct Offer {
  std::vector<Booked> writes, reads;  // both in the order in which they were filled
  double worth = 0;                   // area above the capacity taken off, by size
};

class Planner {
 public:
  explicit Planner(const GreedyInput& input) : in_(input) {
    cut_slots();
    lay_out_memory();
    find_gaps();
  }
  GreedyPlan plan() {
    choose();
    for (uint32_t i : by_read_begin()) read_earlier(i);
    return std::move(plan_);
  }

 private:
  void cut_slots();
  void lay_out_memory();
  void find_gaps();
  void add_gap(uint32_t item, int64_t last, uint32_t reader, int64_t next);
  void choose();
  std::optional<Offer> offer(const Migration& m) const;
  void book(Migration& m, Offer offer);
  std::vector<uint32_t> by_read_begin() const;
  void read_earlier(uint32_t index);

  int64_t count() const { return static_cast<int64_t>(plan_.slots.size()); }
  size_t round(int64_t slot) const { return static_cast<size_t>(slot % count()); }
  Slot& at(int64_t slot) { return plan_.slots[round(slot)]; }
  const Slot& at(int64_t slot) const { return plan_.slots[round(slot)]; }
  static double ns(const Slot& slot) { return static_cast<double>(slot.end_ns - slot.begin_ns); }
  double free_to_write(const Slot& slot, Tier to) const {
    const double link = in_.link_out * 1e-9 * ns(slot) - slot.link_out;
    if (to == Tier::host) return std::max(0.0, link);
    return std::max(0.0, std::min(link, in_.store_write * 1e-9 * ns(slot) - slot.store_write));
  }
  double free_to_read(const Slot& slot, Tier from) const {
    const double link = in_.link_in * 1e-9 * ns(slot) - slot.link_in;
    if (from == Tier::host) return std::max(0.0, link);
    return std::max(0.0, std::min(link, in_.store_read * 1e-9 * ns(slot) - slot.store_read));
  }
  static void book_read(Slot& slot, Tier from, double pages) {
    slot.link_in += pages;
    if (from == Tier::store) slot.store_read += pages;
  }
  double over(const Slot& slot) const {
    return static_cast<double>(slot.planned - static_cast<int64_t>(in_.capacity));
  }

  const GreedyInput& in_;
  GreedyPlan plan_;
  std::vector<int64_t> slot_of_;          // by step
  std::vector<uint64_t> ahead_;           // by slot: the event it begins with
  std::vector<Migration> gaps_;
  std::vector<std::vector<Booked>> reads_;  // by migration
};

void Planner::cut_slots() {
  const uint64_t least_ns = std::max<uint64_t>(in_.period_ns / slots_most, 1);
  plan_.slots.push_back({});
  ahead_.push_back(0);
  slot_of_.reserve(in_.steps.size());
  for (size_t i = 0; i < in_.steps.size(); ++i) {
    const uint64_t at_ns = in_.step_ns[i];
    if (at_ns >= plan_.slots.back().begin_ns + least_ns) {
      plan_.slots.back().end_ns = at_ns;
      Slot slot;
      slot.begin_ns = at_ns;
      plan_.slots.push_back(slot);
      ahead_.push_back(in_.steps[i].ahead);
    }
    slot_of_.push_back(count() - 1);
  }
  plan_.slots.back().end_ns = std::max(in_.period_ns, plan_.slots.back().begin_ns);
}

void Planner::lay_out_memory() {
  std::vector<int64_t> from(in_.items.size(), 0), to(in_.items.size(), count() - 1);
  std::vector<bool> seen(in_.items.size());
  for (size_t s = 0; s < in_.steps.size(); ++s) {
    const Step& step = in_.steps[s];
    seen[step.item] = true;
    if (step.kind == Step::Kind::birth) from[step.item] = slot_of_[s];
    if (step.kind == Step::Kind::death) to[step.item] = slot_of_[s];
  }
  std::vector<int64_t> change(plan_.slots.size() + 1);
  for (size_t i = 0; i < in_.items.size(); ++i) {
    if (!seen[i]) continue;  // no step uses it: it leaves once, by age, and stays away
    change[static_cast<size_t>(from[i])] += static_cast<int64_t>(in_.items[i].size);
    change[static_cast<size_t>(to[i]) + 1] -= static_cast<int64_t>(in_.items[i].size);
  }
  int64_t there = 0;
  for (size_t s = 0; s < plan_.slots.size(); ++s) {
    there += change[s];
    plan_.slots[s].needed = plan_.slots[s].planned = there;
  }
}

void Planner::add_gap(uint32_t item, int64_t last, uint32_t reader, int64_t next) {
  if (next - last < 3 || in_.items[item].size == 0) return;  // no time to leave and come back
  Migration m;
  m.item = item;
  m.reader = reader;
  m.size = in_.items[item].size;
  m.last = last;
  m.next = next;
  gaps_.push_back(m);
}

void Planner::find_gaps() {
  constexpr int64_t none = -1;
  std::vector<int64_t> first(in_.items.size(), none), last(in_.items.size(), none);
  std::vector<bool> dead(in_.items.size()), follows(in_.items.size());
  for (size_t s = 0; s < in_.steps.size(); ++s) {
    const uint32_t item = in_.steps[s].item;
    if (in_.steps[s].kind == Step::Kind::death) {
      dead[item] = true;
      continue;
    }
    if (first[item] == none)
      first[item] = slot_of_[s];
    else
      add_gap(item, last[item], item, slot_of_[s]);
    last[item] = slot_of_[s];
  }
  for (uint32_t i = 0; i < in_.items.size(); ++i) {
    const uint32_t again = in_.items[i].again;
    if (dead[i] || last[i] == none || again == Item::none || first[again] == none) continue;
    follows[again] = true;
    add_gap(i, last[i], again, first[again] + count());
  }
  // There already, and used again, though not in every period.
  for (uint32_t i = 0; i < in_.items.size(); ++i)
    if (!in_.items[i].born && !follows[i] && first[i] != none) add_gap(i, -1, i, first[i]);
}

/// nullopt: it cannot leave and return in time, or leaving would not help.
std::optional<Offer> Planner::offer(const Migration& m) const {
  Offer offer;
  double left = static_cast<double>(m.size);
  int64_t written = m.last + 1;
  for (;; ++written) {
    if (written >= m.next) return std::nullopt;
    const double part = std::min(left, free_to_write(at(written), m.to));
    if (part > 0) offer.writes.push_back({written, part});
    if ((left -= part) <= crumb) break;
  }
  left = static_cast<double>(m.size);
  int64_t read = m.next - 1;
  for (;; --read) {
    if (read <= written) return std::nullopt;
    const double part = std::min(left, free_to_read(at(read), m.to));
    if (part > 0) offer.reads.push_back({read, part});
    if ((left -= part) <= crumb) break;
  }
  if (m.to == Tier::host)
    for (int64_t slot = offer.writes.front().slot; slot <= offer.reads.front().slot; ++slot)
      if (at(slot).host + static_cast<int64_t>(m.size) >
          static_cast<int64_t>(in_.host_capacity))
        return std::nullopt;
  const auto size = static_cast<double>(m.size);
  for (int64_t slot = written + 1; slot < read; ++slot)
    if (const double above = over(at(slot)); above > 0)
      offer.worth += std::min(above, size) * ns(at(slot));
  if (offer.worth <= 0) return std::nullopt;
  offer.worth /= size;
  return offer;
}

void Planner::book(Migration& m, Offer offer) {
  for (const Booked& part : offer.writes) {
    at(part.slot).link_out += part.pages;
    if (m.to == Tier::store) at(part.slot).store_write += part.pages;
  }
  for (const Booked& part : offer.reads) book_read(at(part.slot), m.to, part.pages);
  m.write_begin = offer.writes.front().slot;
  m.write_end = offer.writes.back().slot;
  m.read_begin = offer.reads.back().slot;
  m.read_end = offer.reads.front().slot;
  const auto size = static_cast<int64_t>(m.size);
  for (int64_t slot = m.write_end + 1; slot < m.read_begin; ++slot) at(slot).planned -= size;
  if (m.to == Tier::host)
    for (int64_t slot = m.write_begin; slot <= m.read_end; ++slot) at(slot).host += size;
  plan_.migrations.push_back(m);
  reads_.push_back(std::move(offer.reads));
}

/// A migration's worth only falls as others are booked: if a recomputed worth is still the highest,
/// it is the best of all.
void Planner::choose() {
  struct Candidate {
    double worth;
    uint32_t gap;
    bool operator<(const Candidate& other) const {
      return worth != other.worth ? worth < other.worth : gap > other.gap;
    }
  };
  // To the store, or else to host memory, or not at all.
  const auto look = [&](Migration& m) {
    std::optional<Offer> found;
    if (m.to == Tier::store && in_.store_write > 0 && in_.store_read > 0) found = offer(m);
    if (found || in_.host_capacity == 0) return found;
    m.to = Tier::host;
    return offer(m);
  };
  std::priority_queue<Candidate> queue;
  std::vector<double> above{0};  // sums over slots, twice around
  for (int64_t slot = 0; slot < 2 * count(); ++slot)
    above.push_back(above.back() + std::max(0.0, over(at(slot))));
  for (uint32_t i = 0; i < gaps_.size(); ++i) {
    Migration& m = gaps_[i];
    if (above[static_cast<size_t>(m.next)] <= above[static_cast<size_t>(m.last + 1)]) continue;
    if (std::optional<Offer> found = look(m)) queue.push({found->worth, i});
  }
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    std::optional<Offer> found = look(gaps_[best.gap]);
    if (!found) continue;
    const Candidate now{found->worth, best.gap};
    if (!queue.empty() && now < queue.top())
      queue.push(now);
    else
      book(gaps_[best.gap], std::move(*found));
  }
  for (Migration& m : plan_.migrations) m.write_ahead = ahead_[round(m.write_begin)];
}

std::vector<uint32_t> Planner::by_read_begin() const {
  std::vector<uint32_t> order(plan_.migrations.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return round(plan_.migrations[a].read_begin) < round(plan_.migrations[b].read_begin);
  });
  return order;
}

void Planner::read_earlier(uint32_t index) {
  Migration& m = plan_.migrations[index];
  const auto size = static_cast<int64_t>(m.size);
  int64_t begin = m.read_begin;
  while (begin - 1 > m.write_end &&
         at(begin - 1).planned + size <= static_cast<int64_t>(in_.capacity))
    --begin;
  if (begin < m.read_begin) {
    std::vector<Booked>& reads = reads_[index];
    for (const Booked& part : reads) book_read(at(part.slot), m.to, -part.pages);
    reads.clear();
    double left = static_cast<double>(m.size);
    // Its earlier booking is free now, so there is enough.
    for (int64_t slot = begin; left > crumb && slot < m.next; ++slot) {
      const double part = std::min(left, free_to_read(at(slot), m.to));
      if (part <= 0) continue;
      book_read(at(slot), m.to, part);
      reads.push_back({slot, part});
      left -= part;
    }
    for (int64_t slot = reads.front().slot; slot < m.read_begin; ++slot) at(slot).planned += size;
    m.read_begin = reads.front().slot;
    m.read_end = reads.back().slot;
  }
  m.wraps = m.read_begin >= count();
  m.read_ahead = ahead_[round(m.read_begin)];
}

}  // namespace

GreedyPlan plan_greedy(const GreedyInput& input) { return Planner(input).plan(); }

}  // namespace firn::simulate
