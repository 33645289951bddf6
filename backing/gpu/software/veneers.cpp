// Veneers of entries: see veneers.h. Owns their pages, for good. Lock: its own.
#include "veneers.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "gpu.h"

namespace firn::software {

namespace {
bool named(const std::string& names, const std::string& symbol) {
  return ("," + names + ",").find("," + symbol + ",") != std::string::npos;
}

// Jumps to the address behind it.
void* make(void* entry) {
#ifdef __x86_64__
  constexpr unsigned char jump[] = {0xff, 0x25, 0, 0, 0, 0};  // jmp *0(%rip)
  constexpr size_t bytes = 16, page = 4096;
  static unsigned char* at = nullptr;
  static size_t left = 0;
  if (left < bytes) {
    void* made = ::mmap(nullptr, page, PROT_READ | PROT_WRITE | PROT_EXEC,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) die("FIRN_GPU_VENEERS", std::strerror(errno));
    at = static_cast<unsigned char*>(made);
    left = page;
  }
  unsigned char* const veneer = at;
  std::memcpy(veneer, jump, sizeof jump);
  std::memcpy(veneer + sizeof jump, &entry, sizeof entry);
  at += bytes;
  left -= bytes;
  return veneer;
#else
  (void)entry;
  die("FIRN_GPU_VENEERS", "this machine's jumps are not known");
#endif
}
}  // namespace

void* veneer_of(const char* symbol, void* entry) {
  static const char* const words = std::getenv("FIRN_GPU_VENEERS");
  if (!words || !*words) return entry;
  const std::string names = words;
  if (names != "all" && names != "each" && !named(names, symbol)) return entry;
  static std::mutex mutex;
  static std::map<void*, void*> known;
  const std::lock_guard lock(mutex);
  if (names == "each") return make(entry);
  void*& veneer = known[entry];
  if (!veneer) veneer = make(entry);
  return veneer;
}

}  // namespace firn::software
