// Locks: none of its own. (The environment is changed as the program itself might, by setenv,
// before PyTorch reads it.)
#include "allocator/preload/pytorch.h"

#include <link.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "allocator/config.h"

namespace firn::preload {

namespace {

constexpr const char* uncached = "PYTORCH_NO_CUDA_MEMORY_CACHING";
std::atomic<bool> told{false};  // by us: the plugin takes it back where it comes later

struct Found {
  bool pytorch = false, plugin = false;
};

int look(dl_phdr_info* object, size_t, void* data) {
  Found& found = *static_cast<Found*>(data);
  std::string_view name = object->dlpi_name ? object->dlpi_name : "";
  name.remove_prefix(name.rfind('/') + 1);
  found.pytorch |= name.starts_with("libc10_cuda.so");
  found.plugin |= name.starts_with("libfirn_torch.") || name.starts_with("libfirn_torch-");
  return 0;
}

Found loaded() {
  Found found;
  ::dl_iterate_phdr(look, &found);
  return found;
}

// PyTorch would refuse Firn's words; the plugin and its package take them out, and keep them, as
// here.
void take_words() {
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    const char* value = ::getenv(name);
    const ConfWords words = split_conf(value ? value : "");
    if (!words.wanted) continue;
    const std::string kept = words.firn.empty() ? "backend:firn" : "backend:firn," + words.firn;
    (void)::setenv("FIRN_CONF", kept.c_str(), 0);
    (void)(words.rest.empty() ? ::unsetenv(name) : ::setenv(name, words.rest.c_str(), 1));
  }
}

}  // namespace

void look_for_pytorch() {
  const Found found = loaded();
  if (!found.pytorch || found.plugin) return;
  take_words();
  if (!::getenv(uncached)) told.store(::setenv(uncached, "1", 0) == 0);
}

void say_what_pytorch_was_told() {
  if (told.load() && !loaded().plugin)
    std::fprintf(stderr,
                 "firn: PyTorch keeps its own allocator here: %s=1 is set, so that it asks for "
                 "each block by itself\n",
                 uncached);
}

}  // namespace firn::preload
