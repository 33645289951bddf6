// Programs in which values are made again rather than moved or kept, each rated by the least that
// an iteration takes: what remake_choice.h rehearses the best of. Deterministic: no clock, no lock.
//
// At the instant of most memory (the cut), prices of keeping a byte are tried, from a fraction of
// the time that it takes over the link to a multiple: for each price remake.h finds what is cheaper
// to make again, with a limit on how long that may be held. Between the best price and its
// neighbours the best is sought; then the higher of two for what is made late (or early) before the
// cut only, and the part that this should be, and the least with which nothing has to move. At last
// single values are turned over, since memory may be short at other instants too: what is used last
// saves most, for it is away at all of them.
//
// What is alive at the cut may be kept for nothing where memory suffices. What is dead by then
// takes memory that the program does not need: to keep it for what is made of it always costs.
// Limitation: there is one cut. Of several micro-batches in one iteration, one gains.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "allocator/lifetimes/rehearse.h"
#include "allocator/lifetimes/rewrite.h"
#include "allocator/lifetimes/waits.h"
#include "allocator/policy/remake_choice.h"

namespace firn {

/// Smaller values share memory, and stay.
inline constexpr uint64_t remade_bytes_least = 1 << 20;

/// A way to price versions, and what it comes to.
struct RemakeTrial {
  double low = 0, high = 0;  // prices: the high one for a part of what is made before the cut
  double part = 0;           // 0: none, 1: all
  bool late = true;          // the part that is made last, or first
  double hold = 0;           // part of the iteration for which what is made again may be held
  std::vector<uint32_t> kept, again;  // versions that are, at whatever price
  double ns = 0;             // rated: of an iteration
  bool fits = false;         // nothing has to move
};

/// Where something moves, memory is mapped anew for what is born (planned places are for programs
/// in which nothing does, lifetimes/places.h). Driver calls overlap with operators while there are
/// few; beyond that, a part of what they take is waited for: measured on `firn simulate`.
double mapping_waits_ns(const lifetimes::Operators& operators,
                        const lifetimes::RehearsalMachine& machine, double map_ns,
                        double iteration_ns);

lifetimes::WaitsMachine waits_machine(const lifetimes::RehearsalMachine& machine);

/// The arguments stay the caller's, and as they are.
class RemakeSearch {
 public:
  RemakeSearch(const lifetimes::Operators& operators, const lifetimes::RehearsalMachine& machine,
               double map_ns);

  /// There is nothing to search for: all fits.
  bool fits() const { return operators_.count() < 2 || most_bytes_ <= fits_bytes_; }
  /// All trials, each different, the best first.
  std::vector<RemakeTrial> search();
  lifetimes::Remake solve(const RemakeTrial& trial);
  static size_t hash(const lifetimes::Remake& remake);
  /// Sets what the trial comes to. False: it makes nothing again.
  bool rate(RemakeTrial& trial, const lifetimes::Remake& remake);
  /// Versions that may be kept or made again: one that is made again, the slowest first, and one
  /// that is kept, the one first that takes most memory for longest, in turn.
  std::vector<uint32_t> to_turn(const std::vector<uint8_t>& again) const;
  /// The trial, but for that version. `again`: it was made again.
  RemakeTrial turned(RemakeTrial trial, uint32_t version, bool again) const;
  lifetimes::Rewritten rewritten(const lifetimes::Remake& remake) const {
    return rewrite(operators_, versions_, remake);
  }
  std::vector<MadeAgain> made_again(const lifetimes::Remake& remake) const;
  /// What operators take, and the least that moving alone takes, mapping left out.
  double total_ns() const { return total_ns_; }
  double alone_ns() const { return alone_ns_; }
  unsigned rated() const { return rated_; }
  /// How many single values may be turned over, as rated: a look costs as much as there are
  /// operators.
  uint64_t turns() const;

 private:
  std::optional<RemakeTrial> rate_new(RemakeTrial trial);
  std::pair<RemakeTrial, RemakeTrial> beside(const std::vector<RemakeTrial>& trials,
                                             const RemakeTrial& best) const;
  void search_prices();
  void search_prices_between(const RemakeTrial& low, const RemakeTrial& high);
  void search_parts_between(const RemakeTrial& low, const RemakeTrial& high, bool late,
                            bool to_fit);
  void search_parts_around(const std::vector<RemakeTrial>& trials);
  bool lives_on(uint32_t version) const;
  void add_with_dead(uint32_t version, std::vector<uint32_t>& to) const;
  void turn_values();

  const lifetimes::Operators& operators_;
  const lifetimes::RehearsalMachine& machine_;
  const double map_ns_;
  const lifetimes::Versions versions_;
  const lifetimes::WaitsMachine waits_;
  const uint64_t fits_bytes_;
  uint64_t most_bytes_ = 0;  // alive together
  std::vector<double> starts_ns_;
  double total_ns_ = 0, alone_ns_ = 0;
  std::optional<lifetimes::RemakeProblem> problem_;
  uint32_t cut_ = 0;
  std::vector<double> price_;  // per version, in the trial being solved; below zero: no own one
  std::vector<RemakeTrial> trials_;
  std::set<size_t> seen_;  // hashes of what was made again
  unsigned rated_ = 0;
};

}  // namespace firn
