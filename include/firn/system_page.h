#pragma once

#include <unistd.h>

#include <cstddef>

namespace firn {

/// The system's; if unknown, the smallest that there is, so that a caller who wipes or unmaps by it
/// stays within his own bytes.
inline size_t system_page_bytes() {
  const long bytes = ::sysconf(_SC_PAGESIZE);
  return bytes > 0 ? static_cast<size_t>(bytes) : 4096;
}

}  // namespace firn
