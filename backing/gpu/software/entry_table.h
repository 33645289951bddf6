// The table behind cuGetProcAddress. Owns nothing.
#pragma once

namespace firn::software {

enum SymbolStatus : int { status_found = 0, status_not_found = 1, status_version = 2 };

/// The newest entry of base name `symbol` that CUDA `version` knows; `per_thread`: its variant
/// whose null stream is the calling thread's own, where there is one.
SymbolStatus find_entry(const char* symbol, int version, bool per_thread, void** out);

}  // namespace firn::software
