#include "allocator/preload/globals.h"

#include <map>
#include <mutex>
#include <vector>

#include "allocator/preload/handlers.h"
#include "allocator/preload/views.h"

namespace firn::preload {

namespace {
struct Globals {
  std::mutex mutex;
  std::map<const void*, std::map<uint64_t, uint64_t>> of;  // by module: base, bytes
};
Globals& globals() {
  static Globals& all = *new Globals;
  return all;
}
}  // namespace

void add_global(const void* module, Range variable) {
  std::lock_guard lock(globals().mutex);
  globals().of[module][variable.base] = variable.bytes;
}

void forget_globals(const void* module) {
  std::lock_guard lock(globals().mutex);
  const auto found = globals().of.find(module);
  if (found == globals().of.end()) return;
  for (const auto& [base, bytes] : found->second) tables().forget(base, bytes);
  globals().of.erase(found);
}

void look_at_globals() {
  std::map<uint64_t, uint64_t> all;
  {
    std::lock_guard lock(globals().mutex);
    for (const auto& [module, variables] : globals().of)
      all.insert(variables.begin(), variables.end());
  }
  std::vector<char> bytes;
  for (const auto& [base, size] : all) {
    bytes.resize(size);
    if (real().cuMemcpyDtoH_v2(bytes.data(), base, size) == CUDA_SUCCESS)
      (void)tables().write(base, bytes.data(), size, true);
  }
}

void forget_all_globals() {
  std::lock_guard lock(globals().mutex);
  for (const auto& [module, variables] : globals().of)
    for (const auto& [base, bytes] : variables) tables().forget(base, bytes);
  globals().of.clear();
}

}  // namespace firn::preload
