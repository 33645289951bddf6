// Memory for tables with random access, on huge pages where the kernel gives them, so that a cache
// miss is not a TLB miss too. Owns nothing; needs no lock.
#pragma once

#include <cstddef>

namespace firn {

/// Zeroed memory, aligned to a huge page, committed on first use; null: the system has none left.
void* take_huge(size_t bytes);
/// Frees memory from take_huge(bytes).
void give_huge(void* memory, size_t bytes);

}  // namespace firn
