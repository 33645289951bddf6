// Tiers of a few numbers, which write down what carry_out.h asks them to do. Owns: nothing.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/lifetimes/carry_out.h"

namespace firn::lifetimes::testing {

struct Piece {
  uint64_t pages = 4;
  bool stored = false, unwritten = false, only_stored = false;
};

struct Block {
  uint64_t size = 4, mapped = 4, clean = 0, next_use = no_use;
  bool used = false, captured = false, copied = false, leaves = false, at_host = false;
  std::vector<Piece> pieces{{}};
  uint32_t life = 1;
  uint64_t touched = 0;
};

/// A page is a byte.
struct Machine {
  std::map<char, Block> blocks;
  uint64_t free = 0, ready = 0, leaving = 0, in = 0, out = 0, written = 0, read = 0, used = 0;
  uint64_t host = 1000, span = 4, spare = 0, at = 0, host_copies = 0;
  double reading = 0, bytes_s[channel_count] = {};
  bool store = true, host_wanted = false;
  std::optional<PieceOf<char>> longest, last_used;
  std::string did;  // "A-4": four pages of A leave; "A~4": are made clean; "A+4": arrive; "h": a
                    // host copy is given up; "A<0": its piece 0 is read
};

class Tiers {
 public:
  using Handle = char;
  explicit Tiers(Machine& machine) : m_(&machine) {}
  uint32_t life(char b) const { return of(b).life; }
  uint64_t touched(char b) const { return of(b).touched; }
  uint64_t next_use(char b) const { return of(b).next_use; }
  uint64_t size(char b) const { return of(b).size; }
  uint64_t mapped(char b) const { return of(b).mapped; }
  uint64_t coming(char) const { return 0; }
  uint64_t clean(char b) const { return of(b).clean; }
  bool may_leave(char b) const { return of(b).mapped > 0 && !of(b).leaves; }
  bool unused(char b) const { return !of(b).used; }
  void watch_uses(char b) { m_->did += std::string(1, b) + "? "; }
  bool aside(char b) const { return of(b).captured; }
  std::vector<char> copied_out() const {
    std::vector<char> out;
    for (const auto& [name, block] : m_->blocks)
      if (block.copied) out.push_back(name);
    return out;
  }
  bool is_copied_out(char b) const { return of(b).copied; }
  uint64_t copied_tail(char b) const { return of(b).mapped; }
  uint64_t make_leave(char b, uint64_t pages) {
    const uint64_t part = std::min(pages, of(b).mapped);
    note(b, '-', part);
    const uint64_t at_once = std::min(part, of(b).clean);
    of(b).mapped -= at_once;
    of(b).clean -= at_once;
    m_->free += at_once;
    m_->leaving += part - at_once;
    of(b).leaves = part > at_once;
    return part;
  }
  bool make_clean(char b, uint64_t pages) {
    note(b, '~', pages);
    of(b).copied = true;
    m_->out += pages;
    return true;
  }
  void stop_cleaning(char b) {
    if (std::exchange(of(b).copied, false)) m_->did += std::string(1, b) + "! ";
  }
  void finish_leaving() {}
  bool may_arrive(char b) const { return of(b).mapped < of(b).size; }
  bool at_host(char b) const { return of(b).at_host; }
  uint64_t arrivable(char b) const { return std::min(m_->free, of(b).size - of(b).mapped); }
  uint64_t soon() const { return m_->free + m_->leaving; }
  void reclaim_ready() { m_->free += std::exchange(m_->ready, 0); }
  bool fetch(char b) {
    const uint64_t pages = std::min(arrivable(b), span_bytes());
    if (pages == 0) return false;
    ++of(b).touched;  // as an arrival does
    note(b, '+', pages);
    of(b).mapped += pages;
    m_->free -= pages;
    m_->in += pages;
    return true;
  }
  size_t pieces(char b) const { return of(b).pieces.size(); }
  uint64_t piece_pages(char b, size_t i) const { return of(b).pieces[i].pages; }
  bool stored(char b, size_t i) const { return of(b).pieces[i].stored; }
  bool unwritten(char b, size_t i) const { return of(b).pieces[i].unwritten; }
  bool only_stored(char b, size_t i) const { return of(b).pieces[i].only_stored; }
  bool drop_host_copy(uint64_t, uint64_t) {
    if (m_->host_copies == 0) return false;
    --m_->host_copies;
    m_->used -= 4;
    m_->did += "h ";
    return true;
  }
  std::optional<PieceOf<char>> unwritten_longest() const { return m_->longest; }
  std::optional<PieceOf<char>> unwritten_last_used() const { return m_->last_used; }
  bool host_wanted() const { return m_->host_wanted; }
  bool read_to_host(char b, size_t i) {
    note(b, '<', i);
    of(b).pieces[i].only_stored = false;
    m_->read += 4;
    m_->used += 4;
    return true;
  }
  static NoLock& lock() { return no_lock; }
  uint64_t span_bytes() const { return m_->span; }
  uint64_t host_bytes() const { return m_->host; }
  uint64_t host_used() const { return m_->used; }
  uint64_t spare_bytes() const { return m_->spare; }
  uint64_t bytes_in() const { return m_->in; }
  uint64_t bytes_out() const { return m_->out; }
  uint64_t bytes_written() const { return m_->written; }
  uint64_t bytes_read() const { return m_->read; }
  uint64_t store_bound() const { return m_->written; }
  uint64_t page_bytes() const { return 1; }
  double bytes_s(Channel channel) const { return m_->bytes_s[static_cast<size_t>(channel)]; }
  uint64_t now() const { return m_->at; }
  double reading_part() const { return m_->reading; }
  bool has_store() const { return m_->store; }

 private:
  Block& of(char b) const { return m_->blocks.at(b); }
  void note(char b, char what, uint64_t n) {
    m_->did += std::string(1, b) + what + std::to_string(n) + " ";
  }
  Machine* m_;
};

struct CarryOutTest : ::testing::Test {
  CarryOutTest() {
    plan.valid = true;
    plan.window = plan.memory_window = 10;
    plan.period = 256;
  }
  using Candidate = Plan<char>::Candidate;
  Candidate candidate(char name, uint64_t next_use, uint64_t pages = 4, bool spare = false) {
    const Block& block = machine.blocks.at(name);
    return {{name, block.life, block.touched}, next_use, pages, spare};
  }
  CarryOut<Tiers> carry() { return {plan, Tiers(machine)}; }
  std::string did() { return std::exchange(machine.did, ""); }

  Machine machine;
  Plan<char> plan;
};

}  // namespace firn::lifetimes::testing
