// Locks: none of its own. (The environment is changed as the program itself might, by setenv,
// before PyTorch reads it.)
#include "allocator/preload/pytorch.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "allocator/runtime/config.h"

namespace firn::preload {

namespace {

constexpr const char* uncached = "PYTORCH_NO_CUDA_MEMORY_CACHING";
std::atomic<bool> told{false};  // by us: a plugin that comes later takes it back

struct Found {
  bool pytorch = false, plugin = false, operators = false;
  std::filesystem::path folder;  // of PyTorch's libraries
};

int look(dl_phdr_info* object, size_t, void* data) {
  Found& found = *static_cast<Found*>(data);
  std::string_view name = object->dlpi_name ? object->dlpi_name : "";
  const std::string_view path = name;
  name.remove_prefix(name.rfind('/') + 1);
  if (name.starts_with("libc10_cuda.so")) {
    found.pytorch = true;
    found.folder = std::filesystem::path(path).parent_path();
  }
  found.plugin |= name.starts_with("libfirn_torch.") || name.starts_with("libfirn_torch-");
  found.operators |= name.starts_with("libfirn_torch_ops");
  return 0;
}

Found loaded() {
  Found found;
  ::dl_iterate_phdr(look, &found);
  return found;
}

// PyTorch would refuse Firn's settings: takes them out and keeps them, as the plugin and its
// package do.
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

/// "2.11" of the PyTorch in `folder`, from what its packages have beside it: build-version
/// (libtorch) holds "2.11.0+cu130", version.py (the wheel) has that in a line; or nothing.
std::string minor_version(const std::filesystem::path& folder) {
  for (const char* name : {"build-version", "version.py"}) {
    std::ifstream file(folder / ".." / name);
    for (std::string line; std::getline(file, line);) {
      if (name[0] == 'v' && !line.starts_with("__version__")) continue;
      const size_t begin = line.find_first_of("0123456789");
      if (begin == std::string::npos) continue;
      const size_t dot = line.find('.', begin);
      const size_t end =
          dot == std::string::npos ? dot : line.find_first_not_of("0123456789", dot + 1);
      if (end != std::string::npos) return line.substr(begin, end - begin);
    }
  }
  return "";
}

/// Loads `name` from where it is installed beside this library, or built; null: dlerror() says why.
void* open_beside(const std::string& name) {
  Dl_info own;
  if (::dladdr(reinterpret_cast<void*>(&open_beside), &own) == 0) return nullptr;
  const std::filesystem::path folder = std::filesystem::path(own.dli_fname).parent_path();
  for (const auto& path : {folder / name, folder / "../../pytorch_plugin" / name})
    if (std::error_code error; std::filesystem::exists(path, error))
      return ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  return ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
}

/// Empty where the operators have their kernels, else the reason why not.
std::string start_operators(const std::filesystem::path& folder) {
  const std::string version = minor_version(folder);
  if (version.empty()) return "cannot find its version beside " + folder.string();
  void* library = open_beside("libfirn_torch_ops-" + version + ".so");
  if (!library) {
    const char* why = ::dlerror();
    return "PyTorch " + version + ": " + (why ? why : "Firn has no library for it");
  }
  const auto start = reinterpret_cast<int (*)()>(::dlsym(library, "firn_torch_ops_start"));
  const auto error = reinterpret_cast<const char* (*)()>(::dlsym(library, "firn_torch_ops_error"));
  if (!start || !error) return "the library lacks firn_torch_ops_start";
  return start() == 0 ? "" : error();
}

/// In Python programs Firn's package loads them, and reports errors in Python's way.
void look_for_operators(const Found& found) {
  static std::atomic<bool> looked{false};
  const char* device = ::getenv("FIRN_DEVICE");
  if (found.operators || !device || std::string_view(device) != "software") return;
  const auto python = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
  if ((python && python()) || looked.exchange(true)) return;
  if (const std::string wrong = start_operators(found.folder); !wrong.empty())
    std::fprintf(stderr, "firn: the software GPU cannot run PyTorch's operators: %s\n",
                 wrong.c_str());
}

}  // namespace

void look_for_pytorch() {
  const Found found = loaded();
  if (!found.pytorch) return;
  look_for_operators(found);
  if (found.plugin) return;
  take_words();
  if (!::getenv(uncached)) told.store(::setenv(uncached, "1", 0) == 0);
}

void say_what_pytorch_was_told() {
  if (told.load() && !loaded().plugin)
    std::fprintf(stderr,
                 "firn: PyTorch keeps its own allocator here: %s=1 is set, so that it allocates "
                 "each block separately\n",
                 uncached);
}

}  // namespace firn::preload
