#include "pytorch_plugin/recipes/remaking.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/runtime/runtime.h"
#include "pytorch_plugin/observer.h"
#include "pytorch_plugin/pools.h"
#include "pytorch_plugin/recipes/choice.h"
#include "pytorch_plugin/recipes/each_storage.h"
#include "pytorch_plugin/recipes/given.h"
#include "pytorch_plugin/recipes/operator_events.h"
#include "pytorch_plugin/recipes/operator_log.h"
#include "pytorch_plugin/recipes/proof.h"
#include "pytorch_plugin/recipes/trial.h"
#include "pytorch_plugin/recipes/turn.h"
#include "pytorch_plugin/recipes/writes.h"
#include "pytorch_plugin/stalls.h"

namespace firn::pytorch {

namespace {

constexpr uint64_t look_every = 256;  // operators, while nothing is known
constexpr uint64_t failed_rest = 64;  // iterations, behind a choice that was slower than moving
std::atomic<int> logs{0};             // devices whose operators are being logged

class Remaking {
 public:
  explicit Remaking(int device) : device_(device) {}

  struct Here {  // of the operator that a thread is running
    Remaking* remaking = nullptr;
    Engine* engine = nullptr;
    int device = 0;
    const at::RecordFunction* record = nullptr;
    uint32_t place = Choice::none;
    bool logged = false;
    uint64_t epoch = 0;       // then
    size_t logged_at = 0;     // in the log
    uint64_t stalled_ns = 0;  // of this thread, when it began
    uint64_t ended_stalled_ns = 0;  // and when the last one that was logged ended
    std::vector<const void*> leaving, outliving;  // blocks, when the operator is left
  };
  bool begin(Engine& engine, const OperatorInfo& info, const at::RecordFunction& record);
  void end(Here& here, const at::RecordFunction& record, const Recipe* recipe);
  void freed(const void* base);

  static Here& here() {
    static thread_local Here mine;
    return mine;
  }

 private:
  enum class Proved : uint8_t { not_yet, equal, differs };
  enum class Phase : uint8_t { idle, logging, timing, asking, following };

  void look(Engine& engine);
  void log(const OperatorInfo& info, const at::RecordFunction& record);
  void finish_log();
  void time(Engine& engine);
  void ask(Engine& engine, uint64_t iteration_ns);
  void answered(std::shared_ptr<Choice> choice);
  uint32_t follow(Engine& engine, uint64_t signature);
  void compare_iterations(Engine& engine);
  void tell(Engine& engine) const;
  bool is_proved(uint32_t slot, const Recipe& recipe, size_t result_at);
  void rest(uint64_t operators);
  void rest_longer();
  void forget_log();

  const int device_;
  std::atomic<bool> busy_{false};
  std::atomic<bool> broken_{false};    // an operator is not in the log
  // Whoever has the flag has what follows.
  Phase phase_ = Phase::idle;
  uint64_t epoch_ = 0;  // of logs and choices
  uint64_t until_look_ = look_every, rest_ = look_every;
  OperatorLog log_;
  OperatorEvents events_{device_};     // around each logged operator
  uint64_t period_events_ = 0, log_end_ = 0;
  OperatorLog::Period period_;
  size_t since_log_ = 0;               // operators since the log's end
  std::shared_ptr<Choice> choice_;
  RemakeTrial trial_;
  std::optional<std::chrono::steady_clock::time_point> began_;  // the iteration, if it is whole
  // By slot: the block, and its writes; of `outstanding_`, until the slot's next one.
  std::vector<std::pair<const void*, Writes::Count>> given_, outstanding_;
  std::vector<Proved> proved_;         // by slot
  bool synced_ = false;
  uint32_t place_ = 0;                 // of the next operator
  uint64_t unsynced_ = 0;              // operators since it was lost
  std::array<uint64_t, Choice::row> last_{};   // signatures
  uint64_t seen_ = 0;                  // operators
  std::mutex mutex_;                   // guards the answer
  std::shared_ptr<Choice> answer_;
  std::atomic<bool> has_answer_{false};
};

void Remaking::rest(uint64_t operators) {
  phase_ = Phase::idle;
  until_look_ = operators;
  forget_log();
}

void Remaking::rest_longer() {
  rest(rest_);
  rest_ = std::min<uint64_t>(rest_ * 2, 1 << 22);
}

void Remaking::forget_log() {
  events_.clear();
  log_.clear();
}

void Remaking::look(Engine& engine) {
  until_look_ = look_every;
  const Iteration iteration = engine.iteration();
  if (iteration.events == 0) return;
  period_events_ = iteration.events;
  log_end_ = iteration.so_far + 2 * iteration.events + iteration.events / 8;
  log_.clear();
  broken_ = false;
  phase_ = Phase::logging;
  ++epoch_;
  ++logs;
}

void Remaking::log(const OperatorInfo& info, const at::RecordFunction& record) {
  const c10::ArrayRef<const c10::IValue> given = record.inputs();
  for (size_t i = 0; i < given.size(); ++i)
    each_storage(given[i], device_, [&](const void* base, uint64_t bytes) {
      log_.use(base, bytes, info.writes(i) ? OperatorLog::Use::write : OperatorLog::Use::read);
    });
  events_.begin(stalled_here_ns - here().ended_stalled_ns);
}

/// The operator's place in the iteration; none: the program is elsewhere.
uint32_t Remaking::follow(Engine& engine, uint64_t signature) {
  const Choice& choice = *choice_;
  if (synced_ && choice.signature(place_) == signature) {
    const uint32_t place = place_;
    place_ = place + 1 == choice.count() ? 0 : place + 1;
    return place;
  }
  if (std::exchange(synced_, false)) unsynced_ = 0;
  began_.reset();
  if (++unsynced_ > 4 * uint64_t{choice.count()}) {
    rest_longer();
    tell(engine);
    return Choice::none;
  }
  place_ = choice.place_behind(last_, seen_ % Choice::row);
  synced_ = place_ != Choice::none;
  return Choice::none;
}

/// Once for each place of a choice, on the device that it is for.
bool Remaking::is_proved(uint32_t slot, const Recipe& recipe, size_t result_at) {
  if (proved_[slot] == Proved::not_yet)
    proved_[slot] = prove(recipe, result_at) ? Proved::equal : Proved::differs;
  return proved_[slot] == Proved::equal;
}

/// For the statistics.
void Remaking::tell(Engine& engine) const {
  RemakeInUse in_use;
  if (phase_ == Phase::following && trial_.makes_again()) {
    in_use = {0, 0, trial_.before_ns(), trial_.after_ns()};
    for (size_t slot = 0; slot < proved_.size(); ++slot) {
      if (proved_[slot] == Proved::differs) continue;
      ++in_use.results;
      in_use.bytes += choice_->slots()[slot].bytes;
    }
  }
  engine.note_remake(in_use);
}

/// An iteration begins, at the choice's first operator.
void Remaking::compare_iterations(Engine& engine) {
  const auto now = std::chrono::steady_clock::now();
  const RemakeTrial::Stage before = trial_.stage();
  if (began_)
    trial_.iteration(static_cast<uint64_t>(std::chrono::nanoseconds(now - *began_).count()));
  began_ = now;
  if (trial_.stage() == before) return;
  if (trial_.stage() == RemakeTrial::Stage::failed) {
    rest_ = std::max(rest_, failed_rest * choice_->count());
    rest_longer();
  }
  tell(engine);
}

/// True: the operator's recipe is wanted.
bool Remaking::begin(Engine& engine, const OperatorInfo& info, const at::RecordFunction& record) {
  Here& here = this->here();
  here.record = nullptr;
  const Turn turn(busy_);
  if (!turn) {
    broken_ = true;
    return false;
  }
  uint64_t signature = mix(reinterpret_cast<uintptr_t>(&info), 0);
  if (phase_ != Phase::idle) {
    bool first = true;
    for (const c10::IValue& value : record.inputs()) {
      if (!value.isTensor() || !std::exchange(first, false)) continue;
      each_storage(value, device_, [&](const void*, uint64_t bytes) {
        signature = mix(signature, bytes);
      });
    }
  }
  last_[seen_++ % Choice::row] = signature;
  bool wanted = false;
  here.place = Choice::none;
  here.logged = false;
  switch (phase_) {
    case Phase::idle:
      if (--until_look_ == 0) look(engine);
      break;
    case Phase::logging:
      if (broken_ || log_.full()) {
        --logs;
        rest_longer();
        break;
      }
      here.logged = wanted = true;
      log_.begin(signature);
      log(info, record);
      break;
    case Phase::timing:
      if (++since_log_ % Choice::row == 0) time(engine);
      break;
    case Phase::asking:
      if (!has_answer_.load(std::memory_order_acquire)) break;
      {
        std::lock_guard lock(mutex_);
        choice_ = std::exchange(answer_, nullptr);
        has_answer_ = false;
      }
      if (!choice_) {
        rest_longer();
        break;
      }
      given_.assign(choice_->slots().size(), {nullptr, 0});
      outstanding_ = given_;
      proved_.assign(choice_->slots().size(), Proved::not_yet);
      phase_ = Phase::following;
      ++epoch_;
      trial_ = {};
      began_.reset();
      synced_ = false;
      unsynced_ = 0;
      (void)follow(engine, signature);
      break;
    case Phase::following:
      here.place = follow(engine, signature);
      if (here.place == 0) compare_iterations(engine);
      if (!trial_.makes_again()) here.place = Choice::none;
      wanted = here.place != Choice::none && !choice_->gives(here.place).empty();
      break;
  }
  if (here.logged || here.place != Choice::none) {
    here.remaking = this;
    here.engine = &engine;
    here.device = device_;
    here.record = &record;
    here.epoch = epoch_;
    here.logged_at = here.logged ? log_.size() - 1 : 0;
    here.stalled_ns = stalled_here_ns;
  }
  return wanted && info.remade;
}

void Remaking::end(Here& here, const at::RecordFunction& record, const Recipe* recipe) {
  const Turn turn(busy_);
  if (!turn) {
    broken_ = true;
    return;
  }
  // (Another thread may have come to something else meanwhile, even to another choice.)
  if (here.epoch != epoch_) return;
  const uint32_t place = here.place;
  if (here.logged && phase_ == Phase::logging) {
    if (here.logged_at + 1 != log_.size()) {  // another thread's came between
      broken_ = true;
      return;
    }
    events_.end();
    here.ended_stalled_ns = stalled_here_ns;
    uint8_t at = 0;
    for (const c10::IValue& result : record.outputs()) {
      each_storage(result, device_, [&](const void* base, uint64_t bytes) {
        log_.use(base, bytes, OperatorLog::Use::result, at);
      });
      ++at;
    }
    const uint64_t so_far = here.engine->iteration().so_far;
    log_.end(recipe && !recipe->made_by->differs, so_far, stalled_here_ns - here.stalled_ns);
    if (so_far >= log_end_) finish_log();
  } else if (place != Choice::none && phase_ == Phase::following && place < choice_->count()) {
    for (const uint32_t slot : choice_->gives(place)) {
      given_[slot] = {nullptr, 0};
      if (const auto [last, written] = std::exchange(outstanding_[slot], {nullptr, 0});
          last && Writes::all().unchanged(last, written))
        here.outliving.push_back(last);
      const Choice::Slot& chosen = choice_->slots()[slot];
      if (!recipe || !can_be_given(*recipe, chosen.result_at)) continue;
      if (!is_proved(slot, *recipe, chosen.result_at)) {
        tell(*here.engine);
        continue;
      }
      if (!give_recipe(*recipe, chosen.result_at, chosen.device_ns)) continue;
      const void* const base = recipe->result(chosen.result_at).base;
      outstanding_[slot] = given_[slot] = {base, Writes::all().count(base)};
    }
    for (const uint32_t slot : choice_->leaves(place)) {
      const auto [base, written] = std::exchange(given_[slot], {nullptr, 0});
      if (base && Writes::all().unchanged(base, written)) here.leaving.push_back(base);
    }
  }
}

void Remaking::freed(const void* base) {
  const Turn turn(busy_);
  if (!turn)
    broken_ = true;
  else if (phase_ == Phase::logging)
    log_.freed(base);
}

void Remaking::finish_log() {
  --logs;
  const std::optional<OperatorLog::Period> period = log_.period(period_events_);
  since_log_ = 0;
  if (!period || broken_) return rest_longer();
  period_ = *period;
  phase_ = Phase::timing;
}

/// Reads the times of the logged operators, once the device is through with them.
void Remaking::time(Engine& engine) {
  if (!events_.over()) return;
  for (size_t i = 0; i < events_.size(); ++i) {
    log_.set_ns(i, events_.ns(i));
    log_.set_gap_ns(i, events_.gap_ns(i));
  }
  log_.leave_waits_out();
  const size_t next = std::min(period_.first + period_.count, events_.size() - 1);
  ask(engine, events_.ns_between(period_.first, next));
}

void Remaking::ask(Engine& engine, uint64_t iteration_ns) {
  std::vector<std::vector<OperatorLog::Result>> results;
  lifetimes::Operators operators = log_.operators(period_, results);
  std::vector<uint64_t> signatures, times;
  for (size_t i = 0; i < period_.count; ++i) {
    signatures.push_back(log_.signature(period_.first + i));
    times.push_back(operators.operators[i].ns);
  }
  auto take = [this, results = std::move(results), times = std::move(times),
               signatures = std::move(signatures)](const RemakeChoice& answer) {
    std::shared_ptr<Choice> choice;
    try {
      choice = std::make_shared<Choice>(answer, signatures, times, results);
    } catch (const std::bad_alloc&) {  // (an answer there must be)
    }
    answered(choice && !choice->slots().empty() ? std::move(choice) : nullptr);
  };
  const bool asked =
      engine.ask_what_to_remake(std::move(operators), iteration_ns, std::move(take));
  if (!asked) return rest(look_every);
  forget_log();
  phase_ = Phase::asking;
}

/// In a thread of the runtime's. Null: nothing is to be made again.
void Remaking::answered(std::shared_ptr<Choice> choice) {
  std::lock_guard lock(mutex_);
  answer_ = std::move(choice);
  has_answer_.store(true, std::memory_order_release);
}

constexpr size_t devices_most = 64;
std::array<std::atomic<Remaking*>, devices_most> of_devices{};

Remaking* of_device(int device) {
  if (device < 0 || static_cast<size_t>(device) >= devices_most) return nullptr;
  if (Remaking* known = of_devices[device].load(std::memory_order_acquire)) return known;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (!of_devices[device]) of_devices[device].store(new Remaking(device));  // for the process's life
  return of_devices[device];
}

}  // namespace

bool begin_remaking(const OperatorInfo& info, const at::RecordFunction& record,
                    ThreadScopes& scopes) {
  Remaking::here().record = nullptr;
  // (What is captured runs once; an event in it would become a part of it.)
  if (scopes.pools() && scopes.pools()->recording()) return false;
  Engine* const engine = scopes.touched_engine();
  Remaking* const remaking = engine ? of_device(scopes.touched_device()) : nullptr;
  return remaking && remaking->begin(*engine, info, record);
}

void end_remaking(const at::RecordFunction& record, const Recipe* recipe) {
  Remaking::Here& here = Remaking::here();
  if (here.record != &record) return;
  here.record = nullptr;
  here.remaking->end(here, record, recipe);
  leaving_here = !here.leaving.empty() || !here.outliving.empty();
}

void left_operator() {
  Remaking::Here& here = Remaking::here();
  leaving_here = false;
  for (const void* base : here.leaving) (void)here.engine->cold(base, 1);
  here.leaving.clear();
  // (It would keep its inputs, and theirs, for as long as it lives.)
  for (const void* base : here.outliving) give_up_recipe(*here.engine, base, here.device);
  here.outliving.clear();
}

void note_freed(const void* base) {
  Writes::all().note(base);
  if (logs.load(std::memory_order_relaxed) == 0) return;
  for (const auto& each : of_devices)
    if (Remaking* known = each.load(std::memory_order_acquire)) known->freed(base);
}

}  // namespace firn::pytorch
