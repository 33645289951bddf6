// Is the driver's own answer to cuGetProcAddress the entry that it exports by name? Handlers are
// found by the exported entry's address: were the answer another, calls would bypass Firn.
//
// Owns: nothing. Locks: none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "allocator/preload/stand_in.h"

namespace firn::preload {

/// "cuMemAlloc" for "cuMemAlloc_v2", "cuMemsetD8Async" for "cuMemsetD8Async_ptsz".
std::string_view base_name(std::string_view exported);

struct Identities {
  struct Learned {
    const void* address;  // another one of ...
    const char* entry;    // this exported name
  };
  std::vector<Learned> learned;
  std::vector<std::string> unproven;  // base names with an answer that could not be placed
};

/// Asks for each of `handled` (exported names), as of the driver's own version and for both kinds
/// of default stream. If an answer is not an exported entry, asks for all versions: the answer is
/// placed where there are as many answers as exported versions.
Identities prove(const FirnStandIn& stand_in, const std::vector<const char*>& handled);

/// Says once that nothing leaves the GPU any more, and why: calls of that name may bypass Firn.
void distrust(const std::string& base);
bool distrusted();

}  // namespace firn::preload
