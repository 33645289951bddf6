// Maps driver entries to handlers. Filled at the start, then only read: no lock.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "allocator/preload/stand_in.h"

namespace firn::preload {

/// Takes the real driver's entries and learns their addresses. True for the one thread that did it.
bool open_doors(const FirnStandIn& stand_in);
/// The handler for the entry of that exported name; null: the driver answers it.
void* door_of_name(const char* entry);

/// An address of the real driver, identified.
struct Known {
  const char* entry = nullptr;  // its exported name; null: newer than the stand-in's list
  void* door = nullptr;         // null: not handled
};
Known door_of_address(const void* address);

/// Is any version of that base name handled?
bool is_handled(std::string_view base);

/// How often each handler was called, in the list's order.
struct Called {
  const char* entry;
  uint64_t calls;
};
std::vector<Called> handlers_called();

}  // namespace firn::preload
