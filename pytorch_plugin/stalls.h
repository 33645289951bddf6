// Waits for memory: by operator, and, when asked for, by the line of the Python program.
//
// Owns: process-wide tables. Locks: one, a leaf, taken only after a wait.
#pragma once

#include <cstdint>
#include <string>

#include "pytorch_plugin/operators.h"

namespace firn::pytorch {

/// How long the calling thread has waited until now, in nanoseconds.
inline thread_local uint64_t stalled_here_ns = 0;

/// The calling thread waited for so long, in `info`'s operator (null: in none). May be called under
/// an engine's lock.
void note_stall(const OperatorInfo* info, uint64_t ns);

/// Charges this thread's waits since the last call to its line of the program, and returns that
/// line (`in`: the operator, where no line is known); empty when no call sites are asked for. When
/// they are, this takes Python's GIL: call it under no lock and holding no block, since the GIL's
/// holder may be waiting for one.
std::string note_call_site(const OperatorInfo* in, uint64_t times, uint64_t ns);
enum class Asker : uint8_t { program, viewer, trace, storm };
void ask_for_call_sites(Asker who, bool asked);
/// The observer was installed: begins what needs it.
void observer_is_there();

/// {"operators": [{"name": ..., "waits": ..., "seconds": ...}], "call_sites": [the same]}, the
/// longest first.
std::string stalls_json();

}  // namespace firn::pytorch
