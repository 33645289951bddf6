#pragma once

#include <unistd.h>

#include <cstddef>

namespace firn {

/// Of the system. Where it does not say, as large as the smallest that there is: whoever wipes or
/// unmaps by it does nothing to bytes beyond his own.
inline size_t page_bytes() {
  const long bytes = ::sysconf(_SC_PAGESIZE);
  return bytes > 0 ? static_cast<size_t>(bytes) : 4096;
}

}  // namespace firn
