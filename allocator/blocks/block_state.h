// The life of a block: its states, the events that move it, and the one table of transitions. A
// transition that is not in the table aborts, naming block, state and event.
//
// A block's word (one atomic 64-bit integer) holds the state, flags and the number of holds, so
// that touching a resident block is one compare-and-swap, and spilling one can only begin when that
// compare-and-swap sees no hold.
#pragma once

#include <array>
#include <cstdint>

namespace firn {

enum class State : uint8_t {
  free,      // no allocation; the descriptor may be reused
  ready,     // freed by the program, frames still mapped: in its stream's cache
  resident,  // all frames mapped, bytes current on the device
  spilling,  // bytes are being copied out; spans are unmapped one by one
  hosted,    // some spans are unmapped; some piece's only copy elsewhere is in host memory
  spilled,   // some spans are unmapped; every piece has a valid copy in the store
  faulting,  // spans are mapped again, bytes on their way in
  dropped,   // unmapped; its bytes are nowhere, and its recipe makes them again (recipes.h)
  remaking,  // spans are mapped again, a thread makes its bytes again
  draining,  // freed by the program while parts were away, or on their way in
  lost,      // the last good copy could not be read back
};
inline constexpr int state_count = 11;

enum class Event : uint8_t {
  allocate,     // frames mapped for a new allocation
  reuse,        // a ready block serves a new allocation on its stream
  spill,        // guard: no holds, seen by an operator, not pinned
  copied_out,   // the leaving pieces are valid elsewhere, every use is over: spans unmapped
  drop,         // its recipe stands, every use is over: unmapped without a copy
  keep,         // touched, freed, failed, or no longer needed to leave: nothing was unmapped
  written,      // the last piece's write was verified complete
  host_write,   // the processor begins to write its pieces in host memory
  fault,        // wanted again: budget reserved, frames mapped at the same address
  unfault,      // frames could not be had or mapped, or only a part was prefetched
  arrived,      // every piece's copy is enqueued; using streams wait on its event
  read_failed,  // after re-reads by another path
  release,      // freed by the program
  drained,      // I/O of a freed block is over
  reclaim,      // a ready block's frames are unmapped for others
};
inline constexpr int event_count = 15;

inline constexpr const char* state_names[state_count] = {
    "free",     "ready",   "resident", "spilling", "hosted", "spilled",
    "faulting", "dropped", "remaking", "draining", "lost"};
inline constexpr const char* event_names[event_count] = {
    "allocate", "reuse",   "spill",   "copied_out",  "drop",    "keep",    "written", "host_write",
    "fault",    "unfault", "arrived", "read_failed", "release", "drained", "reclaim"};

struct Transition {
  State from;
  Event event;
  State to;
};

// copied_out goes to hosted; a block whose pieces are all in the store moves on by written at once.
// unfault goes to hosted for the same reason. A block of which only some spans have left is hosted
// or spilled too, and more of it may leave.
//
// allocator/README.md's table is made of these lines (tests/command/states_table.py): a comment is
// the last cell of the rows behind it. A touch is no transition, but has a row there.
inline constexpr Transition transitions[] = {
    // budget reserved, frames mapped
    {State::free, Event::allocate, State::resident},
    // touch: one compare-and-swap; a write drops the other copies
    // freed: reusable at once on its stream, elsewhere after its uses are over
    {State::resident, Event::release, State::ready},
    // from the stream's cache
    {State::ready, Event::reuse, State::resident},
    // its frames serve others
    {State::ready, Event::reclaim, State::free},
    // nobody holds it; a copy that is valid elsewhere is not made again
    {State::resident, Event::spill, State::spilling},
    {State::hosted, Event::spill, State::spilling},
    {State::spilled, Event::spill, State::spilling},
    // the part that was to leave is valid elsewhere, every use over: spans unmapped, and only now
    {State::spilling, Event::copied_out, State::hosted},
    // chosen to be made again and without a copy of all of it: its recipe stands, every use over:
    // unmapped, and only now
    {State::spilling, Event::drop, State::dropped},
    // touched, freed, failed, or only copied ahead: nothing was unmapped
    {State::spilling, Event::keep, State::resident},
    // every piece's write checked, its sum stored
    {State::hosted, Event::written, State::spilled},
    // used in host memory (on_host): nothing of it is on the device, all of it is in host memory,
    // held and nobody else's; the store's copies are dropped, and a touch waits for the end
    {State::hosted, Event::host_write, State::hosted},
    {State::spilled, Event::host_write, State::hosted},
    // budget reserved, missing spans mapped at the same address; bytes still in host memory are not
    // read
    {State::hosted, Event::fault, State::faulting},
    {State::spilled, Event::fault, State::faulting},
    // its inputs are on the device and held; budget reserved, mapped at the same address; one
    // thread makes it again, without the lock
    {State::dropped, Event::fault, State::remaking},
    // its work is enqueued: other streams wait on the event
    {State::remaking, Event::arrived, State::resident},
    // that failed, or the driver refused: rolled back, the use is an error, and the next one tries
    // again
    {State::remaking, Event::unfault, State::dropped},
    // sums verified before a byte is handed over; streams wait on the event
    {State::faulting, Event::arrived, State::resident},
    // no room, or the driver refused: rolled back; or a part was prefetched
    {State::faulting, Event::unfault, State::hosted},
    // its bytes are wrong by every path, or gone; loud; never zero-filled. Reads that fail otherwise
    // are tried again for `firn_io_patience`; then the block goes back to where it was (unfault),
    // the use that waited is an error, and the next one tries again
    {State::hosted, Event::read_failed, State::lost},
    {State::spilled, Event::read_failed, State::lost},
    {State::faulting, Event::read_failed, State::lost},
    {State::dropped, Event::read_failed, State::lost},
    // freed: free when what is in flight is over
    {State::hosted, Event::release, State::draining},
    {State::spilled, Event::release, State::draining},
    {State::faulting, Event::release, State::draining},
    {State::dropped, Event::release, State::draining},
    {State::remaking, Event::release, State::draining},
    // nothing of it is in flight any more
    {State::draining, Event::drained, State::free},
    // it has no copy any more
    {State::lost, Event::release, State::free},
};

namespace detail {
constexpr std::array<std::array<int8_t, event_count>, state_count> make_table() {
  std::array<std::array<int8_t, event_count>, state_count> table{};
  for (auto& row : table)
    for (auto& cell : row) cell = -1;
  for (const Transition& t : transitions)
    table[static_cast<int>(t.from)][static_cast<int>(t.event)] = static_cast<int8_t>(t.to);
  return table;
}
inline constexpr auto transition_table = make_table();
}  // namespace detail

/// The state after `event`, or -1 when the table forbids it.
constexpr int next_state(State from, Event event) {
  return detail::transition_table[static_cast<int>(from)][static_cast<int>(event)];
}

// The word.
namespace word {
inline constexpr uint64_t state_mask = 0xF;
inline constexpr uint64_t proven = 1u << 4;      // an operator was seen to use it
inline constexpr uint64_t pinned = 1u << 5;      // pin(): never evicted
inline constexpr uint64_t copies = 1u << 6;      // a copy elsewhere is valid, or being made
inline constexpr uint64_t unsettled = 1u << 7;   // its bytes are still on their way in
inline constexpr uint64_t freed = 1u << 8;       // freed while held; the last release finishes it
inline constexpr uint64_t recorded = 1u << 9;    // record_stream: other streams' uses delay reuse
inline constexpr uint64_t many_uses = 1u << 10;  // uses beyond the last one are listed
inline constexpr uint64_t small = 1u << 11;      // below 1 MiB: in a segment, and moves with it
inline constexpr uint64_t zero_copy = 1u << 12;  // mapped to host memory, beyond the budget, for a
                                                 // use that could not wait for room
inline constexpr uint64_t segment = 1u << 13;    // its owner cuts it up: allocate_segment()
inline constexpr uint64_t given = 1u << 14;      // give_address(): never evicted; ends with
                                                 // an unpin() beyond those of pin()
inline constexpr uint64_t placed = 1u << 15;     // in a region, which has its frames: never evicted
inline constexpr uint64_t outside = 1u << 16;    // allocated_outside(): any touch proves it
inline constexpr uint64_t told = 1u << 17;       // Told::always: proven once watching begins
inline constexpr uint64_t aside = 1u << 18;      // small, in a segment that is leaving or away: its
                                                 // end takes the lock
inline constexpr uint64_t recipes = 1u << 19;    // may have a recipe, or be read by one: a
                                                 // write, or its end, takes the lock
inline constexpr int holds_shift = 20;
inline constexpr uint64_t hold_one = 1ull << holds_shift;

/// Flags of the word, and nothing else: checked at compile time.
struct Flags {
  consteval Flags(uint64_t flags) : bits(flags) {  // NOLINT: named flags are meant to convert
    if ((flags & state_mask) != 0 || flags >= hold_one) throw "a state or a hold, and no flag";
  }
  constexpr Flags and_if(bool more, Flags flags) const {
    Flags both = *this;
    if (more) both.bits |= flags.bits;
    return both;
  }
  uint64_t bits;
};

constexpr State state(uint64_t w) { return static_cast<State>(w & state_mask); }
constexpr uint64_t holds(uint64_t w) { return w >> holds_shift; }
constexpr uint64_t with_state(uint64_t w, State s) {
  return (w & ~state_mask) | static_cast<uint64_t>(s);
}
}  // namespace word

}  // namespace firn
