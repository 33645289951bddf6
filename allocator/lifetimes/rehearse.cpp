#include "allocator/lifetimes/rehearse.h"

#include <algorithm>
#include <cmath>

#include "allocator/lifetimes/stage.h"
#include "firn/check.h"

namespace firn::lifetimes {

uint64_t RehearsalMachine::ns(Channel channel, uint64_t pages) const {
  const double bytes = static_cast<double>(pages * page_bytes);
  const auto ns = std::llround(bytes * 1e9 / bytes_s[static_cast<unsigned>(channel)]);
  return static_cast<uint64_t>(std::max<long long>(ns, 1));
}

namespace {

/// A rehearsal under way: the program's steps, the blocks that play its items now, and what is
/// decided for them.
class RehearsalRun {
 public:
  RehearsalRun(const Rehearsal& rehearsal, Rehearsed& result, RehearsalObserver* observer);
  bool run();

 private:
  static constexpr uint32_t nobody = Stage::nobody;
  static constexpr uint64_t waits_most = 1'000'000;  // transfers for one step: more never end
  bool period();
  bool step(const Step& step);
  void compute(uint64_t ns);
  bool wait_for(uint32_t block);
  void turn_over();
  void find_next_uses();
  void lay_out();
  void decide_anew();
  void decide_for_host(uint64_t capacity, uint64_t spare, uint64_t to_clean);

  const Rehearsal& r_;
  Rehearsed& result_;
  Stage stage_;
  const uint64_t patience_;        // steps between two decisions
  std::vector<uint32_t> block_of_;  // of each item, now
  std::vector<uint64_t> until_next_;  // of each step: steps until the same bytes' next, or no_use
  uint64_t number_ = 0;            // of the last step, over all periods
  size_t at_ = 0;                  // the next step of the period
  bool last_ = false;              // period, and nothing comes after it
  uint64_t decided_at_ = no_use;
  uint64_t computed_ns_ = 0;
  // decide()'s input, kept between calls for speed.
  std::vector<Item> items_;
  std::vector<Step> steps_;
  std::vector<uint32_t> blocks_;  // of the first of items_
  std::vector<Named<uint32_t>> names_;  // of those
  std::vector<uint32_t> now_, then_, first_;
  uint64_t immovable_ = 0;
};

RehearsalRun::RehearsalRun(const Rehearsal& rehearsal, Rehearsed& result,
                           RehearsalObserver* observer)
    : r_(rehearsal),
      result_(result),
      stage_(rehearsal.machine, rehearsal.tuning, result, observer),
      patience_(std::max<uint64_t>(rehearsal.steps.size() / std::max(rehearsal.decisions, 1u), 1)),
      block_of_(rehearsal.items.size(), nobody) {
  find_next_uses();
  for (uint32_t i = 0; i < r_.items.size(); ++i) {
    const Item& item = r_.items[i];
    if (item.born) continue;
    block_of_[i] = stage_.make(item.size);
    const uint64_t in_store = r_.in_store.empty() ? 0 : r_.in_store[i];
    stage_.start_with(block_of_[i], item.on_device, item.clean, in_store);
  }
}

void RehearsalRun::find_next_uses() {
  const size_t n = r_.steps.size();
  std::vector<uint64_t> next(r_.items.size(), no_use);
  for (size_t i = n; i-- > 0;)
    if (r_.steps[i].kind != Step::Kind::birth) next[r_.steps[i].item] = i;
  // Beyond the period: the first use of the part that it plays then.
  const std::vector<uint64_t> first = next;
  for (size_t i = 0; i < next.size(); ++i) {
    const uint32_t again = r_.items[i].again;
    next[i] = again != Item::none && first[again] != no_use ? first[again] + n : no_use;
  }
  until_next_.resize(n);
  for (size_t i = n; i-- > 0;) {
    uint64_t& at = next[r_.steps[i].item];
    until_next_[i] = at == no_use ? no_use : at - i;
    at = i;
  }
}

bool RehearsalRun::run() {
  for (unsigned p = 0; p < r_.periods; ++p) {
    last_ = r_.ends && p + 1 == r_.periods;
    const uint64_t begin = stage_.now();
    if (!period()) return false;
    result_.last_ns = stage_.now() - begin;
    if (p == 0) result_.first_ns = result_.last_ns;
  }
  result_.total_ns = stage_.now();
  result_.stall_ns = stage_.now() - computed_ns_;
  return true;
}

bool RehearsalRun::period() {
  for (at_ = 0; at_ < r_.steps.size();) {
    if (r_.before_ns[at_] > 0) compute(r_.before_ns[at_]);
    const Step& step = r_.steps[at_++];
    stage_.step = ++number_;
    if (!this->step(step)) return false;
  }
  if (r_.after_ns > 0) compute(r_.after_ns);
  stage_.period_over();
  turn_over();
  return true;
}

/// Blocks alive at the end of the period play their parts at the start of the next.
void RehearsalRun::turn_over() {
  std::vector<uint32_t> next(block_of_.size(), nobody);
  for (uint32_t i = 0; i < block_of_.size(); ++i) {
    if (block_of_[i] == nobody) continue;
    if (r_.items[i].again != Item::none)
      next[r_.items[i].again] = block_of_[i];
    else
      stage_.kill(block_of_[i]);
  }
  block_of_.swap(next);
}

/// Runs kernels for `ns`, on the blocks used since the kernels before.
void RehearsalRun::compute(uint64_t ns) {
  if (decided_at_ == no_use || number_ >= decided_at_ + patience_) decide_anew();
  const uint64_t end = stage_.now() + ns;
  stage_.happen({.what = Happening::What::compute, .end_ns = end});
  computed_ns_ += ns;
  stage_.pump();
  while (stage_.now() < end) {
    stage_.advance(end);
    if (stage_.now() < end) stage_.pump();
  }
  stage_.let_go();  // deaths must be known before anything else begins
}

bool RehearsalRun::step(const Step& step) {
  uint32_t& block = block_of_[step.item];
  if (step.kind == Step::Kind::birth) {
    block = stage_.make(r_.items[step.item].size);
    if (!wait_for(block)) return false;
    stage_.bear(block);
  }
  if (block == nobody) return true;  // no block plays it in this period
  const uint64_t until = until_next_[at_ - 1];
  stage_[block].next_use = until == no_use ? no_use : number_ + until;
  if (step.kind == Step::Kind::birth) return true;
  if (step.kind == Step::Kind::death) {
    stage_.kill(block);
    block = nobody;
    return true;
  }
  if (!wait_for(block)) return false;
  stage_.use(block);
  if (step.kind == Step::Kind::write) stage_.change(block);
  return true;
}

bool RehearsalRun::wait_for(uint32_t block) {
  stage_.want(block, number_);
  stage_.wanted = block;
  if (decided_at_ == no_use) decide_anew();
  const auto over = [&] {
    return stage_[block].unborn ? stage_.free() >= stage_[block].size : stage_.is_there(block);
  };
  for (uint64_t rounds = 0; !over(); ++rounds) {
    stage_.pump();
    if (over()) break;
    if (rounds > waits_most || !stage_.advance(UINT64_MAX)) return false;
  }
  stage_.wanted = Stage::nobody;
  return true;
}

/// Fills items_ and steps_: the blocks there are, and the steps of one period from here.
void RehearsalRun::lay_out() {
  items_.clear();
  steps_.clear();
  blocks_.clear();
  immovable_ = stage_.draining();
  const size_t n = r_.steps.size();
  now_.assign(block_of_.size(), nobody);
  for (uint32_t i = 0; i < block_of_.size(); ++i) {
    if (block_of_[i] == nobody) continue;
    const StageBlock& block = stage_[block_of_[i]];
    if (!block.proven) {  // stays until it was used
      immovable_ += block.unborn ? 0 : block.mapped;
      continue;
    }
    now_[i] = static_cast<uint32_t>(items_.size());
    blocks_.push_back(block_of_[i]);
    items_.push_back({.size = block.size, .on_device = block.mapped, .clean = block.clean});
  }
  first_ = now_;
  const auto lay = [&](size_t from, size_t to, uint64_t ahead) {
    for (size_t i = from; i < to; ++i) {
      const Step& step = r_.steps[i];
      uint32_t& item = now_[step.item];
      ++ahead;
      if (step.kind == Step::Kind::birth) {
        item = static_cast<uint32_t>(items_.size());
        items_.push_back({.size = r_.items[step.item].size, .born = true});
      }
      if (item == nobody) continue;
      steps_.push_back({ahead, step.kind, item});
      if (step.kind == Step::Kind::death) item = nobody;
    }
  };
  lay(at_, n, 0);
  if (last_) return;
  then_.assign(block_of_.size(), nobody);
  for (uint32_t i = 0; i < now_.size(); ++i)
    if (now_[i] != nobody && r_.items[i].again != Item::none) then_[r_.items[i].again] = now_[i];
  now_.swap(then_);
  lay(0, at_, n - at_);
  for (uint32_t i = 0; i < now_.size(); ++i)
    if (now_[i] != nobody && first_[i] != nobody) items_[now_[i]].again = first_[i];
}

void RehearsalRun::decide_anew() {
  lay_out();
  const uint64_t all = r_.machine.capacity, capacity = all - std::min(all, immovable_);
  const uint64_t spare = r_.tuning.spare_part ? capacity / r_.tuning.spare_part : 0;
  const Decision decision = decide(
      {capacity, spare, r_.steps.size(), items_, steps_});
  ++result_.decided;
  decided_at_ = number_;
  stage_.plan.valid = true;
  stage_.plan.period = r_.steps.size();
  names_.clear();
  for (const uint32_t block : blocks_)
    names_.push_back({block, stage_[block].life, stage_[block].touched});
  stage_.carry_out().adopt(decision, names_, number_);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const uint64_t change = decision.next_change[i];
    stage_[blocks_[i]].next_change = change == no_use ? no_use : number_ + change;
  }
  if (r_.machine.has_store()) decide_for_host(capacity, spare, pages_to_clean(decision, items_));
}

/// One level up, as the engine does (engine/lifetimes.cpp).
void RehearsalRun::decide_for_host(uint64_t capacity, uint64_t spare, uint64_t to_clean) {
  for (size_t i = 0; i < blocks_.size(); ++i) stage_.lay_out_in_memory(blocks_[i], items_[i]);
  const uint64_t keeps = stage_.keeps(to_clean);
  const Decision decision =
      decide({capacity + keeps, spare, r_.steps.size(), items_, steps_, Prefer::written_last});
  stage_.carry_out().adopt_for_memory(decision, names_, number_, keeps);
}

}  // namespace

Rehearsed rehearse(const Rehearsal& rehearsal, RehearsalObserver* observer) {
  FIRN_CHECK(rehearsal.machine.page_bytes > 0, "a rehearsal without the size of a page");
  Rehearsed result;
  RehearsalRun run(rehearsal, result, observer);
  result.possible = run.run();
  return result;
}

}  // namespace firn::lifetimes
