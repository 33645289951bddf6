#include "allocator/lifetimes/remake.h"

#include <algorithm>
#include <utility>

#include "firn/check.h"

namespace firn::lifetimes {

namespace {

/// Just before operator `at`: the uses of the value on either side; none: there is none.
struct Around {
  uint32_t last = none, next = none;
};

Around around(const Versions& versions, uint32_t value, uint32_t at) {
  const auto uses = versions.uses(value);
  const auto next = std::lower_bound(uses.begin(), uses.end(), at);
  return {next == uses.begin() ? none : *(next - 1), next == uses.end() ? none : *next};
}

}  // namespace

RemakeProblem::RemakeProblem(const Operators& operators, const Versions& versions, uint32_t cut,
                             const Limits& limits)
    : operators_(operators), versions_(versions), cut_(cut), limits_(limits),
      node_of_(versions.count(), none) {
  FIRN_CHECK(cut > 0 && cut < operators.count(), "a cut before operator %u of %u", cut,
             operators.count());
  uint64_t ns = 0;
  for (const Operator& one : operators.operators) {
    starts_ns_.push_back(ns);
    ns += one.ns;
  }
  find_deadlines();
  collect();
}

/// An operator runs again at the latest before the next use of what it made, or before the last of
/// those that need it for themselves: what it reads must not be overwritten until then.
void RemakeProblem::find_deadlines() {
  deadline_.assign(cut_, 0);
  std::vector<uint32_t> until(versions_.count(), 0);  // per version
  for (uint32_t i = cut_; i-- > 0;) {
    for (const uint32_t made : versions_.made_again(i)) {
      const Around uses = around(versions_, versions_.value(made), cut_);
      const bool current = versions_.before(versions_.value(made), cut_) == made;
      if (current && uses.next != none && !operators_.values[versions_.value(made)].persistent)
        until[made] = uses.next;
      deadline_[i] = std::max(deadline_[i], until[made]);
    }
    for (const uint32_t read : versions_.read_again(i))
      until[read] = std::max(until[read], deadline_[i]);
  }
}

bool RemakeProblem::may_run(uint32_t one) const {
  if (!operators_.operators[one].again) return false;
  for (const uint32_t made : versions_.made_again(one))
    if (operators_.values[versions_.value(made)].persistent) return false;
  for (const uint32_t read : versions_.read_again(one)) {
    // Overwritten before the cut, it would have to be made again, which is looked at elsewhere.
    const uint32_t overwritten = versions_.overwritten(read);
    if (overwritten != none && overwritten >= cut_ && overwritten < deadline_[one]) return false;
  }
  return true;
}

/// The versions alive at the cut, and all that they can be made of.
void RemakeProblem::collect() {
  std::vector<uint8_t> runs(cut_, 0);
  for (uint32_t value = 0; value < operators_.values.size(); ++value) {
    if (operators_.values[value].persistent) continue;
    const Around uses = around(versions_, value, cut_);
    if (uses.last == none || uses.next == none) continue;
    const uint32_t version = versions_.before(value, cut_);
    Node& alive = nodes_[node(version)];
    if (alive.free) continue;
    alive.needed = true;
  }
  for (size_t at = 0; at < nodes_.size(); ++at) {
    const uint32_t version = nodes_[at].version, maker = versions_.maker(version);
    if (nodes_[at].free || maker == none || !may_run(maker)) continue;
    if (nodes_[at].needed) bytes_ += operators_.values[versions_.value(version)].bytes;
    if (std::exchange(runs[maker], 1)) continue;
    runs_.push_back(maker);
    for (const uint32_t read : versions_.read_again(maker)) node(read);
    for (const uint32_t made : versions_.made_again(maker)) node(made);
  }
  std::sort(runs_.rbegin(), runs_.rend());
  run_of_.assign(cut_, none);
  for (uint32_t r = 0; r < runs_.size(); ++r)
    run_of_[runs_[r]] = 2 + static_cast<uint32_t>(nodes_.size()) + r;
}

uint32_t RemakeProblem::node(uint32_t version) {
  if (node_of_[version] != none) return node_of_[version];
  const uint32_t value = versions_.value(version);
  const Value& of = operators_.values[value];
  Node made{version};
  made.keeps = versions_.before(value, cut_) == version && !versions_.unwritten(version);
  const Around uses = around(versions_, value, cut_);
  made.free = made.keeps &&
              (of.persistent || of.bytes < limits_.bytes_least ||
               (uses.last != none && uses.next != none &&
                starts_ns_[uses.next] - starts_ns_[uses.last] < limits_.ns_least));
  nodes_.push_back(made);
  return node_of_[version] = static_cast<uint32_t>(nodes_.size() - 1);
}

/// On the source's side: versions that have to be there, and operators that run again. An arc from
/// a version to its operator is cut if it is kept, one from an operator to the sink if it runs
/// again.
void RemakeProblem::cut(const std::function<double(uint32_t version)>& price) {
  constexpr uint64_t never = uint64_t{1} << 40;  // 18 minutes; millions of them are within 2^63
  const auto nodes = static_cast<uint32_t>(nodes_.size());
  flow_.reset(2 + nodes + static_cast<uint32_t>(runs_.size()));
  for (const uint32_t one : runs_) {
    flow_.add(run_of_[one], order::Flow::sink,
              std::clamp<uint64_t>(operators_.operators[one].ns, 1, never));
    for (const uint32_t read : versions_.read_again(one))
      if (const uint32_t at = node_of_[read]; !nodes_[at].free)
        flow_.add(run_of_[one], 2 + at, order::Flow::unlimited);
  }
  for (uint32_t at = 0; at < nodes; ++at) {
    const Node& node = nodes_[at];
    if (node.free) continue;
    // (One that can be neither kept nor made is never on the source's side, whatever others cost.)
    const uint64_t keeping =
        node.keeps ? static_cast<uint64_t>(
                         std::clamp(price(node.version), 1., static_cast<double>(never)))
                   : order::Flow::unlimited;
    const uint32_t maker = versions_.maker(node.version);
    const bool runs = maker < cut_ && run_of_[maker] != none && !node.held_long;
    flow_.add(2 + at, runs ? run_of_[maker] : order::Flow::sink, keeping);
    if (node.needed) flow_.add(order::Flow::source, 2 + at, never);
  }
  flow_.run();
}

/// Goes backwards through what runs again: each version is needed first where it is used next, or
/// where the first of its users runs again. True: more is kept now.
bool RemakeProblem::keep_what_is_held_long(uint64_t hold_ns_most) {
  bool more = false;
  for (Node& node : nodes_) {
    node.first = node.needed ? around(versions_, versions_.value(node.version), cut_).next : none;
    node.last = node.needed ? node.first : 0;
  }
  for (const uint32_t one : runs_) {
    if (!flow_.near_source(run_of_[one])) continue;
    uint32_t first = none;
    for (const uint32_t made : versions_.made_again(one)) {
      Node& node = nodes_[node_of_[made]];
      if (node.free || node.held_long || node.first == none) continue;
      node.held_long = node.keeps && starts_ns_[node.last] - starts_ns_[node.first] > hold_ns_most;
      more |= node.held_long;
      if (!node.held_long) first = std::min(first, node.first);
    }
    if (first == none) continue;
    for (const uint32_t read : versions_.read_again(one)) {
      Node& node = nodes_[node_of_[read]];
      node.first = std::min(node.first, first);
      node.last = std::max(node.last, first);
    }
  }
  return more;
}

Remake RemakeProblem::solve(const std::function<double(uint32_t version)>& price,
                            uint64_t hold_ns_most) {
  constexpr unsigned rounds_most = 6;
  for (Node& node : nodes_) node.held_long = false;
  for (unsigned round = 0; round < rounds_most; ++round) {
    cut(price);
    if (!keep_what_is_held_long(hold_ns_most)) break;
  }
  Remake remake{cut_, std::vector<uint8_t>(versions_.count(), 0)};
  for (const uint32_t one : runs_) {
    if (!flow_.near_source(run_of_[one])) continue;
    for (const uint32_t made : versions_.made_again(one)) {
      const Node& node = nodes_[node_of_[made]];
      remake.again[made] = !node.free && !node.held_long;
    }
  }
  return remake;
}

}  // namespace firn::lifetimes
