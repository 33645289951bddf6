// Opens the driver library, real or software, and fills the table of entry points. Owns the dlopen
// handle, which stays open for the life of the process.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "firn/driver.h"

namespace firn {

Result<std::unique_ptr<Driver>> open_driver(const std::string& library) {
  const std::string name = library.empty() ? "libcuda.so.1" : library;
  void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* why = ::dlerror();
    return make_error(Code::not_supported, 0,
                      "no GPU driver: " + std::string(why ? why : name + " cannot be opened") +
                          "; the software GPU needs no driver (firn run --device software)");
  }
  auto driver = std::make_unique<Driver>();
  driver->stand_in = reinterpret_cast<void* (*)(const char*)>(::dlsym(handle, "firn_stand_in"));
  if (driver->stand_in) handle = driver->stand_in("driver");
  if (!handle)
    return make_error(Code::not_supported, 0,
                      "no GPU driver: " + name + " is not on this machine; the software GPU needs "
                      "no driver (firn run --device software)");
  driver->handle = handle;
  driver->software = ::dlsym(handle, "firnGpuConfigure") != nullptr;
  std::string missing;
  // By exported, versioned name: the entry that this table's signature was written for, whatever
  // newer version cuGetProcAddress would choose for the plain name.
#define FIRN_DRIVER_LOAD(member, symbol, parameters)                                       \
  driver->member = reinterpret_cast<CUresult(*) parameters>(::dlsym(handle, #symbol));     \
  if (!driver->member) missing += missing.empty() ? #symbol : ", " #symbol;
  FIRN_DRIVER_ENTRIES(FIRN_DRIVER_LOAD)
#undef FIRN_DRIVER_LOAD
  if (!missing.empty())
    return make_error(Code::not_supported, 0,
                      name + " lacks " + missing + ": a driver for CUDA 11.2 or newer is needed");
  Dl_info info{};
  driver->library = ::dladdr(reinterpret_cast<void*>(driver->init), &info) && info.dli_fname
                        ? info.dli_fname
                        : name;
  return driver;
}

// A refusal is tried once more: it may have reported another error.
Driver::ContextGuard::ContextGuard(const Driver& driver, CUcontext context) : driver_(driver) {
  result_ = driver_.ctx_push_current(context);
  if (result_ != CUDA_SUCCESS) result_ = driver_.ctx_push_current(context);
  if (result_ == CUDA_SUCCESS)
    relaxed_ = driver_.thread_exchange_stream_capture_mode(&mode_) == CUDA_SUCCESS;
}

Driver::ContextGuard::~ContextGuard() {
  if (result_ != CUDA_SUCCESS) return;
  // Refused only with an invalid mode, and this one is the driver's own.
  if (relaxed_) (void)driver_.thread_exchange_stream_capture_mode(&mode_);
  CUcontext popped = nullptr;
  // Refused twice: the driver is gone, and its current context no longer matters.
  if (driver_.ctx_pop_current(&popped) != CUDA_SUCCESS) (void)driver_.ctx_pop_current(&popped);
}

Error Driver::error(const char* entry, CUresult result, std::source_location where) const {
  const char* error_name = nullptr;
  const char* words = nullptr;
  (void)get_error_name(result, &error_name);
  (void)get_error_string(result, &words);
  std::string text = std::string(entry) + ": " +
                     (error_name ? error_name : "error " + std::to_string(result)) +
                     (words ? std::string(" (") + words + ")" : std::string());
  return make_error(Code::driver, static_cast<int>(result), std::move(text), where);
}

}  // namespace firn
