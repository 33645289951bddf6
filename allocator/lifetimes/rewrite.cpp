#include "allocator/lifetimes/rewrite.h"

#include <algorithm>
#include <utility>

#include "firn/check.h"

namespace firn::lifetimes {

namespace {

class Rewriter {
 public:
  Rewriter(const Operators& operators, const Versions& versions, const Remake& remake)
      : from_(operators), versions_(versions), remake_(remake),
        gone_(operators.values.size(), none), copy_(versions.count(), none),
        marked_(operators.count(), 0) {
    out_.operators.values = operators.values;
    for (uint32_t value = 0; value < operators.values.size(); ++value) {
      name_.push_back(value);
      holds_.push_back(versions.before(value, 0));
    }
  }

  Rewritten rewrite() {
    for (uint32_t i = 0; i < from_.count(); ++i) {
      if (i == remake_.cut) drop();
      for (const uint32_t value : from_.named(from_.operators[i]))
        if (const uint32_t version = std::exchange(gone_[value], none); version != none) {
          make_again(version);
          name_[value] = copy_[version];
        }
      emit(i);
    }
    return std::move(out_);
  }

 private:
  /// A value that is made again ends with its last use before the cut.
  void drop() {
    for (uint32_t value = 0; value < gone_.size(); ++value) {
      if (from_.values[value].persistent) continue;
      const auto uses = versions_.uses(value);
      const uint32_t version = versions_.before(value, remake_.cut);
      if (uses.empty() || uses.front() >= remake_.cut || uses.back() < remake_.cut) continue;
      if (!remake_.again[version]) continue;
      gone_[value] = version;
      ++out_.values;
      out_.bytes += from_.values[value].bytes;
    }
  }

  bool has_copy(uint32_t version) const {
    return copy_[version] != none && holds_[copy_[version]] == version;
  }

  /// Runs again what leads to the version, in the order of the original program: so values that
  /// were written in place go through the same versions.
  void make_again(uint32_t version) {
    if (has_copy(version)) return;
    std::vector<uint32_t> run{versions_.maker(version)};
    const auto mark = ++marks_;
    marked_[run[0]] = mark;
    for (size_t at = 0; at < run.size(); ++at)
      for (const uint32_t read : versions_.read_again(run[at])) {
        if (!remake_.again[read] || has_copy(read)) continue;
        const uint32_t maker = versions_.maker(read);
        if (std::exchange(marked_[maker], mark) != mark) run.push_back(maker);
      }
    std::sort(run.begin(), run.end());
    for (const uint32_t one : run) run_again(one);
  }

  void run_again(uint32_t one) {
    const Operator& original = from_.operators[one];
    FIRN_CHECK(original.again, "operator %u may not run again", one);
    const auto read = versions_.read_again(one), made = versions_.made_again(one);
    reads_.clear();
    writes_.clear();
    for (const uint32_t version : read.first(versions_.reads_again(one)))
      reads_.push_back(place_of(version));
    for (const uint32_t version : made) {
      const bool in_place = std::find(read.begin(), read.end(), version - 1) != read.end() &&
                            versions_.value(version - 1) == versions_.value(version);
      const uint32_t place = in_place ? place_of(version - 1) : fresh(versions_.value(version));
      writes_.push_back(place);
      holds_[place] = version;
      copy_[version] = place;
    }
    out_.ns += original.ns;
    out_.operators.add(original, reads_, writes_);
  }

  /// The value that holds the version now.
  uint32_t place_of(uint32_t version) const {
    const uint32_t place =
        remake_.again[version] ? copy_[version] : name_[versions_.value(version)];
    FIRN_CHECK(place != none && holds_[place] == version, "version %u is gone", version);
    return place;
  }

  uint32_t fresh(uint32_t value) {
    out_.operators.values.push_back(from_.values[value]);
    holds_.push_back(none);
    return static_cast<uint32_t>(holds_.size() - 1);
  }

  /// The original operator, with the values' names of now.
  void emit(uint32_t i) {
    const Operator& one = from_.operators[i];
    reads_.clear();
    writes_.clear();
    for (const uint32_t value : from_.reads(one)) reads_.push_back(name_[value]);
    for (const uint32_t value : from_.writes(one)) writes_.push_back(name_[value]);
    const auto made = versions_.made(i);
    for (size_t w = 0; w < made.size(); ++w) holds_[writes_[w]] = made[w];
    out_.operators.add(one, reads_, writes_);
  }

  const Operators& from_;
  const Versions& versions_;
  const Remake& remake_;
  Rewritten out_;
  std::vector<uint32_t> name_;   // per original value: the value that stands for it now
  std::vector<uint32_t> gone_;   // and the version to be made again before its next use
  std::vector<uint32_t> holds_;  // per value: its version of now
  std::vector<uint32_t> copy_;   // per version: the value that it was made again in
  std::vector<uint32_t> marked_; // per operator: the last search that found it
  uint32_t marks_ = 0;
  std::vector<uint32_t> reads_, writes_;
};

}  // namespace

Rewritten rewrite(const Operators& operators, const Versions& versions, const Remake& remake) {
  return Rewriter(operators, versions, remake).rewrite();
}

}  // namespace firn::lifetimes
