// Loads the software libnvidia-ml.so.1 with this library: a program that asks for NVML by name then
// has the one that knows this device, and the environment need not name it.
#include <dlfcn.h>

#include <string>

namespace {

__attribute__((constructor)) void load_nvml() {
  Dl_info self{};
  if (!dladdr(reinterpret_cast<const void*>(&load_nvml), &self) || !self.dli_fname) return;
  const std::string path = self.dli_fname;
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return;
  const std::string folder = path.substr(0, slash + 1);
  // Beside this one where they are installed; in a build folder, beside its folder.
  for (const char* name : {"libnvidia-ml.so.1", "../nvml/libnvidia-ml.so.1"})
    if (dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return;
}

}  // namespace
