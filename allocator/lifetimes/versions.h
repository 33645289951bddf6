// The versions of values (operators.h): each operator that writes a value makes a new version of
// it, and each that reads it reads one version. What a value has when nothing has written it is a
// version too, that no operator made.
//
// Versions of one value have numbers in a row. An operator that writes a value in place reads the
// version before, whether it says so or not.
// Owns: its arrays; the operators stay the caller's. Locks: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/lifetimes/operators.h"

namespace firn::lifetimes {

class Versions {
 public:
  explicit Versions(const Operators& operators);

  uint32_t count() const { return static_cast<uint32_t>(value_.size()); }
  uint32_t value(uint32_t version) const { return value_[version]; }
  /// The operator that made it; none: it was there.
  uint32_t maker(uint32_t version) const { return maker_[version]; }
  /// Whether this is what a value has when it is allocated, which nothing may read: its first
  /// operator writes it as a whole.
  bool unwritten(uint32_t version) const { return unwritten_[version]; }
  /// The operator that overwrites it; none: nothing does.
  uint32_t overwritten(uint32_t version) const {
    return version + 1 < count() && value_[version + 1] == value_[version] ? maker_[version + 1]
                                                                          : none;
  }
  /// The version that the value has just before operator `at`.
  uint32_t before(uint32_t value, uint32_t at) const;

  std::span<const uint32_t> read(uint32_t one) const { return part(read_, read_at_, one); }
  /// The same when it runs again: without its state (Operator::leaves_state). Versions of its
  /// `reads`, in their order, come before those that are only overwritten.
  std::span<const uint32_t> read_again(uint32_t one) const {
    return part(read_again_, read_again_at_, one);
  }
  std::span<const uint32_t> made_again(uint32_t one) const {
    return part(made_again_, made_again_at_, one);
  }
  /// How many of `reads` it has when it runs again.
  uint32_t reads_again(uint32_t one) const { return reads_again_[one]; }
  /// In the order of its writes.
  std::span<const uint32_t> made(uint32_t one) const { return part(made_, made_at_, one); }
  /// Operators that name the value, ascending.
  std::span<const uint32_t> uses(uint32_t value) const { return part(uses_, uses_at_, value); }

 private:
  static std::span<const uint32_t> part(const std::vector<uint32_t>& of,
                                        const std::vector<uint32_t>& at, uint32_t i) {
    return std::span(of).subspan(at[i], at[i + 1] - at[i]);
  }
  void number(const Operators& operators);
  void find_state(const Operators& operators);

  std::vector<uint32_t> first_;  // per value: its first version; one more at the end
  std::vector<uint32_t> value_, maker_;
  std::vector<uint8_t> unwritten_;
  std::vector<uint32_t> read_, read_at_, made_, made_at_, uses_, uses_at_;
  std::vector<uint32_t> read_again_, read_again_at_, made_again_, made_again_at_, reads_again_;
};

}  // namespace firn::lifetimes
