#include "allocator/simulate/greedy.h"

#include <algorithm>

#include "allocator/engine/tiers.h"
#include "allocator/policy/learner.h"
#include "allocator/policy/outlook.h"
#include "allocator/simulate/greedy_plan.h"

namespace firn::simulate {

using lifetimes::Channel;

namespace {
// This part of the memory is left free, for what comes a little sooner than planned.
constexpr uint64_t spare_part = 64;
}  // namespace

Baseline::Then Greedy::learn(EngineTiers& tiers, bool happened) {
  Learner& learner = tiers.learner();
  learner.set_timing(true);
  if (!happened) return Then::decided;
  const History& history = learner.history();
  const uint64_t now = history.now();
  if (!history.known()) {
    valid_ = false;
    writes_.clear();
    reads_.clear();
    return Then::decided;
  }
  // A period that slips by some events is the same period: not planned anew at every slip.
  const bool over = now >= made_ + period_;
  const bool other = history.period() != period_ && now >= made_ + period_ / 16;
  if (!valid_ || over || other) plan(tiers);
  pull_triggers(tiers);
  return Then::decided;
}

void Greedy::plan(EngineTiers& tiers) {
  valid_ = false;
  const Learner& learner = tiers.learner();
  const History& history = learner.history();
  const uint64_t period = history.period();
  const uint64_t period_ns = history.period_ns();
  if (period_ns == 0 || period_ns == History::never) return;  // not long enough on the device yet
  Outlook& outlook = tiers.outlook();
  const std::vector<uint64_t> step_ns = outlook.step_times(history, period_ns);
  std::vector<Identity> identities(outlook.items().size());
  for (size_t i = 0; i < outlook.blocks().size(); ++i)
    if (const Life life = learner.life_of(*outlook.blocks()[i].block))
      identities[i] = history.identity(life);
  for (const Step& step : outlook.steps())
    if (step.kind == Step::Kind::birth)
      identities[step.item] = history.upcoming(step.ahead).identity;
  GreedyInput input;
  input.capacity = tiers.movable_pages();
  input.capacity -= input.capacity / spare_part;
  input.period = period;
  input.period_ns = period_ns;
  input.items = outlook.items();
  input.steps = outlook.steps();
  input.step_ns = step_ns;
  if (!tiers.host_is_passage() || !tiers.has_store()) {
    const uint64_t host = tiers.host_bytes(), staging = host / 32 + 4 * tiers.in_flight_most();
    input.host_capacity = (host - std::min(host, staging)) / page_bytes;
  }
  // A channel never measured is taken to be as fast as the link, and measured by being used.
  const auto pages_s = [&](Channel channel, double otherwise) {
    const double measured = tiers.bandwidths().bytes_s(channel) / static_cast<double>(page_bytes);
    return measured > 0 ? measured : otherwise;
  };
  constexpr double link = 16e9 / static_cast<double>(page_bytes);
  input.link_out = pages_s(Channel::host_out, pages_s(Channel::host_in, link));
  input.link_in = pages_s(Channel::host_in, input.link_out);
  if (tiers.has_store()) {
    input.store_write = pages_s(Channel::store_write, input.link_out);
    input.store_read = pages_s(Channel::store_read, input.link_in);
  }
  const GreedyPlan plan = plan_greedy(input);
  triggers_.clear();
  for (const Migration& m : plan.migrations) {
    const bool to_store = m.to == Migration::Tier::store;
    triggers_.push_back({m.write_ahead, identities[m.item], true, to_store});
    triggers_.push_back({m.read_ahead, identities[m.reader], false, to_store});
  }
  std::stable_sort(triggers_.begin(), triggers_.end(),
                   [](const auto& a, const auto& b) { return a.ahead < b.ahead; });
  next_ = 0;
  made_ = history.now();
  period_ = period;
  valid_ = true;
}

/// Collects what has come due by the events so far.
void Greedy::pull_triggers(EngineTiers& tiers) {
  const uint64_t ahead = tiers.now() - made_;
  for (; valid_ && next_ < triggers_.size(); ++next_) {
    const Trigger& trigger = triggers_[next_];
    if (trigger.ahead > ahead) break;
    Block* block = tiers.learner().player_of(trigger.identity);
    if (!block) continue;
    (trigger.write ? writes_ : reads_)
        .push_back({block, tiers.life(block), tiers.touched(block), trigger.to_store});
  }
}

bool Greedy::carry_out(EngineTiers& tiers) {
  bool any = begin_reads(tiers);
  if (!tiers.stuck()) any |= begin_writes(tiers);
  return any;
}

/// Begins writes of blocks whose uses are over: one still in use does not hold back the others.
bool Greedy::begin_writes(EngineTiers& tiers) {
  bool any = false;
  std::erase_if(writes_, [&](const Due& due) {
    Block& block = *due.block;
    if (tiers.life(&block) != due.generation || block.mapped == 0 ||
        tiers.touched(&block) != due.age)
      return true;
    const uint64_t w = block.word.load();
    if (word::state(w) != State::spilling && !tiers.may_leave(&block))
      return (w & (word::pinned | word::freed)) != 0;
    if (!tiers.unused_but_copied(&block)) {
      tiers.watch_uses(&block);
      return false;
    }
    if (due.to_store && tiers.has_store())
      to_store_.insert(&block);
    else
      to_store_.erase(&block);
    if (word::state(w) == State::spilling && block.leave) return true;  // leaves by age already
    any |= tiers.begin_leaving(&block);
    return true;
  });
  return any;
}

/// Begins reads in order, as far as there is room: the rest waits for blocks to leave.
bool Greedy::begin_reads(EngineTiers& tiers) {
  bool any = false;
  const uint64_t span = tiers.span_bytes() / page_bytes;
  // Threads that wait for room have it first.
  while (!reads_.empty() && !tiers.threads_wait()) {
    const Due& due = reads_.front();
    Block& block = *due.block;
    if (tiers.life(&block) != due.generation || !tiers.may_arrive(&block)) {
      reads_.pop_front();
      continue;
    }
    if (tiers.bytes_in() >= tiers.in_flight_most()) break;
    tiers.stop_cleaning(&block);
    const uint64_t wanted = std::min<uint64_t>(span, block.pages - block.mapped - block.coming);
    if (tiers.arrivable(&block) < wanted) tiers.reclaim_ready(&block, wanted);
    if (!tiers.fetch(&block)) break;
    any = true;
  }
  return any;
}

bool Greedy::came_out(const PieceRef& ref) {
  if (!to_store_.contains(ref.block)) return false;
  store_bound_.push_back(ref);
  return true;
}

std::optional<PieceRef> Greedy::next_write() {
  if (store_bound_.empty()) return std::nullopt;
  const PieceRef next = store_bound_.front();
  store_bound_.pop_front();
  return next;
}

std::vector<PieceRef> Greedy::give_up_writes() {
  const std::vector<PieceRef> bound(store_bound_.begin(), store_bound_.end());
  store_bound_.clear();
  return bound;
}

bool Greedy::leaves_host(const Block& block) const { return to_store_.contains(&block); }

/// Copies in host memory stay there as long as they can.
uint64_t Greedy::writes_from(const EngineTiers& tiers) const {
  if (!valid_ || tiers.host_is_passage()) return Baseline::writes_from(tiers);
  return tiers.host_bytes() - 4 * tiers.in_flight_most();
}

}  // namespace firn::simulate
