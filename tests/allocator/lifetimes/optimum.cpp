#include "tests/allocator/lifetimes/optimum.h"

#include <algorithm>
#include <array>
#include <unordered_map>

namespace firn::program {

namespace {

constexpr unsigned blocks_most = 5;
constexpr uint8_t nobody = 5;   // no transfer
constexpr uint8_t wasted = 6;   // of bytes that have changed since
constexpr uint8_t dead = 7;     // of a block that has died since: its page is still taken
constexpr uint8_t never = 255;

struct State {
  uint8_t kernel = 0;
  uint8_t left = 0;  // of it; 0: it waits
  std::array<uint8_t, blocks_most> dirty{}, clean{};
  uint8_t out = nobody, out_left = 0, in = nobody, in_left = 0;

  uint64_t key() const {
    uint64_t key = kernel | static_cast<uint64_t>(left) << 5;
    unsigned at = 9;
    for (unsigned b = 0; b < blocks_most; ++b, at += 4)
      key |= static_cast<uint64_t>(dirty[b] | clean[b] << 2) << at;
    for (uint8_t field : {out, out_left, in, in_left}) {
      key |= static_cast<uint64_t>(field) << at;
      at += 3;
    }
    return key;
  }
  static State of(uint64_t key) {
    State s;
    const auto take = [&](unsigned bits) {
      const auto value = static_cast<uint8_t>(key & ((1u << bits) - 1));
      key >>= bits;
      return value;
    };
    s.kernel = take(5);
    s.left = take(4);
    for (unsigned b = 0; b < blocks_most; ++b) {
      s.dirty[b] = take(2);
      s.clean[b] = take(2);
    }
    s.out = take(3);
    s.out_left = take(3);
    s.in = take(3);
    s.in_left = take(3);
    return s;
  }
};

class Search {
 public:
  Search(const Kernels& program, unsigned periods, const TinyMachine& machine);
  Optimum run(uint64_t states_most);

 private:
  struct Kernel {
    uint8_t ns = 0, set = 0;  // set: pages of all it uses
    std::array<bool, blocks_most> uses{}, writes{}, born{}, dies{};
    std::array<bool, blocks_most> lives{};    // before it runs, as what it is then
    std::array<uint8_t, blocks_most> next{};  // kernel, from this on, that uses the same bytes
    std::array<uint8_t, blocks_most> ends{};  // first kernel, from this on, before which they die
  };
  unsigned taken(const State& s) const;
  uint8_t next_kernel(const State& s) const {
    return static_cast<uint8_t>(s.kernel + (s.left > 0));
  }
  bool held(const State& s, unsigned b) const { return s.left > 0 && kernels_[s.kernel].uses[b]; }
  bool drop(State& s, unsigned pages, unsigned beyond, const Kernel* spares) const;
  bool start(State& s) const;
  unsigned least(const State& s) const;
  void expand(const State& s, unsigned time);
  void go_on(State s, unsigned time);
  void push(const State& s, unsigned time);

  const TinyMachine machine_;
  const size_t count_, period_;
  std::array<uint8_t, blocks_most> size_{};
  std::vector<Kernel> kernels_;
  std::vector<unsigned> work_;  // from each kernel on
  std::unordered_map<uint64_t, unsigned> best_;  // the earliest, of each state
  unsigned total_ = 0;  // what the states before this have in total at least is looked at
  std::vector<std::vector<std::pair<uint64_t, unsigned>>> queue_;  // by the least total time
};

Search::Search(const Kernels& program, unsigned periods, const TinyMachine& machine)
    : machine_(machine), count_(program.blocks.size()), period_(program.kernels.size()) {
  for (unsigned b = 0; b < count_; ++b) size_[b] = static_cast<uint8_t>(program.blocks[b].size);
  const size_t n = period_ * periods;
  kernels_.resize(n + 1);
  work_.assign(n + 1, 0);
  for (size_t k = 0; k < n; ++k) {
    Kernel& kernel = kernels_[k];
    const size_t in_period = k % period_;
    kernel.ns = static_cast<uint8_t>(program.kernels[in_period].ns);
    for (const auto& use : program.kernels[in_period].uses) {
      kernel.uses[use.block] = true;
      kernel.writes[use.block] = use.write;
      kernel.set = static_cast<uint8_t>(kernel.set + size_[use.block]);
      const Kernels::Block& block = program.blocks[use.block];
      kernel.born[use.block] = !block.persistent && block.born == in_period;
      kernel.dies[use.block] = !block.persistent && block.dies == in_period;
    }
    for (unsigned b = 0; b < count_; ++b) {
      const Kernels::Block& block = program.blocks[b];
      kernel.lives[b] = block.persistent || (block.born < in_period && in_period <= block.dies);
    }
  }
  for (unsigned b = 0; b < blocks_most; ++b) kernels_[n].next[b] = kernels_[n].ends[b] = never;
  for (size_t k = n; k-- > 0;) {
    work_[k] = work_[k + 1] + kernels_[k].ns;
    for (unsigned b = 0; b < blocks_most; ++b) {
      Kernel& kernel = kernels_[k];
      kernel.next[b] = kernel.uses[b] ? static_cast<uint8_t>(k) : kernels_[k + 1].next[b];
      kernel.ends[b] = kernel.dies[b] ? static_cast<uint8_t>(k + 1) : kernels_[k + 1].ends[b];
      if (kernel.born[b]) kernel.next[b] = never;  // other bytes
    }
  }
}

unsigned Search::taken(const State& s) const {
  unsigned taken = (s.out == dead) + (s.in != nobody);
  for (unsigned b = 0; b < count_; ++b) taken += s.dirty[b] + s.clean[b];
  return taken;
}

/// Drops what is clean and used after kernel `beyond`, the last used first, until so many pages
/// are free.
bool Search::drop(State& s, unsigned pages, unsigned beyond, const Kernel* spares) const {
  unsigned now = taken(s);
  const Kernel& next = kernels_[next_kernel(s)];
  while (now + pages > machine_.capacity) {
    unsigned best = blocks_most;
    for (unsigned b = 0; b < count_; ++b)
      if (s.clean[b] && !held(s, b) && !(spares && spares->uses[b]) && next.next[b] > beyond &&
          (best == blocks_most || next.next[b] > next.next[best]))
        best = b;
    if (best == blocks_most) return false;
    --s.clean[best];
    --now;
  }
  return true;
}

/// The kernel that waits, if all it uses is there and there is room for what is born.
bool Search::start(State& s) const {
  const Kernel& kernel = kernels_[s.kernel];
  unsigned births = 0;
  for (unsigned b = 0; b < count_; ++b) {
    if (kernel.born[b])
      births += size_[b];
    else if (kernel.uses[b] && s.dirty[b] + s.clean[b] < size_[b])
      return false;
  }
  if (!drop(s, births, 0, &kernel)) return false;
  for (unsigned b = 0; b < count_; ++b) {
    if (!kernel.writes[b]) continue;
    s.dirty[b] = size_[b];
    s.clean[b] = 0;
    if (s.out == b) s.out = wasted;
  }
  s.left = kernel.ns;
  return true;
}

/// A bound from below of the time to the end: all kernels from k on run after what is away of their
/// blocks was read, and after what is dirty was written of which there is no room beside their own.
unsigned Search::least(const State& s) const {
  unsigned least = s.left + work_[next_kernel(s)];
  const unsigned from = next_kernel(s);
  const unsigned to = std::min<unsigned>(from + static_cast<unsigned>(period_),
                                         static_cast<unsigned>(kernels_.size() - 1));
  const Kernel& next = kernels_[from];
  for (unsigned k = from; k < to; ++k) {
    const Kernel& kernel = kernels_[k];
    unsigned reads = 0, beside = 0;
    const bool out_beside = s.out < nobody && !kernel.uses[s.out];
    for (unsigned b = 0; b < count_; ++b) {
      if (!next.lives[b]) continue;
      if (next.next[b] <= k)
        reads += static_cast<unsigned>((size_[b] - s.dirty[b] - s.clean[b] - (s.in == b)) *
                                       machine_.in_ns);
      if (!kernel.uses[b] && next.ends[b] > k) beside += s.dirty[b];
    }
    if (reads || (s.in != nobody && next.next[s.in] <= k)) reads += s.in_left;
    unsigned writes = 0;
    if (kernel.set + beside > machine_.capacity) {
      const unsigned pages = kernel.set + beside - static_cast<unsigned>(machine_.capacity);
      writes = static_cast<unsigned>(pages * machine_.out_ns);
      if (s.out != nobody) writes += s.out_left;
      if (out_beside) writes -= static_cast<unsigned>(machine_.out_ns);
    }
    least = std::max(least, std::max(reads, writes) + work_[k]);
  }
  return least;
}

void Search::push(const State& s, unsigned time) {
  auto [it, is_new] = best_.try_emplace(s.key(), time);
  if (!is_new && it->second <= time) return;
  it->second = time;
  const unsigned total = std::max(total_, time + least(s));
  if (total >= queue_.size()) queue_.resize(total + 64);
  queue_[total].push_back({s.key(), time});
}

/// To the next instant at which something ends.
void Search::go_on(State s, unsigned time) {
  unsigned pass = never;
  if (s.left) pass = std::min<unsigned>(pass, s.left);
  if (s.out != nobody) pass = std::min<unsigned>(pass, s.out_left);
  if (s.in != nobody) pass = std::min<unsigned>(pass, s.in_left);
  if (pass == never) return;
  if (s.out != nobody && (s.out_left = static_cast<uint8_t>(s.out_left - pass)) == 0) {
    if (s.out < nobody) {
      --s.dirty[s.out];
      ++s.clean[s.out];
    }
    s.out = nobody;
  }
  if (s.in != nobody && (s.in_left = static_cast<uint8_t>(s.in_left - pass)) == 0) {
    ++s.clean[s.in];
    s.in = nobody;
  }
  if (s.left && (s.left = static_cast<uint8_t>(s.left - pass)) == 0) {
    const Kernel& kernel = kernels_[s.kernel++];
    for (unsigned b = 0; b < count_; ++b) {
      if (!kernel.dies[b]) continue;
      s.dirty[b] = s.clean[b] = 0;
      if (s.out == b) s.out = dead;
    }
  }
  push(s, time + pass);
}

void Search::expand(const State& s, unsigned time) {
  State with[2] = {s, s};
  unsigned ways = 1;
  if (!s.left && start(with[1])) {
    const auto& born = kernels_[s.kernel].born;
    // Waiting can only be better where room for births could be had for something else meanwhile.
    ways = std::any_of(born.begin(), born.end(), [](bool b) { return b; }) ? 2 : 1;
    if (ways == 1) with[0] = with[1];
  }
  for (unsigned way = 0; way < ways; ++way) {
    const State& begun = with[way];
    const Kernel* runs = begun.left ? &kernels_[begun.kernel] : nullptr;
    for (unsigned out = 0; out <= count_; ++out) {
      State a = begun;
      if (out < count_) {
        if (a.out != nobody || !a.dirty[out] || (runs && runs->writes[out])) continue;
        a.out = static_cast<uint8_t>(out);
        a.out_left = static_cast<uint8_t>(machine_.out_ns);
      }
      go_on(a, time);
      if (a.in != nobody) continue;
      const Kernel& next = kernels_[next_kernel(a)];
      unsigned in = blocks_most;
      for (unsigned b = 0; b < count_; ++b)
        if (next.lives[b] && a.dirty[b] + a.clean[b] < size_[b] && next.next[b] != never &&
            (in == blocks_most || next.next[b] < next.next[in]))
          in = b;
      if (in == blocks_most || !drop(a, 1, next.next[in], nullptr)) continue;
      a.in = static_cast<uint8_t>(in);
      a.in_left = static_cast<uint8_t>(machine_.in_ns);
      go_on(a, time);
    }
  }
}

Optimum Search::run(uint64_t states_most) {
  State s;
  uint64_t room = machine_.warm ? machine_.capacity : 0;
  for (unsigned b = 0; b < count_; ++b)
    if (kernels_[0].lives[b] && !kernels_[0].born[b] && size_[b] <= room) {
      s.dirty[b] = size_[b];
      room -= size_[b];
    }
  push(s, 0);
  Optimum result;
  for (; total_ < queue_.size(); ++total_)
    for (size_t i = 0; i < queue_[total_].size(); ++i) {
      const auto [key, time] = queue_[total_][i];
      if (best_[key] != time) continue;
      if (++result.states > states_most) return result;
      const State now = State::of(key);
      if (now.kernel + 1u == kernels_.size()) {
        result.ns = time;
        return result;
      }
      expand(now, time);
    }
  return result;
}

}  // namespace

Optimum optimum(const Kernels& program, unsigned periods, const TinyMachine& machine,
                uint64_t states_most) {
  return Search(program, periods, machine).run(states_most);
}

}  // namespace firn::program
