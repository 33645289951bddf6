// Copies from the host into mapped memory: until one is complete its target is inaccessible, so
// that work on another stream that does not wait for it dies instead of reading old bytes. The
// bytes go in through the file behind the mapping. A copy out that is under way when its source is
// closed reads it to its end; a later one that does not wait finds 0xFF there: a copy may read
// bytes that are no longer needed, and nothing on the device ends such a copy.
//
// Owns: nothing. Lock: Gpu::mutex, but for arrive() and the copies out, which take it.
#pragma once

#include "bodies.h"

namespace firn::software {

/// The state of one copy, shared by its run and its end.
struct Arrival {
  const char* entry = "";
  uint64_t closed = 0;  // AddressSpace::begin_arrival()'s; 0: its target is open as yet
};

/// Makes the body's copy such a one, if it is one row into mapped memory.
void make_arrival(const Rows& rows, Body* body);
/// The copy, on the stream's turn: closes its target, then writes behind it. It stays closed until
/// the body's end.
void arrive(const Rows& rows, Arrival& arrival);
/// Makes the body's copy one out of mapped memory, if it is one row.
void make_departure(const Rows& rows, Body* body);
/// The copy, at once and under the lock.
void depart(const Rows& rows);
/// Closes the copy's target from its submission on, if no work queued before it can use the target:
/// its stream has only copies elsewhere before it.
void close_at_once(const std::shared_ptr<Work>& copy);

}  // namespace firn::software
