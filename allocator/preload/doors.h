// Which driver entry leads to which handler. Filled at the start, then only read: no lock.
#pragma once

namespace firn::preload {

/// Takes the real driver's entries and learns their addresses.
void open_doors();
/// What answers the entry of that exported name; null: the driver does.
void* door_of_name(const char* entry);

/// What an address of the real driver's is.
struct Known {
  const char* entry = nullptr;  // its exported name; null: newer than the stand-in's list
  void* door = nullptr;         // null: not handled
};
Known door_of_address(const void* address);

}  // namespace firn::preload
