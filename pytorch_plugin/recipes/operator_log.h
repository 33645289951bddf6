// A log of a program's operators on one device: the storages that each used and made, and how long
// it took. One iteration of it is what is chosen from (allocator/lifetimes/operators.h).
//
// Owns: the log. Locks: none; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "allocator/lifetimes/operators.h"

namespace firn::pytorch {

/// Of a signature, which tells operators apart, with one more of what it consists of.
inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 29);
}

class OperatorLog {
 public:
  enum class Use : uint8_t { read, write, result };
  // A program may leave its iteration for good while it is logged, for operators that the engine
  // counts no event of: some 1.2 KiB each, with the device's events around them.
  static constexpr size_t operators_most = size_t{1} << 18, uses_most = 8 * operators_most;

  void clear();
  /// It takes no more.
  bool full() const { return operators_.size() >= operators_most || uses_.size() >= uses_most; }
  /// The next operator, which its kind and its inputs' sizes tell apart.
  void begin(uint64_t signature);
  /// It reads, writes in part or makes the storage at `base`. Of results, `result_at` is which.
  void use(const void* base, uint64_t bytes, Use use, uint8_t result_at = 0);
  /// It has ended. `again`: a recipe could be taken. `events`: the program's events so far.
  /// `waited_ns`: how long its thread waited for room within it.
  void end(bool again, uint64_t events, uint64_t waited_ns);
  /// How long the device took from its first event to its second; 0: unknown.
  void set_ns(size_t at, uint64_t ns) { operators_[at].ns = ns; }
  /// And from there to the next one's first.
  void set_gap_ns(size_t at, uint64_t ns) { operators_[at].gap_ns = ns; }
  /// While a thread waits, the device may be idle. So operators of a kind, with storages of the same
  /// sizes, are taken to need as long as one another: the time that a quarter of those stay within
  /// whose threads did not wait. Where all did, it is what is left without the waits. The gap behind
  /// an operator, of the host's doing, is a part of its time: the quarter of those between two such.
  void leave_waits_out();
  /// The storage has been freed.
  void freed(const void* base);

  size_t size() const { return operators_.size(); }
  uint64_t signature(size_t at) const { return operators_[at].signature; }

  /// One iteration of the log's operators.
  struct Period {
    size_t first = 0, count = 0;
  };
  /// The last iteration but the one that is under way, from where least memory is in use on; such an
  /// iteration takes `events` of the program's. None: what was logged does not repeat.
  std::optional<Period> period(uint64_t events) const;
  /// Its values are the storages; `results[operator]` has the values that it makes, by `result_at`.
  struct Result {
    uint32_t value;
    uint8_t at;
    uint64_t bytes;
  };
  lifetimes::Operators operators(const Period& period,
                                 std::vector<std::vector<Result>>& results) const;

 private:
  struct Logged {
    uint64_t signature, kind, ns, gap_ns, waited_ns, events;
    size_t uses_at;     // in uses_; those of the frees before it come first
    bool again;
  };
  struct Used {
    const void* base;
    uint64_t bytes;     // 0: it was freed before the operator
    Use use;
    uint8_t result_at;
  };
  size_t uses_end(size_t at) const {
    return at + 1 < operators_.size() ? operators_[at + 1].uses_at : uses_.size();
  }

  std::vector<Logged> operators_;
  std::vector<Used> uses_;
  size_t frees_from_ = 0;  // in uses_: of frees since the last operator
};

}  // namespace firn::pytorch
