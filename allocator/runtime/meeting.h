// Front ends are libraries of their own, with the allocator in each. In a process with Firn's
// stand-in in front of the driver they meet there: one runtime is in charge, and the others use it.
#pragma once

#include "allocator/runtime/runtime.h"

namespace firn {

/// What the stand-in answers for "runtime". `offered` (or null) is in charge from now on when there
/// is none yet; the one in charge comes back, null: there is none. `build` tells whether its
/// objects are laid out as the caller's are; null comes back where they are not.
using Meet = Runtime*(Runtime* offered, const char* build);

/// Of the headers that runtimes and what they hand out are made of.
const char* runtime_build();

/// The runtime in charge in this process; null: there is none, or nobody to ask.
Runtime* met_runtime(const Driver& driver);
/// `runtime`, or the one that came before it.
Runtime* offer_runtime(const Driver& driver, Runtime* runtime);

}  // namespace firn
