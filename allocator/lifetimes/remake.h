// Which values are made again after an instant at which memory is short, rather than kept across
// it: the cheapest answer for given prices of keeping. A pure function, deterministic.
//
// At the cut, between two operators, some versions (versions.h) are alive that are used later.
// Each is either kept, at its price, or made again before its next use: then its operator runs once
// more, for its time, and all that it reads must be there as well, kept or made again in turn. What
// is made again is there from then on, so its time counts once, whoever needs it. A version that
// had its last use before the cut may also be kept, at its price, for what is made of it.
//
// That is a minimum cut (the nodes are versions and operators; Jain et al., Checkmate, 2020, solve
// the general problem as an integer program, and torch.compile's partitioner cuts a graph of
// versions alone): exact, but for the memory that values made again take in turn. That memory is
// bounded by a limit: a value that was made again, and would then be held for longer than
// `hold_ns_most` until its last use, is kept instead, if it can be; then the cut is sought anew. So
// a chain of layers is taken apart into stretches that each run again by themselves.
//
// Example: 0 makes A (8 MiB) of a persistent W, 1 makes B (16 MiB) of A, 2 makes C (16 MiB) of B;
// the cut; 3 reads C and 4 reads B. An operator takes 10 us; a MiB costs 2 us to keep.
//   B and C kept: 64 us. B kept, C made again: 32 + 10. A kept longer than the program needs it,
//   B and C made again of it: 16 + 20, the least. All made again of W: 30, if 0 may run again.
//
// Cost: a few maximum flows in a graph of the operators before the cut that lead to what is alive.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "allocator/lifetimes/versions.h"
#include "allocator/order/flow.h"

namespace firn::lifetimes {

struct Remake {
  uint32_t cut = 0;             // the operator after the instant
  std::vector<uint8_t> again;   // per version: made again, where it is needed and not there
};

/// The choices at one cut, for any prices and limits.
class RemakeProblem {
 public:
  /// Values below `bytes_least`, and those next used within `ns_least` of their last use, stay
  /// anyway: they cost nothing to keep.
  struct Limits {
    uint64_t bytes_least = 0, ns_least = 0;
  };
  /// The arguments stay the caller's, and as they are. 0 < cut < operators.
  RemakeProblem(const Operators& operators, const Versions& versions, uint32_t cut,
                const Limits& limits);

  /// Bytes that could be made again at any price.
  uint64_t bytes() const { return bytes_; }
  /// `price`: nanoseconds for keeping a version across the cut. `hold_ns_most`: see above.
  Remake solve(const std::function<double(uint32_t version)>& price, uint64_t hold_ns_most);

 private:
  // A version, and the ways to have it after the cut.
  struct Node {
    uint32_t version;
    bool keeps = false;   // it can be kept
    bool free = false;    // at no price
    bool needed = false;  // it is alive at the cut, and used later
    bool held_long = false;  // it is kept, for it would be held for too long
    uint32_t first = 0, last = 0;  // operators that need it first and last, found by one solution
  };
  void find_deadlines();
  void collect();
  uint32_t node(uint32_t version);
  bool may_run(uint32_t one) const;
  void cut(const std::function<double(uint32_t version)>& price);
  bool keep_what_is_held_long(uint64_t hold_ns_most);

  const Operators& operators_;
  const Versions& versions_;
  const uint32_t cut_;
  const Limits limits_;
  uint64_t bytes_ = 0;
  std::vector<uint64_t> starts_ns_;   // per operator
  std::vector<uint32_t> deadline_;    // per operator before the cut: it runs again before that one
  std::vector<Node> nodes_;
  std::vector<uint32_t> node_of_;     // per version
  std::vector<uint32_t> runs_;        // operators that may run again, and are of use; descending
  std::vector<uint32_t> run_of_;      // per operator before the cut: its node of the flow
  order::Flow flow_;
};

}  // namespace firn::lifetimes
