// Synthetic training programs as streams of events, and what History says of them against the
// truth, which the generator knows. Layers are alike in sizes, as in transformers, so that only
// position and memory in use tell them apart.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocator/lifetimes/history.h"

namespace firn::program {

struct Op {
  EventKind kind;
  uint32_t block;
  uint64_t bytes;
};

/// One network and its training loop; the events gather in `ops`.
class Trainer {
 public:
  Trainer(uint64_t seed, int layers);
  /// A step of so many micro-batches; `length` scales the activations, not the weights.
  void step(uint64_t length = 64, int micro_batches = 1);
  /// A forward pass that keeps nothing.
  void evaluate(uint64_t length = 64);

  std::vector<Op> ops;
  static uint32_t blocks;  // numbers given out, of all trainers

 private:
  struct Weight {
    uint32_t value, grad, first, second;
    uint64_t bytes;
  };
  struct Operator {
    uint64_t unit;       // bytes of the result per unit of length
    int weight;          // of the layer's; -1: none
    uint64_t workspace;  // 0: none
  };
  uint32_t allocate(uint64_t bytes);
  void touch(uint32_t block, bool write) {
    ops.push_back({write ? EventKind::touch_write : EventKind::touch_read, block, 0});
  }
  void free(uint32_t block) { ops.push_back({EventKind::free, block, 0}); }
  uint32_t apply(const Operator& op, size_t layer, uint32_t in, uint64_t length);
  void optimize();

  std::vector<Operator> operators_;           // of every layer
  std::vector<std::vector<Weight>> weights_;  // by layer
  uint32_t out_ = 0;                          // freed only after the next is made
};

/// Feeds ops [from, to) and scores the predictions made after each of them.
class Watch {
 public:
  explicit Watch(const std::vector<Op>& ops, size_t events_most = 1 << 20);

  struct Score {
    uint64_t events = 0, known = 0;
    uint64_t asked = 0, right = 0;            // next uses of foreseen live blocks, while known
    uint64_t blocks = 0;                      // all live blocks, while known
    uint64_t ordered = 0, pairs = 0;          // pairs of next uses in the right order, while known
    uint64_t next_asked = 0, next_right = 0;  // the very next event, while known
    uint64_t first_known = UINT64_MAX;        // events until known
    std::string first_wrong;
    double share() const { return asked ? double(right) / double(asked) : 1; }
    double foreseen_share() const { return blocks ? double(asked) / double(blocks) : 1; }
    double known_share() const { return events ? double(known) / double(events) : 1; }
    double order_share() const { return pairs ? double(ordered) / double(pairs) : 1; }
    double next_share() const { return next_asked ? double(next_right) / double(next_asked) : 1; }
  };
  /// `every`: score after each so many events; 0: only feed.
  Score feed(size_t to, size_t every = 1);
  Life life(uint32_t block) const {
    auto it = live_.find(block);
    return it == live_.end() ? 0 : it->second;
  }
  bool score_order = false;  // costs more
  History history;
  std::vector<Identity> identities;  // of each op when it was fed
  size_t at = 0;

 private:
  void score(Score& score);

  const std::vector<Op>& ops_;
  std::vector<std::vector<size_t>> uses_;  // of each block: the touches
  std::unordered_map<uint32_t, Life> live_;
  std::mt19937_64 random_{1};
};

/// The ops with a share of the touches dropped or doubled.
std::vector<Op> disturb(const std::vector<Op>& ops, double share, uint64_t seed, size_t from);

}  // namespace firn::program
