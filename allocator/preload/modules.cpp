#include "allocator/preload/modules.h"

#include <cstdio>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "allocator/preload/engines.h"
#include "allocator/preload/give_way.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/images.h"

namespace firn::preload {

namespace {
struct Named {  // a function or a kernel
  std::shared_ptr<const Layouts> layouts;
  const void* module = nullptr;
  std::string name;
};
struct Modules {
  std::mutex mutex;
  std::unordered_map<const void*, std::shared_ptr<const Layouts>> layouts;  // by module, library
  std::unordered_map<const void*, Named> named;
};
Modules& modules() {
  static Modules& all = *new Modules;
  return all;
}

void keep(const void* module, Layouts layouts) {
  if (layouts.empty()) return;
  std::lock_guard lock(modules().mutex);
  modules().layouts[module] = std::make_shared<const Layouts>(std::move(layouts));
}

void keep_file(const void* module, const char* path) {
  std::FILE* file = path ? std::fopen(path, "rbe") : nullptr;
  if (!file) return;
  std::vector<char> bytes;
  char some[1 << 16];
  for (size_t got; (got = std::fread(some, 1, sizeof some, file)) > 0;)
    bytes.insert(bytes.end(), some, some + got);
  (void)std::fclose(file);
  keep(module, layouts_of(bytes.data(), bytes.size()));
}

void name(const void* handle, const void* module, const char* words) {
  std::lock_guard lock(modules().mutex);
  modules().named.erase(handle);
  const auto found = modules().layouts.find(module);
  if (found != modules().layouts.end() && words)
    modules().named[handle] = {found->second, module, words};
}

/// Makes a call that loads or looks up, then keeps what is known of it. (coverage.cpp reports a
/// program that looks kernels up but launches none here: it launches past Firn.)
template <class Module, class Call, class Keep>
CUresult load(Module* module, Call&& call, Keep&& look) {
  const CUresult result = or_give_way("a module", call);
  if (result == CUDA_SUCCESS && module && images_needed()) look(*module);
  return result;
}
}  // namespace

bool images_needed() {
  static const bool needed = [] {
    const Result<Config> config = configuration();
    return (!real().cuFuncGetParamInfo && !real().cuKernelGetParamInfo) ||
           (config && !(*config).layouts);
  }();
  return needed;
}

bool metadata_of(CUfunction function, std::vector<Slot>& slots) {
  std::lock_guard lock(modules().mutex);
  const auto named = modules().named.find(function);
  if (named == modules().named.end()) return false;
  const auto layout = named->second.layouts->find(named->second.name);
  if (layout == named->second.layouts->end()) return false;
  slots = layout->second;
  return true;
}

void forget_image(const void* module) {
  std::lock_guard lock(modules().mutex);
  modules().layouts.erase(module);
  std::erase_if(modules().named, [&](const auto& of) { return of.second.module == module; });
}

CUresult cuModuleLoad(CUmodule* module, const char* path) {
  return load(module, [&] { return real().cuModuleLoad(module, path); },
              [&](const void* made) { keep_file(made, path); });
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return load(module, [&] { return real().cuModuleLoadData(module, image); },
              [&](const void* made) { keep(made, layouts_of(image)); });
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, int* options,
                            void** values) {
  return load(module,
              [&] { return real().cuModuleLoadDataEx(module, image, count, options, values); },
              [&](const void* made) { keep(made, layouts_of(image)); });
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return load(module, [&] { return real().cuModuleLoadFatBinary(module, image); },
              [&](const void* made) { keep(made, layouts_of(image)); });
}
CUresult cuLibraryLoadData(CUlibrary* library, const void* image, int* jit, void** jit_values,
                           unsigned jit_count, int* options, void** values, unsigned count) {
  return load(library,
              [&] {
                return real().cuLibraryLoadData(library, image, jit, jit_values, jit_count, options,
                                                values, count);
              },
              [&](const void* made) { keep(made, layouts_of(image)); });
}
CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, int* jit, void** jit_values,
                               unsigned jit_count, int* options, void** values, unsigned count) {
  return load(library,
              [&] {
                return real().cuLibraryLoadFromFile(library, path, jit, jit_values, jit_count,
                                                    options, values, count);
              },
              [&](const void* made) { keep_file(made, path); });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* words) {
  return load(function, [&] { return real().cuModuleGetFunction(function, module, words); },
              [&](const void* made) { name(made, module, words); });
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* words) {
  return load(kernel, [&] { return real().cuLibraryGetKernel(kernel, library, words); },
              [&](const void* made) { name(made, library, words); });
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return load(function, [&] { return real().cuKernelGetFunction(function, kernel); },
              [&](const void* made) {
                std::lock_guard lock(modules().mutex);
                modules().named.erase(made);
                const auto of = modules().named.find(kernel);
                if (of == modules().named.end()) return;
                const Named as = of->second;
                modules().named[made] = as;
              });
}

}  // namespace firn::preload
