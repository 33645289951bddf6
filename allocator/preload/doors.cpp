#include "allocator/preload/doors.h"

#include <memory>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "allocator/preload/handlers.h"
#include "allocator/preload/identity.h"

namespace firn::preload {

namespace {

struct Doors {
  std::unordered_map<std::string_view, void*> of_name;
  std::unordered_map<const void*, Known> of_address;
  std::unordered_set<std::string_view> bases;  // of what is handled
};
// Never destroyed: calls may come until the process is gone.
std::atomic<const Doors*> doors{nullptr};

template <class Function>
void take(const FirnStandIn& stand_in, const char* name, Function*& entry) {
  entry = reinterpret_cast<Function*>(stand_in.real(name));
}

template <auto handler, auto entry, bool late>
uint64_t calls_of() {
  return Door<handler, entry, late>::calls.load(std::memory_order_relaxed);
}

}  // namespace

bool open_doors(const FirnStandIn& stand_in) {
  if (doors.load(std::memory_order_acquire)) return false;
  auto made = std::make_unique<Doors>();
  auto real = std::make_unique<Real>();
#define H(entry, parameters) FIRN_OPEN(entry, false)
#define L(entry, parameters) FIRN_OPEN(entry, true)
#define FIRN_OPEN(entry, late)         \
  take(stand_in, #entry, real->entry); \
  if (real->entry)                     \
    made->of_name[#entry] =            \
        reinterpret_cast<void*>(&Door<&preload::entry, &Real::entry, late>::enter);
#define C(entry, parameters) take(stand_in, #entry, real->entry);
#include "allocator/preload/called.inc"
#include "allocator/preload/handled.inc"
#undef H
#undef L
#undef C
#undef FIRN_OPEN
  for (unsigned i = 0; i < stand_in.names_count; ++i) {
    const char* name = stand_in.names[i];
    const void* address = stand_in.real(name);
    if (!address) continue;
    const auto door = made->of_name.find(name);
    Known& known = made->of_address[address];
    // Two names may be one entry: the handled one counts.
    if (!known.entry || door != made->of_name.end())
      known = {name, door == made->of_name.end() ? known.door : door->second};
  }
  std::vector<const char*> handled;
  for (const auto& [name, door] : made->of_name) handled.push_back(name.data());
  const Identities identities = prove(stand_in, handled);
  for (const auto& [address, entry] : identities.learned) {
    const auto door = made->of_name.find(entry);
    made->of_address[address] = {entry, door == made->of_name.end() ? nullptr : door->second};
  }
  for (const char* name : handled) made->bases.emplace(base_name(name));
  // Concurrent threads have found the same: any one's is kept. The doors last: a thread that sees
  // them sees everything.
  const Real* no_entries = nullptr;
  const FirnStandIn* nobody = nullptr;
  const Doors* none = nullptr;
  the_stand_in.compare_exchange_strong(nobody, &stand_in);
  if (real_entries.compare_exchange_strong(no_entries, real.get())) (void)real.release();
  if (!doors.compare_exchange_strong(none, made.get())) return false;
  (void)made.release();
  if (!identities.unproven.empty()) distrust(identities.unproven.front());
  return true;
}

void* door_of_name(const char* entry) {
  const Doors& open = *doors.load(std::memory_order_acquire);
  const auto found = open.of_name.find(entry);
  return found == open.of_name.end() ? nullptr : found->second;
}

Known door_of_address(const void* address) {
  const Doors& open = *doors.load(std::memory_order_acquire);
  const auto found = open.of_address.find(address);
  return found == open.of_address.end() ? Known{} : found->second;
}

bool is_handled(std::string_view base) {
  return doors.load(std::memory_order_acquire)->bases.contains(base);
}

std::vector<Called> handlers_called() {
  return {
#define H(entry, parameters) {#entry, calls_of<&preload::entry, &Real::entry, false>()},
#define L(entry, parameters) {#entry, calls_of<&preload::entry, &Real::entry, true>()},
#include "allocator/preload/handled.inc"
#undef H
#undef L
  };
}

}  // namespace firn::preload
