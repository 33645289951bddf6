// Entries about modules, libraries and functions. A module is a shared object; see design of the
// software kernels in README: NAME and NAME_params.
#include "module.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "gpu.h"

namespace firn::software {

Module::~Module() {
  if (library) ::dlclose(library);
  if (fd >= 0) ::close(fd);
}

bool take_layout(Function& function, const unsigned (*pairs)[2]) {
  constexpr size_t parameters_bytes_max = 32764;  // as large as CUDA's largest
  for (; pairs && (*pairs)[1]; ++pairs) {
    const auto [offset, bytes] = *pairs;
    if (offset < function.packed_bytes) return false;
    if (size_t{offset} + bytes > parameters_bytes_max) return false;
    function.layout.emplace_back(offset, bytes);
    function.packed_bytes = size_t{offset} + bytes;
  }
  return true;
}

CUresult load_for_launch(Function& function, int device) {
  auto& known = function.launched;
  if (!gpu().own_needs.launch || std::find(known.begin(), known.end(), device) != known.end())
    return CUDA_SUCCESS;
  const auto module = function.module.lock();
  Own& own = module ? module->own : function.own;
  if (CUresult none = own.take(device, gpu().own_needs.launch)) return none;
  known.push_back(device);
  return CUDA_SUCCESS;
}

uint64_t function_of(const std::shared_ptr<Module>& module, const std::string& name) {
  for (const auto& [known, handle] : module->functions)
    if (known == name) return handle;
  void* run = ::dlsym(module->library, name.c_str());
  if (!run) return 0;
  // Without its table a kernel would run without parameters, and read garbage instead.
  const void* pairs = ::dlsym(module->library, (name + "_params").c_str());
  if (!pairs) {
    tell("cuModuleGetFunction: " + name + " has no table " + name +
         "_params of its parameters: it is no kernel");
    return 0;
  }
  auto function = std::make_shared<Function>();
  function->name = name;
  function->run = reinterpret_cast<FirnGpuKernel>(run);
  if (!take_layout(*function, static_cast<const unsigned(*)[2]>(pairs)))
    die("cuModuleGetFunction", name + "_params is not in ascending order, or too large");
  function->module = module;
  function->handle = gpu().functions.add(function);
  module->functions.emplace_back(name, function->handle);
  return function->handle;
}

namespace {
// How long the ELF image is, from its headers; 0 when it is none that this machine could load.
size_t image_bytes(const void* image) {
  const auto* bytes = static_cast<const unsigned char*>(image);
  if (std::memcmp(bytes, ELFMAG, SELFMAG) != 0 || bytes[EI_CLASS] != ELFCLASS64) return 0;
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  if (header.e_type != ET_DYN || header.e_machine == EM_CUDA) return 0;
  size_t end = header.e_shoff + size_t{header.e_shnum} * header.e_shentsize;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part;
    std::memcpy(&part, bytes + header.e_phoff + size_t{i} * header.e_phentsize, sizeof part);
    end = std::max<size_t>(end, part.p_offset + part.p_filesz);
  }
  return end;
}

CUresult no_code_of_ours(Gate& gate) {
  static std::atomic_flag told;
  if (!told.test_and_set())
    tell(std::string(gate.entry()) +
         ": this is not a shared object for this processor (GPU code such as PTX, a cubin or a "
         "fatbin?): the software GPU runs only PyTorch's operators, and kernels that were built "
         "for this processor. Other programs need a real GPU");
  return CUDA_ERROR_INVALID_IMAGE;
}

CUresult load(Gate& gate, const char* path, const void* image, bool of_library,
              std::shared_ptr<Module>* out) {
  auto module = std::make_shared<Module>();
  std::string name = path ? path : "";
  if (path) {
    if (::access(path, R_OK) != 0) return CUDA_ERROR_FILE_NOT_FOUND;
  } else {
    const size_t bytes = image_bytes(image);
    if (!bytes) return no_code_of_ours(gate);
    module->fd = ::memfd_create("firn-gpu-module", MFD_CLOEXEC);
    if (module->fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t at = 0; at < bytes;) {
      ssize_t n = ::write(module->fd, static_cast<const char*>(image) + at, bytes - at);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return CUDA_ERROR_OUT_OF_MEMORY;
      at += static_cast<size_t>(n);
    }
    name = "/proc/self/fd/" + std::to_string(module->fd);
  }
  // The object's constructors may call the driver.
  gate.lock().unlock();
  module->library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  gate.lock().lock();
  if (!module->library)
    return path ? no_code_of_ours(gate) : CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
  module->of_library = of_library;
  if (!of_library) module->context = gate.context();
  const auto here = current_context(gate.lock());
  if (CUresult none = module->own.take(here ? here->device : 0, gpu().own_needs.module)) {
    gate.lock().unlock();  // (it is closed, which runs destructors)
    module.reset();
    gate.lock().lock();
    return none;
  }
  module->handle = gpu().modules.add(module);
  *out = module;
  return CUDA_SUCCESS;
}

CUresult load_module(const char* entry, CUmodule* out, const char* path, const void* image) {
  return enter(entry, Need::context, [&](Gate& gate) -> CUresult {
    if (CUresult result = forbid_in_capture(gate)) return result;
    if (!out || (!path && !image)) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Module> module;
    if (CUresult result = load(gate, path, image, false, &module)) return result;
    *out = as_handle<CUmodule>(module->handle);
    return CUDA_SUCCESS;
  });
}

CUresult load_library(const char* entry, CUlibrary* out, const char* path, const void* image) {
  return enter(entry, Need::initialised, [&](Gate& gate) -> CUresult {
    if (!out || (!path && !image)) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Module> module;
    if (CUresult result = load(gate, path, image, true, &module)) return result;
    *out = as_handle<CUlibrary>(module->handle);
    return CUDA_SUCCESS;
  });
}

template <class Handle>
CUresult unload(const char* entry, Handle handle) {
  return enter(entry, Need::initialised, [&](Gate& gate) -> CUresult {
    auto module = gpu().modules.find(gate.entry(), handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    for (const auto& [name, function] : module->functions) gpu().functions.remove(function);
    module->own.give_back();
    for (uint64_t variable : module->variables) gpu().space.forget(variable);
    gpu().modules.remove(module->handle);
    // The last owner may be queued work; closing runs destructors, so not under the lock.
    gate.lock().unlock();
    module.reset();
    gate.lock().lock();
    return CUDA_SUCCESS;
  });
}

template <class Function_, class Module_>
CUresult get_function(const char* entry, Function_* out, Module_ handle, const char* name) {
  return enter(entry, Need::initialised, [&](Gate& gate) -> CUresult {
    auto module = gpu().modules.find(gate.entry(), handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t function = function_of(module, name);
    if (!function) return CUDA_ERROR_NOT_FOUND;
    *out = as_handle<Function_>(function);
    return CUDA_SUCCESS;
  });
}

// A variable of the shared object: device memory where it lies.
template <class Module_>
CUresult get_global(const char* entry, CUdeviceptr* address, size_t* bytes, Module_ handle,
                    const char* name) {
  return enter(entry, Need::context, [&](Gate& gate) -> CUresult {
    auto module = gpu().modules.find(gate.entry(), handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    void* found = ::dlsym(module->library, name);
    Dl_info info;
    void* extra = nullptr;
    if (!found || !::dladdr1(found, &info, &extra, RTLD_DL_SYMENT) || !extra)
      return CUDA_ERROR_NOT_FOUND;
    const auto& symbol = *static_cast<const ElfW(Sym)*>(extra);
    if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT) return CUDA_ERROR_NOT_FOUND;
    const auto base = reinterpret_cast<uint64_t>(found);
    if (!gpu().space.allocation_at(base)) {
      gpu().space.add_variable({.base = base, .bytes = symbol.st_size,
                                .device = gate.context()->device,
                                .context = gate.context()->handle});
      module->variables.push_back(base);
    }
    if (address) *address = base;
    if (bytes) *bytes = symbol.st_size;
    return CUDA_SUCCESS;
  });
}

template <class Handle>
CUresult with_function(const char* entry, Handle handle, const auto& body) {
  return enter(entry, Need::initialised, [&](Gate& gate) -> CUresult {
    auto function = gpu().functions.find(gate.entry(), handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    return body(*function);
  }, false);
}

template <class Handle>
CUresult parameter(const char* entry, Handle handle, size_t index, size_t* offset, size_t* bytes) {
  return with_function(entry, handle, [&](const Function& function) -> CUresult {
    if (!offset || index >= function.layout.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = function.layout[index].first;
    if (bytes) *bytes = function.layout[index].second;
    return CUDA_SUCCESS;
  });
}

template <class Handle>
CUresult name_of(const char* entry, Handle handle, const char** name) {
  return with_function(entry, handle, [&](const Function& function) -> CUresult {
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = function.name.c_str();
    return CUDA_SUCCESS;
  });
}
}  // namespace

FIRN_GPU_API CUresult cuModuleLoad(CUmodule* module, const char* path) {
  return load_module("cuModuleLoad", module, path, nullptr);
}
FIRN_GPU_API CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return load_module("cuModuleLoadData", module, nullptr, image);
}
FIRN_GPU_API CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, int*,
                                         void**) {
  return load_module("cuModuleLoadDataEx", module, nullptr, image);
}
FIRN_GPU_API CUresult cuModuleUnload(CUmodule module) { return unload("cuModuleUnload", module); }
FIRN_GPU_API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return get_function("cuModuleGetFunction", function, module, name);
}
FIRN_GPU_API CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module,
                                            const char* name) {
  return get_global("cuModuleGetGlobal", address, bytes, module, name);
}
FIRN_GPU_API CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                                         const char* name) {
  return get_global("cuLibraryGetGlobal", address, bytes, library, name);
}
FIRN_GPU_API CUresult cuModuleGetLoadingMode(int* mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  *mode = 1;  // eager
  return CUDA_SUCCESS;
}

FIRN_GPU_API CUresult cuLibraryLoadData(CUlibrary* library, const void* image, int*, void**,
                                        unsigned, int*, void**, unsigned) {
  return load_library("cuLibraryLoadData", library, nullptr, image);
}
FIRN_GPU_API CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, int*, void**,
                                            unsigned, int*, void**, unsigned) {
  return load_library("cuLibraryLoadFromFile", library, path, nullptr);
}
FIRN_GPU_API CUresult cuLibraryUnload(CUlibrary library) {
  return unload("cuLibraryUnload", library);
}
FIRN_GPU_API CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return get_function("cuLibraryGetKernel", kernel, library, name);
}
FIRN_GPU_API CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  return enter("cuLibraryGetModule", Need::context, [&](Gate& gate) -> CUresult {
    auto found = gpu().modules.find(gate.entry(), library);
    if (!found || !module) return CUDA_ERROR_INVALID_HANDLE;
    *module = as_handle<CUmodule>(found->handle);
    return CUDA_SUCCESS;
  });
}
/// A kernel is the same in every context here.
FIRN_GPU_API CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return with_function("cuKernelGetFunction", kernel, [&](const Function& found) -> CUresult {
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    *function = as_handle<CUfunction>(found.handle);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset,
                                         size_t* bytes) {
  return parameter("cuFuncGetParamInfo", function, index, offset, bytes);
}
FIRN_GPU_API CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset,
                                           size_t* bytes) {
  return parameter("cuKernelGetParamInfo", kernel, index, offset, bytes);
}
FIRN_GPU_API CUresult cuFuncGetName(const char** name, CUfunction function) {
  return name_of("cuFuncGetName", function, name);
}
FIRN_GPU_API CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  return name_of("cuKernelGetName", kernel, name);
}

FIRN_GPU_API CUresult cuFuncGetModule(CUmodule* module, CUfunction function) {
  return with_function("cuFuncGetModule", function, [&](const Function& found) -> CUresult {
    auto owner = found.module.lock();
    if (!module || !owner) return CUDA_ERROR_INVALID_VALUE;
    *module = as_handle<CUmodule>(owner->handle);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction function) {
  return with_function("cuFuncGetAttribute", function, [&](const Function&) -> CUresult {
    constexpr int max_threads_per_block = 0, registers = 4, ptx_version = 5, binary_version = 6;
    if (!value || attribute < 0) return CUDA_ERROR_INVALID_VALUE;
    *value = attribute == max_threads_per_block                              ? 1024
             : attribute == registers                                        ? 32
             : attribute == ptx_version || attribute == binary_version ? 80
                                                                             : 0;
    return CUDA_SUCCESS;
  });
}
FIRN_GPU_API CUresult cuFuncSetAttribute(CUfunction function, int, int) {
  return with_function("cuFuncSetAttribute", function,
                       [](const Function&) { return CUDA_SUCCESS; });
}
FIRN_GPU_API CUresult cuFuncSetCacheConfig(CUfunction function, int) {
  return with_function("cuFuncSetCacheConfig", function,
                       [](const Function&) { return CUDA_SUCCESS; });
}

FIRN_GPU_API int firnGpuKernelCreate(const char* name, FirnGpuKernel run,
                                     const unsigned (*layout)[2], void** function) {
  return enter("firnGpuKernelCreate", Need::initialised, [&](Gate&) -> CUresult {
    if (!name || !run || !function) return CUDA_ERROR_INVALID_VALUE;
    auto made = std::make_shared<Function>();
    made->name = name;
    made->run = run;
    if (!take_layout(*made, layout)) return CUDA_ERROR_INVALID_VALUE;
    made->handle = gpu().functions.add(made);
    *function = as_handle<void*>(made->handle);
    return CUDA_SUCCESS;
  }, false);
}

}  // namespace firn::software
