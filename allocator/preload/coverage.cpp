#include "allocator/preload/coverage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <vector>

#include "allocator/base/json_text.h"
#include "allocator/preload/engines.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/views.h"
#include "allocator/record/trace.h"
#include "allocator/runtime/stats_json.h"

namespace firn::preload {

namespace {

using nlohmann::ordered_json;

std::atomic<const Count*> counts{nullptr};

// By name, so that each is reported once.
struct Seen {
  std::mutex mutex;
  std::set<std::string> hooked, passed, missing;
  std::map<std::string, int> unknown;  // and the CUDA version it was asked for
  std::vector<std::string> unseen;     // until there is a runtime that keeps them
};
Seen& seen() {
  static Seen* const all = new Seen;  // never destroyed: asked for until the process is gone
  return *all;
}

std::string version_words(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string newer_words(const std::string& name, int version) {
  return fmt::format(
      "{} (requested as of CUDA {}) is newer than this Firn, which cannot see its "
      "effects; build Firn with a newer toolkit, or update it",
      name, version_words(version));
}

uint64_t calls_of(const std::vector<Called>& calls, std::string_view begin) {
  uint64_t sum = 0;
  for (const Called& each : calls)
    if (std::string_view(each.entry).starts_with(begin)) sum += each.calls;
  return sum;
}

std::vector<std::string> warnings_of(const Seen& all, const std::vector<Called>& calls) {
  std::vector<std::string> warnings;
  for (const auto& [name, version] : all.unknown) warnings.push_back(newer_words(name, version));
  const uint64_t kernels = calls_of(calls, "cuModuleGetFunction") +
                           calls_of(calls, "cuLibraryGetKernel") +
                           calls_of(calls, "cuKernelGetFunction");
  if (kernels > 0 && calls_of(calls, "cuLaunch") + calls_of(calls, "cuGraphLaunch") == 0)
    warnings.push_back(
        "the program looked up kernels, but Firn saw no launch: if the program launches them, the "
        "launches bypass Firn, and spilling their memory is unsafe");
  const FirnRoutes& routes = *stand_in().routes;
  if (__atomic_load_n(&routes.other_drivers, __ATOMIC_RELAXED) > 0)
    warnings.push_back(
        fmt::format("the program opened a second driver by its path, {}: Firn cannot see calls to "
                    "it (FIRN_DRIVER names the driver to use)",
                    __atomic_load_n(&routes.other_driver, __ATOMIC_RELAXED)));
  if (__atomic_load_n(&routes.missing_entries, __ATOMIC_RELAXED) > 0)
    warnings.push_back(
        fmt::format("the program called {}, which this driver lacks: the call returned "
                    "CUDA_ERROR_NOT_SUPPORTED",
                    __atomic_load_n(&routes.missing_entry, __ATOMIC_RELAXED)));
  return warnings;
}

}  // namespace

Count::Count(const char* name) : name_(name), next_(counts.load()) {
  while (!counts.compare_exchange_weak(next_, this)) {
  }
}

void saw_name(const char* entry, bool door) {
  std::lock_guard lock(seen().mutex);
  (door ? seen().hooked : seen().passed).insert(entry);
}

void saw_symbol(const char* symbol, int version, bool found, const Known& known) {
  bool newer = false;
  {
    std::lock_guard lock(seen().mutex);
    if (!found)
      seen().missing.insert(symbol);
    else if (!known.entry)
      newer = seen().unknown.emplace(symbol, version).second;
    else
      (known.door ? seen().hooked : seen().passed).insert(known.entry);
  }
  if (newer) note_unseen(newer_words(symbol, version));
}

void note_unseen(const std::string& words) {
  {
    std::lock_guard lock(seen().mutex);
    if (std::find(seen().unseen.begin(), seen().unseen.end(), words) == seen().unseen.end())
      seen().unseen.push_back(words);
  }
  if (Runtime* runtime = runtime_here()) runtime->note_unseen(words);
}

std::vector<std::string> noted_unseen() {
  std::lock_guard lock(seen().mutex);
  return seen().unseen;
}

std::string coverage_json() {
  ordered_json out;
  const std::vector<Called> calls = handlers_called();
  out["driver"] = stand_in().library;
  {
    std::lock_guard lock(seen().mutex);
    out["hooked"] = seen().hooked;
    out["passed"] = seen().passed;
    out["missing"] = seen().missing;
    out["unknown"] = ordered_json::array();
    for (const auto& [name, version] : seen().unknown)
      out["unknown"].push_back({{"name", name}, {"version", version}});
    out["warnings"] = warnings_of(seen(), calls);
    out["unseen"] = seen().unseen;
  }
  out["calls"] = ordered_json::object();
  for (const Called& each : calls)
    if (each.calls > 0) out["calls"][each.entry] = each.calls;
  const FirnRoutes& routes = *stand_in().routes;
  out["routes"] = {{"unversioned", __atomic_load_n(&routes.unversioned, __ATOMIC_RELAXED)},
                   {"path", __atomic_load_n(&routes.paths, __ATOMIC_RELAXED)},
                   {"other_driver", __atomic_load_n(&routes.other_drivers, __ATOMIC_RELAXED)}};
  const Counters& work = counters();
  const std::pair<const char*, const std::atomic<uint64_t>&> numbers[] = {
      {"launches", work.launches},
      {"parameters_scanned", work.parameters},
      {"unknown_kernels", work.unknown_kernels},
      {"tables_followed", work.tables_followed},
      {"table_words", work.table_words},
      {"looked_at_bytes", work.looked_bytes},
      {"stored_addresses", work.stored_addresses},
      {"never_seen_bytes", work.passed_on_bytes},
      {"host_mapped_launches", work.host_mapped_launches},
      {"copies", work.copies},
      {"graph_launches", work.graph_launches},
      {"frees_waited", work.frees_waited},
      {"frees_deferred", work.frees_deferred}};
  for (const auto& [name, number] : numbers) out[name] = number.load(std::memory_order_relaxed);
  for (const Count* count = counts.load(); count; count = count->next())
    out[count->name()] = count->value();
  // Unseen by nature: such calls never arrive here.
  out["never_seen"] = {"other link namespaces (dlmopen)",
                       "the driver's path opened by a library that was opened with RTLD_DEEPBIND",
                       "the driver's private tables (cuGetExportTable)"};
  return json_text(out);
}

void write_coverage_alone() {
  if (runtime_here()) return;  // it writes them
  Result<Config> config = configuration();
  if (!config || config->stats_file.empty()) return;
  const std::string name = expand_pid(config->stats_file);
  // Never replaces a file that a process with Firn's memory has written.
  Result<OutputFile> file = OutputFile::create(name, OutputFile::If::exists_fails);
  if (!file) return;
  const Result<void> done =
      file->write(stats_json({}, {}, {}, {}, {{"coverage", coverage_json}}) + "\n");
  if (!done) std::fprintf(stderr, "firn: %s (--stats)\n", done.error().text.c_str());
}

}  // namespace firn::preload
