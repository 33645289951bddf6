// A trace of a program that makes values again instead of moving them (policy/remake_choice.h): its
// operators' names say which may run again (again.h).
// Owns: nothing. Locks: none.
#pragma once

#include "allocator/lifetimes/operators.h"
#include "allocator/simulate/machine.h"
#include "allocator/simulate/program_trace.h"

namespace firn::simulate {

struct Remade {
  ProgramTrace trace;
  uint64_t values = 0, bytes = 0;  // of the program's: they end early, and are made again
  double again_s = 0;              // what runs again takes, in an iteration
  double choice_s = 0;             // processor time of choosing
  double faster = 0;               // as rehearsed: part of an iteration that only moves
};

/// The trace as operators; those of `trace` are numbered by their kernels.
lifetimes::Operators operators_of(const ProgramTrace& trace);

/// The trace with what is chosen to be made again on that machine. A kernel that runs again is
/// named `remake(NAME)`, and has its original's line.
Remade remake(const ProgramTrace& trace, const MachineOptions& machine);

}  // namespace firn::simulate
