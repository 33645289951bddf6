// Is the driver's own answer to cuGetProcAddress the entry that it exports by name? What is handled
// is found by the address of the latter: were it another, calls would go past Firn.
//
// Owns: nothing. Locks: none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "allocator/preload/stand_in.h"

namespace firn::preload {

/// "cuMemAlloc" of "cuMemAlloc_v2", "cuMemsetD8Async" of "cuMemsetD8Async_ptsz".
std::string_view base_name(std::string_view exported);

struct Identities {
  struct Learned {
    const void* address;  // another one of ...
    const char* entry;    // this exported name
  };
  std::vector<Learned> learned;
  std::vector<std::string> unproven;  // base names of which an answer could not be placed
};

/// Asks for each of `handled` (exported names), as of the driver's own version and for both kinds
/// of default stream. Where an answer is no exported entry, all versions are asked for: it is placed
/// where there are as many answers as exported versions.
Identities prove(const FirnStandIn& stand_in, const std::vector<const char*>& handled);

/// Says once that nothing leaves the GPU any more, and why: calls of that name may go past Firn.
void distrust(const std::string& base);
bool distrusted();

}  // namespace firn::preload
