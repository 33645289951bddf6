// How much is written ahead (policy/spare_choice.h): when the engine asks, what it hands over, and
// the thread that rehearses. In the same thread: what is made again (policy/remake_choice.h).
#include <algorithm>
#include <new>

#include "allocator/base/cpu_timer.h"
#include "allocator/engine/engine_impl.h"

namespace firn {

using lifetimes::Channel;

void EngineImpl::consider_choice() {
  const bool plan_short = plan_.valid && plan_.excess > 0;
  if (!choice_.consider(*learner_, plan_short, clock_.now_ns())) return;
  const bool taken = take_stock();
  choice_.end(*learner_, taken);
  if (taken) ponder_due_.store(true, std::memory_order_release);
}

/// The machine as it was measured; none: not yet.
std::optional<lifetimes::RehearsalMachine> EngineImpl::machine() const {
  lifetimes::RehearsalMachine machine;
  for (size_t i = 0; i < lifetimes::channel_count; ++i) {
    const auto channel = static_cast<Channel>(i);
    const bool link = channel == Channel::host_out || channel == Channel::host_in;
    machine.bytes_s[i] = store_ || link ? transfers_.bandwidths().bytes_s(channel) : 0;
    const bool needed = link || (store_ && (host_is_passage() || !plan_.writes.empty()));
    if (needed && machine.bytes_s[i] <= 0) return std::nullopt;
  }
  machine.capacity = movable_capacity();
  machine.budget = frames_.budget_granules() * granule_pages;
  machine.host = host_.budget() / page_bytes;
  machine.page_bytes = page_bytes;
  machine.piece = std::max<uint64_t>(options_.piece_bytes / page_bytes, 1);
  machine.span = span_granules_ * granule_pages;
  return machine;
}

/// Collects what is to be rehearsed. False: the machine is not measured yet.
bool EngineImpl::take_stock() {
  const std::optional<lifetimes::RehearsalMachine> machine = this->machine();
  if (!machine) return false;
  lay_out_period(outlook_);
  std::vector<uint64_t> in_store(outlook_.items().size());
  for (size_t i = 0; i < outlook_.blocks().size(); ++i) {
    const Block& block = *outlook_.blocks()[i].block;
    uint64_t only = 0;
    for (const Piece& piece : block.pieces)
      if (piece.slot_valid && !piece.host && !block.span_of(piece).mapped()) only += piece.bytes;
    in_store[i] = only / page_bytes;
  }
  choice_.take(outlook_, learner_->history(), *machine, std::move(in_store));
  return true;
}

bool EngineImpl::ponder() {
  if (!ponder_due_.exchange(false, std::memory_order_acquire)) return false;
  bool any = ponder_choice();
  any |= ponder_places();
  any |= ponder_remake();
  return any;
}

bool EngineImpl::ponder_choice() {
  std::optional<Stock> stock;
  {
    Lock lock(mutex_);
    stock = choice_.due();
  }
  if (!stock) return false;
  uint64_t cpu_ns = 0;
  SpareChoice::Best best;
  {
    CpuTimer timer(cpu_ns);
    best = choice_.best_of(*stock);
  }
  Lock lock(mutex_);
  counted_.plan_ns += cpu_ns;
  choice_.choose(best);
  return true;
}

bool EngineImpl::ask_what_to_remake(lifetimes::Operators operators, uint64_t iteration_ns,
                                    std::function<void(RemakeChoice)> answer) {
  Lock lock(mutex_);
  const std::optional<lifetimes::RehearsalMachine> measured = machine();
  if (!learner_ || !measured) return false;
  remake_question_ = {std::move(operators), *measured, iteration_ns, std::move(answer)};
  ponder_due_.store(true, std::memory_order_release);
  return true;
}

bool EngineImpl::ponder_remake() {
  std::optional<RemakeQuestion> question;
  {
    Lock lock(mutex_);
    question = std::exchange(remake_question_, {});
  }
  if (!question) return false;
  uint64_t cpu_ns = 0;
  {
    CpuTimer timer(cpu_ns);
    RemakeChoice choice;
    try {
      choice = firn::choose_remake(question->operators, question->machine, 0,
                                   static_cast<double>(question->iteration_ns));
    } catch (const std::bad_alloc&) {  // nothing is made again, then
    }
    question->answer(std::move(choice));
  }
  Lock lock(mutex_);
  counted_.plan_ns += cpu_ns;
  return true;
}

}  // namespace firn
