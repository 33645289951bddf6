// A random program that repeats itself, as its operators and the storages that they use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "pytorch_plugin/recipes/operator_log.h"

namespace firn::pytorch::test {

inline const void* at(uintptr_t address) { return reinterpret_cast<const void*>(address << 20); }

/// A storage of the script: it is there from operator `born` until before operator `dies`, which
/// may be one of the next iteration. Persistent ones are there all the time.
struct Variable {
  enum Kind { persistent, result, unseen } kind;  // unseen: allocated without an operator
  uint64_t bytes;
  size_t born = 0, dies = 0;

  bool is_there(size_t place, size_t count) const {  // before that operator, after its frees
    const size_t next = place + count;
    return kind == persistent || (place > born && place < dies) || (next > born && next < dies);
  }
};

struct Step {
  uint64_t signature, ns, events;
  bool again;
  std::vector<size_t> frees;                              // variables, before it
  std::vector<std::pair<size_t, OperatorLog::Use>> uses;  // variables
};

class LoopedProgram {
 public:
  using Use = OperatorLog::Use;

  explicit LoopedProgram(unsigned seed) : random_(seed), steps_(2 + random_() % 30) {
    const size_t count = steps_.size();
    for (size_t left = 1 + random_() % 4; left > 0; --left)
      variables_.push_back({Variable::persistent, 1 + random_() % 1000});
    for (size_t place = 0; place < count; ++place)
      for (size_t left = random_() % 3; left > 0; --left)
        variables_.push_back({random_() % 4 ? Variable::result : Variable::unseen,
                              1 + random_() % 1000, place, place + 1 + random_() % count});
    for (size_t place = 0; place < count; ++place) fill(place);
    address_.resize(variables_.size());
    for (uintptr_t& address : address_) address = next_++;
  }

  size_t count() const { return steps_.size(); }
  uint64_t events() const {
    uint64_t sum = 0;
    for (const Step& step : steps_) sum += step.events;
    return sum;
  }
  const std::vector<Variable>& variables() const { return variables_; }
  const Step& step(size_t number) const { return steps_[number % count()]; }

  /// The next operator, which goes into the log if there is one.
  void play(OperatorLog* log, uint64_t other_signature = 0) {
    const Step& step = this->step(played_++);
    for (const size_t variable : step.frees) {
      if (log) log->freed(at(address_[variable]));
      if (variables_[variable].kind == Variable::result) unused_.push_back(address_[variable]);
    }
    so_far_ += step.events;
    if (log) log->begin(step.signature + other_signature);
    uint8_t result_at = 0;
    for (const auto& [variable, use] : step.uses) {
      if (use == Use::result && !is_returned(step, variable)) address_[variable] = some_address();
      if (log) log->use(at(address_[variable]), variables_[variable].bytes, use, result_at);
      result_at += use == Use::result;
    }
    if (log) log->end(step.again, so_far_, 0);
  }

  uint64_t in_use(size_t place) const {
    uint64_t sum = 0;
    for (const Variable& each : variables_) sum += each.is_there(place, count()) ? each.bytes : 0;
    return sum;
  }
  uint64_t least_in_use() const {
    uint64_t least = UINT64_MAX;
    for (size_t place = 0; place < count(); ++place) least = std::min(least, in_use(place));
    return least;
  }
  /// The operator returns what it was given.
  static bool is_returned(const Step& step, size_t variable) {
    return step.uses[0].first == variable && step.uses[0].second != Use::result;
  }

 private:
  void fill(size_t place) {
    Step& step = steps_[place];
    step = {.signature = random_() % 5, .ns = 1 + random_() % 1000, .events = 1 + random_() % 4,
            .again = random_() % 2 == 0, .frees = {}, .uses = {}};
    for (size_t variable = 0; variable < variables_.size(); ++variable) {
      const Variable& each = variables_[variable];
      if (each.kind != Variable::persistent && each.dies % count() == place)
        step.frees.push_back(variable);
      if (each.is_there(place, count()) && random_() % 3 == 0)
        for (size_t left = 1 + random_() % 2; left > 0; --left)
          step.uses.emplace_back(variable, random_() % 3 ? Use::read : Use::write);
      if (each.kind == Variable::unseen && each.born == place)
        step.uses.emplace_back(variable, Use::write);
    }
    std::shuffle(step.uses.begin(), step.uses.end(), random_);
    if (!step.uses.empty() && random_() % 4 == 0)
      step.uses.emplace_back(step.uses[0].first, Use::result);
    for (size_t variable = 0; variable < variables_.size(); ++variable)
      if (variables_[variable].kind == Variable::result && variables_[variable].born == place)
        step.uses.emplace_back(variable, Use::result);
  }
  uintptr_t some_address() {
    if (unused_.empty() || random_() % 4 == 0) return next_++;
    std::swap(unused_[random_() % unused_.size()], unused_.back());
    const uintptr_t address = unused_.back();
    unused_.pop_back();
    return address;
  }

  std::mt19937 random_;
  std::vector<Step> steps_;  // an iteration
  std::vector<Variable> variables_;
  std::vector<uintptr_t> address_, unused_;
  uintptr_t next_ = 1;
  size_t played_ = 0;
  uint64_t so_far_ = 0;
};

}  // namespace firn::pytorch::test
