// Each front end is a library with its own copy of the allocator. In a process with Firn's stand-in
// for the driver they meet there: one runtime is in charge, and the others use it.
#pragma once

#include "allocator/runtime/runtime.h"

namespace firn {

/// The stand-in's answer for "runtime". `offered` (or null) takes charge if there is no runtime
/// yet. Returns the one in charge; null: there is none, or its `build` differs from the caller's,
/// so that their objects may differ in layout.
using Meet = Runtime*(Runtime* offered, const char* build);

/// Identifies the headers that define runtimes and the objects they hand out.
const char* runtime_build();

/// The runtime in charge in this process; null: there is none, or no stand-in.
Runtime* met_runtime(const Driver& driver);
/// `runtime`, or the one that came before it.
Runtime* offer_runtime(const Driver& driver, Runtime* runtime);

}  // namespace firn
