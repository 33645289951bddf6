#include "allocator/record/iteration.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "allocator/lifetimes/history.h"

namespace firn::record {

namespace {

constexpr uint64_t never = UINT64_MAX;
constexpr uint32_t none = UINT32_MAX;
// Smaller blocks share frames: they take no room that others could have.
constexpr uint64_t kept_bytes_least = 1u << 20;
// As many events as the history keeps; older ones cannot belong to a period that it finds.
constexpr size_t events_learned_most = 3u << 20;

/// Each block's life, in events, and the bytes alive between two kernels.
struct Lives {
  struct Block {
    uint64_t born = never, freed = never;  // events
    uint32_t born_before = none, freed_before = none;  // the first kernel recorded later
  };
  /// Between kernel g - 1 and kernel g: where the least is alive. A position p lies before event p.
  struct Gap {
    uint64_t position = 0, live_bytes = 0;
  };
  std::vector<Block> blocks;
  std::vector<Gap> gaps;
  std::vector<uint64_t> kernel_at;  // events

  explicit Lives(const Recording& recording) : blocks(recording.block_bytes().size()) {
    uint64_t live_bytes = 0;
    gaps.push_back({0, 0});
    for (size_t i = 0; i < recording.events().size(); ++i) {
      const Recording::Event event = recording.events()[i];
      if (event.kind() == Recording::Kind::kernel) {
        kernel_at.push_back(i);
        gaps.push_back({i + 1, live_bytes});
        continue;
      }
      Block& block = blocks[event.index];
      const uint64_t bytes = recording.block_bytes()[event.index];
      if (event.kind() == Recording::Kind::allocate) {
        block.born = i;
        block.born_before = static_cast<uint32_t>(kernel_at.size());
        live_bytes += bytes;
      } else {
        block.freed = i;
        block.freed_before = static_cast<uint32_t>(kernel_at.size());
        live_bytes -= bytes;
      }
      if (live_bytes < gaps.back().live_bytes) gaps.back() = {i + 1, live_bytes};
    }
  }
};

/// Feeds the recording to a History and counts, at every kernel, the kernels since its twin.
class Periods {
 public:
  explicit Periods(const Recording& recording)
      : recording_(recording), lives_(recording.block_bytes().size(), 0) {
    const size_t count = recording.events().size();
    const size_t begin = count - std::min(count, events_learned_most);
    for (size_t i = 0; i < count; ++i) {
      const Recording::Event event = recording.events()[i];
      if (i < begin) {
        skip(event);
      } else {
        feed(event);
      }
    }
  }

  /// The period, in kernels, that most device time supports; 0: none. `last`: the last kernel
  /// there.
  size_t best(uint32_t& last) const {
    size_t best = 0;
    uint64_t most = 0;
    for (const auto& [period, seen] : seen_)
      if (seen.ns > most) {
        most = seen.ns;
        best = period;
        last = seen.last;
      }
    return best;
  }

 private:
  struct Seen {
    uint64_t ns = 0;  // device time of the kernels there, and 1 ns for each
    uint32_t last = 0;
  };

  void skip(Recording::Event event) {
    if (event.kind() == Recording::Kind::kernel) ends_.push_back(0);
    if (event.kind() == Recording::Kind::free) dead_before_.push_back(event.index);
  }

  void feed(Recording::Event event) {
    if (!dead_before_.empty()) {
      for (uint32_t block : dead_before_) lives_[block] = none;
      dead_before_.clear();
    }
    switch (event.kind()) {
      case Recording::Kind::allocate:
        lives_[event.index] = history_.allocate(recording_.block_bytes()[event.index]);
        break;
      case Recording::Kind::free:
        if (lives_[event.index] && lives_[event.index] != none) history_.free(lives_[event.index]);
        lives_[event.index] = none;
        break;
      case Recording::Kind::kernel: {
        const Recording::Kernel& kernel = recording_.kernels()[event.index];
        for (uint32_t block : recording_.inputs(kernel)) touch(block, false);
        for (uint32_t block : recording_.outputs(kernel)) touch(block, true);
        ends_.push_back(history_.now());
        look(event.index);
        break;
      }
    }
  }

  void touch(uint32_t block, bool write) {
    Life& life = lives_[block];
    if (life == none) return;  // freed inside the operator
    if (!life) life = history_.allocate(recording_.block_bytes()[block]);  // before the first event
    history_.touch(life, write);
  }

  void look(uint32_t kernel) {
    if (!history_.known() || history_.period() == 0) return;
    const uint64_t twin = history_.now() - history_.period();
    const auto end = std::lower_bound(ends_.begin(), ends_.end(), twin);
    if (end == ends_.end() || *end != twin || twin == 0) return;
    const auto twin_kernel = static_cast<size_t>(end - ends_.begin());
    if (recording_.kernels()[twin_kernel].name != recording_.kernels()[kernel].name) return;
    Seen& seen = seen_[kernel - twin_kernel];
    seen.ns += recording_.kernels()[kernel].duration_ns + 1;
    seen.last = kernel;
  }

  const Recording& recording_;
  History history_;
  std::vector<Life> lives_;             // by block; 0: not yet, none: freed
  std::vector<uint32_t> dead_before_;   // freed before the first event that is fed
  std::vector<uint64_t> ends_;          // by kernel: the history's events
  std::map<size_t, Seen> seen_;         // by kernels in the period
};

/// Kernels [begin, end), and between which events they lie.
struct Window {
  uint32_t begin = 0, end = 0;
  uint64_t first_event = 0, end_event = 0;
  uint32_t period = 0;  // 0: none was found
};

Window find_window(const Recording& recording, const Lives& lives) {
  const auto kernels = static_cast<uint32_t>(recording.kernels().size());
  const Window everything{0, kernels, 0, recording.events().size(), 0};
  uint32_t last = 0;
  const auto period = static_cast<uint32_t>(Periods(recording).best(last));
  if (period == 0 || period > kernels) return everything;
  // The last kernel that ends a period whose operators equal those of the one before; not beyond
  // what the history knew, as a thousand copies in a row have every period.
  uint32_t run = 0, end = 0;
  for (uint32_t k = period; k <= last; ++k) {
    run = recording.kernels()[k].name == recording.kernels()[k - period].name ? run + 1 : 0;
    if (run >= period) end = k + 1;
  }
  if (end == 0) end = std::max(last + 1, period);
  // Up to one period back: after the last kernel the next iteration's frees are missing.
  uint32_t best = end;
  for (uint32_t at = end; at >= end - period && at >= period; --at)
    if (lives.gaps[at].live_bytes < lives.gaps[best].live_bytes) best = at;
  return {best - period, best, lives.gaps[best - period].position, lives.gaps[best].position,
          period};
}

/// Makes the tensors of a window.
class Cutter {
 public:
  Cutter(const Recording& recording, const Lives& lives, const Window& window)
      : recording_(recording), lives_(lives), window_(window) {}

  Iteration cut() {
    out_.periodic = window_.period != 0;
    find_uses();
    for (uint32_t block = 0; block < lives_.blocks.size(); ++block) sort(block);
    pair(true);
    pair(false);
    for (uint32_t block : heads_)
      if (block != none && uses_.count(block)) add(block, true);
    for (uint32_t block : tails_)
      if (block != none) add(block, true);
    for (uint32_t k = window_.begin; k < window_.end; ++k) add_kernel(k);
    return std::move(out_);
  }

 private:
  struct Uses {
    uint32_t first, last;  // kernels
  };

  void find_uses() {
    for (uint32_t k = window_.begin; k < window_.end; ++k)
      for (uint32_t block : recording_.uses(recording_.kernels()[k]))
        uses_.try_emplace(block, Uses{k, k}).first->second.last = k;
  }

  void sort(uint32_t block) {
    const Lives::Block& life = lives_.blocks[block];
    const auto alive_at = [&](uint64_t event) { return life.born < event && life.freed >= event; };
    const bool there_at_begin = alive_at(window_.first_event);
    const bool there_at_end = alive_at(window_.end_event);
    if (there_at_begin && there_at_end)
      add(block, true);
    else if (there_at_begin)
      heads_.push_back(block);
    else if (there_at_end)
      tails_.push_back(block);
    else if (const auto used = uses_.find(block); used != uses_.end()) {
      add(block, false);
      keep(block, used->second.last);
    }
  }

  /// For a block that stays allocated after its last use: the last kernel before its free names it
  /// as an input, for that reason alone.
  void keep(uint32_t block, uint32_t last_use) {
    const uint32_t freed_before = lives_.blocks[block].freed_before;
    if (recording_.block_bytes()[block] < kept_bytes_least || freed_before == none) return;
    if (freed_before > last_use + 1 && freed_before <= window_.end)
      kept_[freed_before - 1].push_back(block);
  }

  void add(uint32_t block, bool persistent) {
    tensor_of_[block] = static_cast<uint32_t>(out_.tensors.size());
    out_.tensors.push_back({recording_.block_bytes()[block], persistent});
  }

  /// A block freed in the iteration (a head) and one left to the next (a tail) can be one tensor if
  /// the head's last use is before the tail's first.
  bool follows(uint32_t head, uint32_t tail) const {
    const auto before = uses_.find(head), after = uses_.find(tail);
    return before == uses_.end() || after == uses_.end() ||
           before->second.last < after->second.first;
  }

  /// Pairs blocks of the same allocation in two iterations, if `exact`; else of the same size.
  void pair(bool exact) {
    const auto key = [&](uint32_t block, uint32_t later) {
      const uint32_t at = exact ? lives_.blocks[block].born_before + later : 0;
      return std::pair{at, recording_.block_bytes()[block]};
    };
    std::map<std::pair<uint32_t, uint64_t>, std::vector<size_t>> waiting;  // indices in heads_
    for (size_t i = heads_.size(); i-- > 0;)
      if (heads_[i] != none) waiting[key(heads_[i], window_.period)].push_back(i);
    for (uint32_t& tail : tails_) {
      if (tail == none) continue;
      const auto found = waiting.find(key(tail, 0));
      if (found == waiting.end() || found->second.empty()) continue;
      uint32_t& head = heads_[found->second.back()];
      if (!follows(head, tail)) continue;
      found->second.pop_back();
      add(head, true);
      tensor_of_[tail] = tensor_of_[head];
      head = tail = none;
    }
  }

  uint64_t duration(uint32_t kernel) const {
    const auto& kernels = recording_.kernels();
    if (kernels[kernel].duration_ns) return kernels[kernel].duration_ns;
    // The last kernels may have been unfinished when the program ended.
    if (window_.period && kernel >= window_.period &&
        kernels[kernel - window_.period].name == kernels[kernel].name)
      return kernels[kernel - window_.period].duration_ns;
    return 0;
  }

  void add_kernel(uint32_t number) {
    const Recording::Kernel& kernel = recording_.kernels()[number];
    const uint64_t ns = duration(number);
    if (ns == 0) ++out_.untimed;
    const auto kept = kept_.find(number);
    const size_t kept_count = kept == kept_.end() ? 0 : kept->second.size();
    out_.kernels.push_back({std::max<uint64_t>(ns, 1), out_.uses.size(), number,
                            static_cast<uint32_t>(kernel.inputs + kept_count), kernel.outputs});
    for (uint32_t block : recording_.inputs(kernel)) out_.uses.push_back(tensor_of_.at(block));
    for (size_t i = 0; i < kept_count; ++i) out_.uses.push_back(tensor_of_.at(kept->second[i]));
    for (uint32_t block : recording_.outputs(kernel)) out_.uses.push_back(tensor_of_.at(block));
  }

  const Recording& recording_;
  const Lives& lives_;
  const Window window_;
  std::unordered_map<uint32_t, Uses> uses_;            // in the window, by block
  std::unordered_map<uint32_t, uint32_t> tensor_of_;   // by block
  std::unordered_map<uint32_t, std::vector<uint32_t>> kept_;  // by kernel: additional inputs
  std::vector<uint32_t> heads_, tails_;                // blocks alive at one of the window's ends
  Iteration out_;
};

}  // namespace

Iteration cut_iteration(const Recording& recording) {
  if (recording.kernels().empty()) return {};
  const Lives lives(recording);
  return Cutter(recording, lives, find_window(recording, lives)).cut();
}

}  // namespace firn::record
