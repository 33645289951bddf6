// Operators under stream capture; see capture.h.
#include "backing/gpu/software/torch_ops/capture.h"

#include <dlfcn.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

namespace firn::torch_ops {
namespace {

struct Kept {
  std::unique_ptr<char[]> before;
  size_t count;
};

// By capture, then by address. A range is kept once, at its first overwriting; ranges of one start
// may differ in length (a storage that was resized): the longer one is kept from its second part
// on.
struct Undo {
  std::mutex mutex;
  std::map<uint64_t, std::map<char*, Kept>> captures;
};

Undo& undo() {
  static auto* const log = new Undo;
  return *log;
}

void restore(unsigned long long capture) {
  std::map<char*, Kept> ranges;
  {
    const std::lock_guard lock(undo().mutex);
    const auto found = undo().captures.find(capture);
    if (found == undo().captures.end()) return;
    ranges = std::move(found->second);
    undo().captures.erase(found);
  }
  for (auto& [bytes, kept] : ranges) std::memcpy(bytes, kept.before.get(), kept.count);
}

}  // namespace

void keep_until_end(uint64_t capture, void* start, size_t count) {
  auto* bytes = static_cast<char*>(start);
  const std::lock_guard lock(undo().mutex);
  auto& ranges = undo().captures[capture];
  const auto known = ranges.find(bytes);
  if (known != ranges.end()) {
    if (known->second.count >= count) return;
    bytes += known->second.count;
    count -= known->second.count;
  }
  Kept kept{std::make_unique<char[]>(count), count};
  std::memcpy(kept.before.get(), bytes, count);
  ranges.try_emplace(bytes, std::move(kept));
}

void watch_captures() {
  using Watch = void (*)(void (*)(unsigned long long));
  const auto watch = reinterpret_cast<Watch>(dlsym(RTLD_DEFAULT, "firn_cudart_on_capture_end"));
  if (watch == nullptr) {
    throw std::runtime_error("libcudart is not the software CUDA runtime (preload it)");
  }
  watch(restore);
}

}  // namespace firn::torch_ops
