// Work in a thread of ours, which must not end the process because memory ran out.
#pragma once

#include <new>

namespace firn {

/// False: memory ran out.
template <class Work>
bool survives(Work&& work) {
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace firn
