// The table behind cuGetProcAddress: entries by base name and CUDA version. Apart from the entries
// themselves, because it declares them without their parameters. Owns nothing.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "entry_table.h"

// Declared by their symbols alone: only their addresses are wanted here.
#define X(base, version, symbol) extern "C" void symbol();
#define Y(base, version, symbol, own) \
  extern "C" void symbol();           \
  extern "C" void own();
#define N(base, version)
namespace firn::software::addresses {
#include "entries.inc"
}
#undef X
#undef Y
#undef N

namespace firn::software {

namespace {
struct Row {
  const char* base;
  int version;
  void (*entry)();
  void (*own)();  // per-thread default stream; null: the same
};
const Row rows[] = {
#define X(base, version, symbol) {#base, version, addresses::symbol, nullptr},
#define Y(base, version, symbol, own) {#base, version, addresses::symbol, addresses::own},
#define N(base, version) {#base, version, nullptr, nullptr},
#include "entries.inc"
#undef X
#undef Y
#undef N
};
}  // namespace

// Finds the newest row of that name that the version reaches.
SymbolStatus find_entry(const char* symbol, int version, bool per_thread, void** out) {
  const auto [first, last] = std::equal_range(
      std::begin(rows), std::end(rows), Row{symbol, 0, nullptr, nullptr},
      [](const Row& a, const Row& b) { return std::strcmp(a.base, b.base) < 0; });
  if (first == last) return status_not_found;
  const Row* best = nullptr;
  for (const Row* row = first; row != last; ++row)
    if (row->version <= version) best = row;
  if (!best) return status_version;
  if (!best->entry) return status_not_found;  // that version of it is not implemented
  *out = reinterpret_cast<void*>(per_thread && best->own ? best->own : best->entry);
  return status_found;
}

}  // namespace firn::software
