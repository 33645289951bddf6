#include "allocator/preload/identity.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <map>
#include <set>
#include <unordered_set>

#include "allocator/preload/coverage.h"
#include "allocator/preload/engines.h"
#include "allocator/runtime/runtime.h"
#include "firn/cuda_types.h"
#include "firn/said.h"

namespace firn::preload {

namespace {
constexpr std::string_view per_thread_suffixes[] = {"_ptsz", "_ptds"};
constexpr uint64_t kinds[] = {1, 2};  // of default streams: the legacy one, the thread's own

std::string_view without_thread(std::string_view name) {
  for (std::string_view suffix : per_thread_suffixes)
    if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
  return name;
}

/// 1 for a name without a number.
int version_of(std::string_view name) {
  name = without_thread(name);
  const size_t at = name.rfind("_v");
  const bool numbered = at != std::string_view::npos && at + 2 < name.size() &&
                        std::all_of(name.begin() + static_cast<ptrdiff_t>(at) + 2, name.end(),
                                    [](unsigned char c) { return std::isdigit(c); });
  return numbered ? std::atoi(std::string(name.substr(at + 2)).c_str()) : 1;
}

using Ask = CUresult (*)(const char*, void**, int, uint64_t, int*);

/// The driver's answer; null where it has none.
void* ask(Ask question, const std::string& base, int version, uint64_t kind) {
  void* entry = nullptr;
  int status = 0;
  return question(base.c_str(), &entry, version, kind, &status) == CUDA_SUCCESS ? entry : nullptr;
}

/// The base's different answers, the oldest version's first.
std::vector<const void*> answers(Ask question, const std::string& base, int newest, uint64_t kind) {
  std::vector<const void*> found;
  for (int version = 2000; version <= newest; version += 10) {
    const void* entry = ask(question, base, version, kind);
    if (entry && (found.empty() || found.back() != entry)) found.push_back(entry);
  }
  return found;
}

/// The base's exported names for that kind, by version.
std::map<int, const char*> exported(const FirnStandIn& stand_in, std::string_view base,
                                    uint64_t kind) {
  std::map<int, const char*> names;
  for (unsigned i = 0; i < stand_in.names_count; ++i) {
    const std::string_view name = stand_in.names[i];
    if (base_name(name) != base || !stand_in.real(stand_in.names[i])) continue;
    const bool of_thread = without_thread(name) != name;
    if (of_thread && kind == kinds[0]) continue;
    const char*& best = names[version_of(name)];
    if (!best || of_thread) best = stand_in.names[i];
  }
  // As of CUDA 12 the name without a number means this one.
  constexpr const char* flags = "cuGraphInstantiateWithFlags";
  if (base == "cuGraphInstantiate" && stand_in.real(flags))
    names[names.empty() ? 1 : names.rbegin()->first + 1] = flags;
  return names;
}

std::atomic<bool> nothing_leaves{false};
}  // namespace

std::string_view base_name(std::string_view name) {
  name = without_thread(name);
  return version_of(name) > 1 ? name.substr(0, name.rfind("_v")) : name;
}

Identities prove(const FirnStandIn& stand_in, const std::vector<const char*>& handled) {
  Identities found;
  const auto question = reinterpret_cast<Ask>(stand_in.real("cuGetProcAddress_v2"));
  const auto version =
      reinterpret_cast<CUresult (*)(int*)>(stand_in.real("cuDriverGetVersion"));
  int newest = 0;
  if (!question || !version || version(&newest) != CUDA_SUCCESS) return found;  // cannot ask
  std::unordered_set<const void*> known;
  for (unsigned i = 0; i < stand_in.names_count; ++i)
    known.insert(stand_in.real(stand_in.names[i]));
  std::set<std::string> bases;
  for (const char* name : handled) bases.emplace(base_name(name));
  for (const std::string& base : bases)
    for (uint64_t kind : kinds) {
      const void* entry = ask(question, base, newest, kind);
      if (!entry || known.contains(entry)) continue;
      const std::vector<const void*> addresses = answers(question, base, newest, kind);
      const std::map<int, const char*> names = exported(stand_in, base, kind);
      if (addresses.size() != names.size() || ask(question, base, newest, kind) != entry) {
        if (found.unproven.empty() || found.unproven.back() != base) found.unproven.push_back(base);
        continue;
      }
      auto address = addresses.begin();
      for (const auto& [number, name] : names) found.learned.push_back({*address++, name});
    }
  return found;
}

void distrust(const std::string& base) {
  if (nothing_leaves.exchange(true)) return;
  const std::string words =
      "cuGetProcAddress(" + base + ") returns an address outside the driver's exported entries: "
      "launches may bypass Firn, so nothing leaves the GPU";
  say_now("firn: " + words);
  note_unseen(words);
  if (Runtime* runtime = runtime_here())
    runtime->on_open([](Engine& engine) { engine.stop_spilling(true, true); });
}

bool distrusted() { return nothing_leaves.load(std::memory_order_acquire); }

}  // namespace firn::preload
