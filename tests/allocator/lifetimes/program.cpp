#include "tests/allocator/lifetimes/program.h"

#include <algorithm>

namespace firn::program {

uint32_t Trainer::blocks = 0;

Trainer::Trainer(uint64_t seed, int layers) {
  std::mt19937_64 random(seed);
  size_t operators = 2 + random() % 5;
  int weights = 0;
  for (size_t i = 0; i < operators; ++i) {
    bool weighs = i == 0 || random() % 2;
    operators_.push_back({512 * (1 + random() % 64), weighs ? weights++ : -1,
                          random() % 3 ? 0 : 4096 * (1 + random() % 64)});
  }
  std::vector<uint64_t> sizes;
  for (int i = 0; i < weights; ++i) sizes.push_back(65536 * (1 + random() % 16));
  for (int layer = 0; layer < layers; ++layer) {
    weights_.emplace_back();
    for (uint64_t bytes : sizes) {
      weights_.back().push_back({allocate(bytes), 0, 0, 0, bytes});
      touch(weights_.back().back().value, true);
    }
  }
}

uint32_t Trainer::allocate(uint64_t bytes) {
  ops.push_back({EventKind::allocate, ++blocks, bytes});
  return blocks;
}

uint32_t Trainer::apply(const Operator& op, size_t layer, uint32_t in, uint64_t length) {
  uint32_t out = allocate(op.unit * length), workspace = 0;
  if (op.workspace) workspace = allocate(op.workspace);
  touch(in, false);
  if (op.weight >= 0) touch(weights_[layer][static_cast<size_t>(op.weight)].value, false);
  if (workspace) touch(workspace, true);
  touch(out, true);
  if (workspace) free(workspace);
  return out;
}

void Trainer::evaluate(uint64_t length) {
  uint32_t in = allocate(1000 * length);
  touch(in, true);
  for (size_t layer = 0; layer < weights_.size(); ++layer)
    for (const Operator& op : operators_) {
      uint32_t out = apply(op, layer, in, length);
      free(in);
      in = out;
    }
  free(in);
}

void Trainer::step(uint64_t length, int micro_batches) {
  for (int micro = 0; micro < micro_batches; ++micro) {
    std::vector<uint32_t> kept{allocate(1000 * length)};
    touch(kept[0], true);
    for (size_t layer = 0; layer < weights_.size(); ++layer)
      for (const Operator& op : operators_) kept.push_back(apply(op, layer, kept.back(), length));
    uint32_t out = allocate(4096);
    touch(kept.back(), false);
    touch(out, true);
    if (out_) free(out_);
    out_ = out;
    uint32_t grad = allocate(operators_.back().unit * length);
    touch(grad, true);
    for (size_t layer = weights_.size(); layer-- > 0;) {
      for (size_t i = operators_.size(); i-- > 0;) {
        uint32_t result = kept.back();
        kept.pop_back();
        uint64_t bytes = i ? operators_[i - 1].unit : layer ? operators_.back().unit : 1000;
        uint32_t next = allocate(bytes * length);
        touch(result, false);
        touch(grad, false);
        touch(kept.back(), false);
        touch(next, true);
        if (operators_[i].weight >= 0) {
          Weight& weight = weights_[layer][static_cast<size_t>(operators_[i].weight)];
          touch(weight.value, false);
          if (!weight.grad) weight.grad = allocate(weight.bytes);
          touch(weight.grad, true);
        }
        free(result);
        free(grad);
        grad = next;
      }
    }
    free(grad);
    free(kept[0]);
  }
  optimize();
}

void Trainer::optimize() {
  for (auto& layer : weights_)
    for (Weight& weight : layer) {
      if (!weight.first) {
        weight.first = allocate(weight.bytes);
        touch(weight.first, true);
        weight.second = allocate(weight.bytes);
        touch(weight.second, true);
      }
      for (uint32_t moment : {weight.first, weight.second}) {
        touch(weight.grad, false);
        touch(moment, true);
      }
      uint32_t root = allocate(weight.bytes);
      touch(weight.second, false);
      touch(root, true);
      touch(weight.first, false);
      touch(root, false);
      touch(weight.value, true);
      free(root);
    }
}

Watch::Watch(const std::vector<Op>& ops, size_t events_most)
    : history(events_most), identities(ops.size()), ops_(ops) {
  uint32_t most = 0;
  for (const Op& op : ops) most = std::max(most, op.block);
  uses_.resize(most + 1);
  for (size_t i = 0; i < ops.size(); ++i)
    if (ops[i].kind == EventKind::touch_read || ops[i].kind == EventKind::touch_write)
      uses_[ops[i].block].push_back(i);
}

Watch::Score Watch::feed(size_t to, size_t every) {
  Score result;
  for (; at < to; ++at) {
    const Op& op = ops_[at];
    if (history.known() && every) {
      History::Upcoming next = history.upcoming(1);
      ++result.next_asked;
      result.next_right +=
          next.kind == op.kind &&
          (op.kind == EventKind::allocate ? next.bytes == op.bytes : next.life == live_[op.block]);
    }
    if (op.kind == EventKind::allocate) live_[op.block] = history.allocate(op.bytes);
    Life life = live_[op.block];
    if (op.kind == EventKind::touch_read) history.touch(life, false);
    if (op.kind == EventKind::touch_write) history.touch(life, true);
    identities[at] = history.identity(life);
    if (op.kind == EventKind::free) {
      history.free(life);
      live_.erase(op.block);
    }
    if (every == 0 || at % every) continue;
    ++result.events;
    if (!history.known()) continue;
    ++result.known;
    result.first_known = std::min(result.first_known, result.events);
    score(result);
  }
  return result;
}

void Watch::score(Score& result) {
  std::vector<std::pair<uint64_t, uint64_t>> pairs;  // truth, prediction
  for (auto [block, life] : live_) {
    ++result.blocks;
    if (!history.foreseen(life)) continue;
    const auto& uses = uses_[block];
    auto it = std::upper_bound(uses.begin(), uses.end(), at);
    uint64_t truth = it == uses.end() ? History::never : *it - at;
    uint64_t said = history.next_use(life);
    if (score_order) pairs.push_back({truth, said});
    // What comes later than the period is unknown, and said to be.
    if (truth > history.period()) truth = History::never;
    ++result.asked;
    result.right += said == truth;
    if (said != truth && result.first_wrong.empty())
      result.first_wrong = "after event " + std::to_string(at) + " block " + std::to_string(block) +
                           ": said " + std::to_string(said) + ", is " + std::to_string(truth) +
                           ", period " + std::to_string(history.period());
  }
  for (int i = 0; i < 16 && pairs.size() > 1; ++i) {
    auto a = pairs[random_() % pairs.size()], b = pairs[random_() % pairs.size()];
    if (a.first == b.first) continue;
    ++result.pairs;
    result.ordered += (a.first < b.first) ? a.second < b.second : a.second > b.second;
  }
}

std::vector<Op> disturb(const std::vector<Op>& ops, double share, uint64_t seed, size_t from) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<> uniform;
  std::vector<Op> result;
  for (size_t i = 0; i < ops.size(); ++i) {
    bool touches = ops[i].kind == EventKind::touch_read || ops[i].kind == EventKind::touch_write;
    double draw = uniform(random);
    if (i < from || !touches || draw >= share) result.push_back(ops[i]);
    if (i < from || !touches || draw >= share) continue;
    if (draw < share / 2) continue;
    result.push_back(ops[i]);
    result.push_back(ops[i]);
  }
  return result;
}

}  // namespace firn::program
