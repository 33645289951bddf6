// Memory for tables that are looked up at random: on huge pages where the kernel gives them, so
// that a look-up that misses the caches does not miss the TLB too. Owns nothing; needs no lock.
#pragma once

#include <cstddef>

namespace firn {

/// Zeroed, aligned to a huge page, and there only where it is used; null: the system has none left.
void* take_huge(size_t bytes);
/// What take_huge(bytes) gave.
void give_huge(void* memory, size_t bytes);

}  // namespace firn
