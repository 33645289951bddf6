// How a plan is carried out: which block is fetched, copied out ahead, evicted, written to the
// store or read from it next, and when that has to wait. The engine (engine/tiers.h) and rehearsals of it
// (stage.h) run this same code over tiers of their own, so that a rehearsal rates what a run does.
//
// A plan is decide()'s answer in terms of the tiers' blocks. Every step of it is one that could be
// taken without a plan too: where the program does otherwise, it costs time, and never a byte.
//
// Owns: nothing; the plan and the tiers are the caller's, and so is their lock (T::lock()). No
// clock. Pages are device memory's (memory/units.h); what is on its way, and host memory, count in
// bytes.
//
// An example: the device holds A (farthest use, clean) and B (next use), C is away and used soon.
//   fetch_ahead()  finds C first in `fetch`, and no room for it: A is evicted, for it is used after
//                  C and leaves without I/O. Its pages are soon free; C is fetched into them.
//   clean_ahead()  copies out what `leaving` names, while little is on its way out: B, if so.
//   evict()        is for a block that is waited for: clean blocks used after the window, then
//                  blocks that are being copied out, then any; in the end the oldest.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "allocator/lifetimes/channel.h"
#include "allocator/lifetimes/decide.h"
#include "allocator/lifetimes/plan.h"
#include "firn/thread_safety.h"

namespace firn::lifetimes {

/// The means of carrying a plan out.
template <class T>
concept Tiers = requires(T t, typename T::Handle block, uint64_t n, size_t i) {
  // The lock that guards all of it.
  T::lock();
  // A block: whether a candidate means it still, and its pages. `clean`: at its tail, on the device
  // and valid elsewhere: they leave without I/O. `mapped`: with those that leave; `coming`: on
  // their way, not yet mapped.
  { t.life(block) } -> std::convertible_to<uint32_t>;
  { t.touched(block) } -> std::convertible_to<uint64_t>;
  { t.next_use(block) } -> std::convertible_to<uint64_t>;
  { t.size(block) } -> std::convertible_to<uint64_t>;
  { t.mapped(block) } -> std::convertible_to<uint64_t>;
  { t.coming(block) } -> std::convertible_to<uint64_t>;
  { t.clean(block) } -> std::convertible_to<uint64_t>;
  // Leaving. `unused`: its uses are over (watch_uses() sees to it that this is found out);
  // `aside`: a use of it is waited for by nobody. `copied_out`: blocks that are being copied out
  // ahead; `copied_tail`: pages at the block's tail that are, or are clean.
  { t.may_leave(block) } -> std::same_as<bool>;
  { t.unused(block) } -> std::same_as<bool>;
  t.watch_uses(block);
  { t.aside(block) } -> std::same_as<bool>;
  { t.copied_out() } -> std::convertible_to<std::vector<typename T::Handle>>;
  { t.is_copied_out(block) } -> std::same_as<bool>;
  { t.copied_tail(block) } -> std::convertible_to<uint64_t>;
  // Acts: at least so many pages of it leave (how many do: 0 none), or are made clean; the copies
  // out are given up; blocks whose copies are done give their pages back.
  { t.make_leave(block, n) } -> std::convertible_to<uint64_t>;
  { t.make_clean(block, n) } -> std::same_as<bool>;
  t.stop_cleaning(block);
  t.finish_leaving();
  // Arriving. `at_host`: the processor uses it, and it comes behind that. `arrivable`: pages of it,
  // from the head, that there is room for; `soon`: pages free
  // once all that is on its way out has left. Acts: ready blocks give their pages; the next span
  // of the block begins to arrive.
  { t.may_arrive(block) } -> std::same_as<bool>;
  { t.at_host(block) } -> std::same_as<bool>;
  { t.arrivable(block) } -> std::convertible_to<uint64_t>;
  { t.soon() } -> std::convertible_to<uint64_t>;
  t.reclaim_ready();
  { t.fetch(block) } -> std::same_as<bool>;
  // Pieces of a block, from its head. `stored`: in the store or on the way there; `unwritten`: in
  // host memory, and not stored; `only_stored`: in the store alone. Acts: a host copy that is used
  // after `n`, or whose bytes stay on the device until event `window`, is given up; a piece is read
  // into host memory.
  { t.pieces(block) } -> std::convertible_to<size_t>;
  { t.piece_pages(block, i) } -> std::convertible_to<uint64_t>;
  { t.stored(block, i) } -> std::same_as<bool>;
  { t.unwritten(block, i) } -> std::same_as<bool>;
  { t.only_stored(block, i) } -> std::same_as<bool>;
  { t.drop_host_copy(n, n) } -> std::same_as<bool>;
  // Of unwritten pieces: the one that has been in host memory for longest, and the one whose block
  // is used last. Whoever has one writes it. `host_wanted`: something waits for host memory.
  { t.unwritten_longest() } -> std::same_as<std::optional<PieceOf<typename T::Handle>>>;
  { t.unwritten_last_used() } -> std::same_as<std::optional<PieceOf<typename T::Handle>>>;
  { t.host_wanted() } -> std::same_as<bool>;
  { t.read_to_host(block, i) } -> std::same_as<bool>;
  // Bytes: a span's, and host memory's, all, taken, and spare (see host_reserve()); on their way
  // in, out, to the store and from it; `store_bound`: in host memory, not yet written.
  { t.span_bytes() } -> std::convertible_to<uint64_t>;
  { t.host_bytes() } -> std::convertible_to<uint64_t>;
  { t.host_used() } -> std::convertible_to<uint64_t>;
  { t.spare_bytes() } -> std::convertible_to<uint64_t>;
  { t.bytes_in() } -> std::convertible_to<uint64_t>;
  { t.bytes_out() } -> std::convertible_to<uint64_t>;
  { t.bytes_written() } -> std::convertible_to<uint64_t>;
  { t.bytes_read() } -> std::convertible_to<uint64_t>;
  { t.store_bound() } -> std::convertible_to<uint64_t>;
  { t.page_bytes() } -> std::convertible_to<uint64_t>;
  // A channel's measured speed; 0: not known yet.
  { t.bytes_s(Channel{}) } -> std::convertible_to<double>;
  // The program: the number of the event that was last, and the time that the store was reading,
  // of the last periods, 0 to 1.
  { t.now() } -> std::convertible_to<uint64_t>;
  { t.reading_part() } -> std::convertible_to<double>;
  { t.has_store() } -> std::same_as<bool>;
};

/// Made where it is used; keeps nothing. T: a name of the tiers, copied.
template <class T>
class CarryOut {
 public:
  using Handle = typename T::Handle;
  using ThePlan = Plan<Handle>;
  using Candidate = typename ThePlan::Candidate;
  using Name = Named<Handle>;

  CarryOut(ThePlan& plan, T tiers) : plan_(plan), t_(tiers) { static_assert(Tiers<T>); }

  /// Takes a decision for the device, made of what was there at event `now`. `blocks`: of its first
  /// items; the others are not born.
  void adopt(const Decision& decision, std::span<const Name> blocks, uint64_t now)
      FIRN_REQUIRES(T::lock());
  /// The same for the device and host memory together: what is to be in the store, and, where the
  /// latter `keeps` any pages, what comes from there ahead.
  void adopt_for_memory(const Decision& decision, std::span<const Name> blocks, uint64_t now,
                        uint64_t keeps)
      FIRN_REQUIRES(T::lock());

  uint64_t in_flight_most() const FIRN_REQUIRES(T::lock()) {
    return lifetimes::in_flight_most(t_.span_bytes(), t_.host_bytes());
  }
  /// Bytes of host memory that copies read ahead leave to transfers.
  uint64_t transfers_most() const FIRN_REQUIRES(T::lock()) {
    return lifetimes::transfers_most(t_.span_bytes(), t_.host_bytes(), !plan_.leaving.empty());
  }
  /// Do transfers only pass through host memory, with no room to keep anything?
  bool host_is_passage() const FIRN_REQUIRES(T::lock()) {
    const uint64_t host = t_.host_bytes();
    return host <= host_reserve(t_.span_bytes(), host, t_.spare_bytes());
  }
  /// Is the way in free enough for what is not urgent?
  bool may_bring_ahead() const FIRN_REQUIRES(T::lock()) {
    return t_.bytes_in() < ahead_most(Channel::host_in, in_flight_most());
  }
  bool meant(const Name& name) const FIRN_REQUIRES(T::lock()) {
    return t_.life(name.block) == name.life && t_.touched(name.block) == name.touched;
  }

  // Each begins what can be begun now. True: something was.
  bool fetch_ahead() FIRN_REQUIRES(T::lock());
  bool clean_ahead() FIRN_REQUIRES(T::lock());
  bool read_ahead() FIRN_REQUIRES(T::lock());
  /// Is there staging to spare, so that copies made ahead take none from those that wait for it?
  bool room_to_clean() FIRN_REQUIRES(T::lock());

  // Each evicts blocks, as many pages as asked for, but `except`, and returns how many will leave.
  /// By the plan; what is short then goes by age, which the tiers know.
  uint64_t evict(uint64_t pages, std::optional<Handle> except) FIRN_REQUIRES(T::lock());
  /// Blocks that are used after event `beyond`, the farthest first; `clean_only`: without I/O.
  uint64_t evict_farthest(uint64_t pages, std::optional<Handle> except, uint64_t beyond,
                          bool clean_only) FIRN_REQUIRES(T::lock());
  /// Blocks that are being copied out, as far as they are: they are free the soonest.
  uint64_t evict_going(uint64_t pages, std::optional<Handle> except, uint64_t beyond)
      FIRN_REQUIRES(T::lock());

  /// The next piece to be written to the store: a planned one first; then, where transfers only
  /// pass through host memory, in the order of arrival; else, where host memory is wanted, the one
  /// that is used last.
  std::optional<PieceOf<Handle>> next_write() FIRN_REQUIRES(T::lock());

 private:
  // Candidates of a plan that are skipped because they are in use.
  static constexpr size_t in_use_most = 64;
  // If the SSDs are reading for more than this part of the time, what comes from there replaces
  // what must come from there too only in the last 1/swap_part of a period before its use.
  static constexpr double reading_most = .8;
  static constexpr uint64_t swap_part = 128;
  // A link has at most so many seconds of work ahead of need: ten times as long as it takes to give
  // it more. But always 1/ahead_part of a span: it seems slow, too, where its ends are seen late.
  static constexpr double ahead_s = .01;
  static constexpr uint64_t ahead_part = 8;

  static Candidate candidate(const Decision& decision, std::span<const Name> blocks, uint64_t now,
                     uint32_t item, uint64_t pages) {
    const uint64_t next = decision.next_use[item];
    return {blocks[item], next == no_use ? next : now + next, pages};
  }
  uint64_t give_way_after(const Candidate& candidate) const FIRN_REQUIRES(T::lock());
  uint64_t ahead_most(Channel channel, uint64_t most) const FIRN_REQUIRES(T::lock());
  std::optional<PieceOf<Handle>> planned_write() FIRN_REQUIRES(T::lock());

  ThePlan& plan_;
  mutable T t_;
};

template <class T>
void CarryOut<T>::adopt(const Decision& decision, std::span<const Name> blocks, uint64_t now) {
  plan_.fetch.clear();
  plan_.farthest.clear();
  plan_.leaving.clear();
  plan_.reads.clear();
  plan_.writes.clear();
  plan_.evicted = plan_.cleaned = plan_.read = plan_.written = 0;
  plan_.write_looked = false;
  for (const uint32_t i : decision.fetch)
    plan_.fetch.push_back(candidate(decision, blocks, now, i, t_.size(blocks[i].block)));
  // A part is no use to the kernel yet: worth its room only if much less is left to come then.
  if (!plan_.fetch.empty()) {
    Candidate& last = plan_.fetch.back();
    last.pages = decision.last_pages;
    if (last.pages < t_.size(last.block) &&
        last.pages < t_.mapped(last.block) + in_flight_most() / t_.page_bytes())
      plan_.fetch.pop_back();
  }
  for (const uint32_t i : decision.farthest)
    plan_.farthest.push_back(candidate(decision, blocks, now, i, 0));
  for (const Decision::Leaving& leaving : decision.leaving) {
    plan_.leaving.push_back(candidate(decision, blocks, now, leaving.item, leaving.pages));
    plan_.leaving.back().spare = leaving.spare;
  }
  plan_.window = plan_.memory_window = now + decision.window;
}

template <class T>
void CarryOut<T>::adopt_for_memory(const Decision& decision, std::span<const Name> blocks,
                                   uint64_t now, uint64_t keeps) {
  plan_.memory_window = now + decision.window;
  for (const uint32_t i : decision.fetch)
    if (keeps > 0) plan_.reads.push_back(candidate(decision, blocks, now, i, 0));
  for (const Decision::Leaving& leaving : decision.leaving) {
    plan_.writes.push_back(candidate(decision, blocks, now, leaving.item, leaving.pages));
    plan_.writes.back().spare = leaving.spare;
  }
}

/// Blocks used after this event leave for the candidate. Each such swap costs a read later: when
/// SSDs have little time left, an early swap takes it from reads that are needed.
template <class T>
uint64_t CarryOut<T>::give_way_after(const Candidate& candidate) const {
  if (t_.reading_part() < reading_most || !host_is_passage()) return candidate.next_use;
  const uint64_t now = t_.now();
  if (candidate.next_use <= now + plan_.period / swap_part) return candidate.next_use;
  return std::max(candidate.next_use, now + plan_.period);
}

/// Bytes on their way through the channel ahead of need, `most` at most: on a slow one few, for
/// whatever becomes urgent queues behind them.
template <class T>
uint64_t CarryOut<T>::ahead_most(Channel channel, uint64_t most) const {
  const auto soon = static_cast<uint64_t>(std::min(t_.bytes_s(channel) * ahead_s, 1e18));
  return soon == 0 ? most : std::min(most, std::max(soon, t_.span_bytes() / ahead_part));
}

/// Brings back what is used next, as long as the window has room for it and only clean blocks leave
/// for it. Little at a time: what becomes urgent must not queue behind it.
template <class T>
bool CarryOut<T>::fetch_ahead() {
  bool any = false;
  const uint64_t span = t_.span_bytes() / t_.page_bytes();
  size_t at_host = 0;  // candidates before the one considered
  while (at_host < plan_.fetch.size()) {
    Candidate& candidate = plan_.fetch[at_host];
    const Handle block = candidate.block;
    if (meant(candidate) && t_.at_host(block)) {
      ++at_host;
      continue;
    }
    const uint64_t there = t_.mapped(block) + t_.coming(block);
    const uint64_t next = std::min(span, t_.size(block) - there);
    if (!meant(candidate) || !t_.may_arrive(block) || there + next > candidate.pages) {
      plan_.fetch.erase(plan_.fetch.begin() + static_cast<std::ptrdiff_t>(at_host));
      continue;
    }
    if (!may_bring_ahead()) break;
    t_.stop_cleaning(block);
    if (t_.arrivable(block) < next) t_.reclaim_ready();
    if (t_.arrivable(block) == 0) {
      const uint64_t soon = t_.soon();
      if (soon < span) evict_farthest(span - soon, block, give_way_after(candidate), true);
      t_.finish_leaving();
    }
    if (!t_.fetch(block)) break;
    candidate.touched = t_.touched(block);
    any = true;
  }
  return any;
}

/// Copies out blocks that will leave, in that order, while the way out is idle: then they leave
/// without I/O. Blocks in use are skipped: their kernels may wait for other inputs for long.
template <class T>
bool CarryOut<T>::clean_ahead() {
  bool any = false;
  size_t in_use = 0;  // candidates between plan_.cleaned and the one considered
  const auto next = [&] { return plan_.cleaned + in_use; };
  while (next() < plan_.leaving.size()) {
    const uint64_t on_the_way = t_.bytes_out();
    if (on_the_way >= ahead_most(Channel::host_out, in_flight_most() / 2)) break;
    if (!room_to_clean()) break;
    const Candidate& candidate = plan_.leaving[next()];
    if (candidate.spare && t_.has_store() && host_is_passage() &&
        on_the_way + t_.store_bound() >= 2 * t_.span_bytes())
      break;
    const Handle block = candidate.block;
    if (meant(candidate) && t_.is_copied_out(block)) {  // on its way already
      if (++in_use > in_use_most) break;
      continue;
    }
    const auto pass_over = [&] { in_use > 0 ? ++in_use : ++plan_.cleaned; };
    if (!meant(candidate) || !t_.may_leave(block)) {
      pass_over();
      continue;
    }
    const uint64_t clean = t_.clean(block), covered = clean + t_.size(block) - t_.mapped(block);
    if (clean == t_.mapped(block) || covered >= candidate.pages) {
      pass_over();
      continue;
    }
    if (!t_.unused(block)) {
      t_.watch_uses(block);
      if (++in_use > in_use_most) break;
      continue;
    }
    if (t_.make_clean(block, std::min(candidate.pages - covered,
                                      4 * t_.span_bytes() / t_.page_bytes())))
      any = true;
    else
      pass_over();
  }
  return any;
}

template <class T>
bool CarryOut<T>::room_to_clean() {
  while (t_.host_used() + 2 * in_flight_most() > t_.host_bytes())
    if (!t_.drop_host_copy(plan_.memory_window, plan_.window)) return false;
  return true;
}

template <class T>
uint64_t CarryOut<T>::evict(uint64_t pages, std::optional<Handle> except) {
  uint64_t started = 0;
  if (!plan_.valid) return 0;
  for (const uint64_t beyond : {plan_.window, uint64_t{0}}) {
    if (started < pages) started += evict_farthest(pages - started, except, beyond, true);
    if (started < pages) started += evict_going(pages - started, except, beyond);
    if (started < pages) started += evict_farthest(pages - started, except, beyond, false);
  }
  return started;
}

template <class T>
uint64_t CarryOut<T>::evict_farthest(uint64_t pages, std::optional<Handle> except,
                                     uint64_t beyond, bool clean_only) {
  uint64_t started = 0;
  for (size_t i = plan_.evicted; i < plan_.farthest.size(); ++i) {
    const Candidate& candidate = plan_.farthest[i];
    if (started >= pages || candidate.next_use <= beyond) break;
    const Handle block = candidate.block;
    // (It does not come back without a touch, or an arrival, which counts as one.)
    const bool over = !meant(candidate) || t_.mapped(block) == 0;
    if (over && i == plan_.evicted) ++plan_.evicted;
    if (over || block == except || !t_.may_leave(block)) continue;
    uint64_t wanted = pages - started;
    if (clean_only) wanted = std::min(wanted, t_.clean(block));
    if (wanted == 0 || (clean_only && !t_.unused(block)) || t_.aside(block)) continue;
    started += t_.make_leave(block, wanted);
  }
  return started;
}

template <class T>
uint64_t CarryOut<T>::evict_going(uint64_t pages, std::optional<Handle> except,
                                  uint64_t beyond) {
  uint64_t started = 0;
  for (const Handle block : t_.copied_out()) {
    if (started >= pages) break;
    if (block == except || t_.next_use(block) <= beyond || t_.aside(block)) continue;
    const uint64_t going = t_.copied_tail(block);
    if (going > 0) started += t_.make_leave(block, std::min(going, pages - started));
  }
  return started;
}

template <class T>
auto CarryOut<T>::next_write() -> std::optional<PieceOf<Handle>> {
  if (const auto planned = planned_write()) return planned;
  if (host_is_passage())
    if (const auto longest = t_.unwritten_longest()) return longest;
  return t_.host_wanted() ? t_.unwritten_last_used() : std::nullopt;
}

/// From the blocks' tails.
template <class T>
auto CarryOut<T>::planned_write() -> std::optional<PieceOf<Handle>> {
  if (plan_.write_looked) return std::nullopt;
  for (size_t w = plan_.written; w < plan_.writes.size(); ++w) {
    const Candidate& candidate = plan_.writes[w];
    const Handle block = candidate.block;
    bool over = !meant(candidate);
    uint64_t covered = 0;
    for (size_t i = t_.pieces(block); i-- > 0 && !over;) {
      if (t_.stored(block, i)) covered += t_.piece_pages(block, i);
      over = covered >= candidate.pages;
    }
    if (over) {
      if (w == plan_.written) ++plan_.written;
      continue;
    }
    // A spare write waits until nothing else is written.
    if (candidate.spare && t_.bytes_written() > 0) return std::nullopt;
    for (size_t i = t_.pieces(block); i-- > 0;)
      if (t_.unwritten(block, i)) return PieceOf<Handle>{block, i};
  }
  plan_.write_looked = true;
  return std::nullopt;
}

/// Reads pieces that are only in the store into host memory, in the order of next use, where they
/// are worth more there than what it holds.
template <class T>
bool CarryOut<T>::read_ahead() {
  bool any = false;
  for (; plan_.read < plan_.reads.size(); ++plan_.read) {
    const Candidate& candidate = plan_.reads[plan_.read];
    if (!meant(candidate)) continue;
    for (size_t i = 0; i < t_.pieces(candidate.block); ++i) {
      if (!t_.only_stored(candidate.block, i)) continue;
      if (t_.bytes_read() >= in_flight_most()) return any;
      // Clear of what room_to_clean() keeps free, or it would be filled and emptied for ever.
      while (t_.host_used() + transfers_most() > t_.host_bytes())
        if (!t_.drop_host_copy(candidate.next_use, plan_.window)) return any;
      if (!t_.read_to_host(candidate.block, i)) return any;
      any = true;
    }
  }
  return any;
}

}  // namespace firn::lifetimes
