#include "allocator/preload/doors.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "allocator/preload/handlers.h"

namespace firn::preload {

Real real_entries;

namespace {

struct Doors {
  std::unordered_map<std::string_view, void*> of_name;
  std::unordered_map<const void*, Known> of_address;
};
const Doors* doors = nullptr;  // never destroyed: calls may come until the process is gone

template <class Function>
void take(const char* name, Function*& entry) {
  entry = reinterpret_cast<Function*>(stand_in().real(name));
}

}  // namespace

void open_doors() {
  auto* made = new Doors;
#define H(entry, parameters)                                                     \
  take(#entry, real_entries.entry);                                              \
  if (real_entries.entry)                                                        \
    made->of_name[#entry] =                                                      \
        reinterpret_cast<void*>(&Door<&preload::entry, &Real::entry>::enter);
#define C(entry, parameters) take(#entry, real_entries.entry);
#include "allocator/preload/called.inc"
#include "allocator/preload/handled.inc"
#undef H
#undef C
  for (unsigned i = 0; i < stand_in().names_count; ++i) {
    const char* name = stand_in().names[i];
    const void* address = stand_in().real(name);
    if (!address) continue;
    const auto door = made->of_name.find(name);
    Known& known = made->of_address[address];
    // Two names may be one entry: the one that is handled counts.
    if (!known.entry || door != made->of_name.end())
      known = {name, door == made->of_name.end() ? known.door : door->second};
  }
  doors = made;
}

void* door_of_name(const char* entry) {
  const auto found = doors->of_name.find(entry);
  return found == doors->of_name.end() ? nullptr : found->second;
}

Known door_of_address(const void* address) {
  const auto found = doors->of_address.find(address);
  return found == doors->of_address.end() ? Known{} : found->second;
}

}  // namespace firn::preload
