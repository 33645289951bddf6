// The base of all handlers: their declarations, the real driver's entries, and the door through
// which every call enters. Owns the calling thread's depth.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <exception>

#include "allocator/preload/stand_in.h"
#include "firn/cuda_types.h"

namespace firn::preload {

#define H(entry, parameters) CUresult entry parameters;
#include "allocator/preload/handled.inc"
#undef H

/// The real driver's entries that Firn calls.
struct Real {
#define H(entry, parameters) CUresult(*entry) parameters = nullptr;
#define C(entry, parameters) CUresult(*entry) parameters = nullptr;
#include "allocator/preload/called.inc"
#include "allocator/preload/handled.inc"
#undef H
#undef C
};

/// Published before the first handler is handed out.
inline std::atomic<const Real*> real_entries{nullptr};
inline std::atomic<const FirnStandIn*> the_stand_in{nullptr};
inline const Real& real() { return *real_entries.load(std::memory_order_relaxed); }
inline const FirnStandIn& stand_in() { return *the_stand_in.load(std::memory_order_relaxed); }

/// False in a forked child, and once exit has begun: the driver is called as if Firn were not
/// there.
inline std::atomic<bool> live{false};
/// Exit has begun, in a process that is no child of fork.
inline std::atomic<bool> at_exit{false};
inline bool exiting() { return at_exit.load(std::memory_order_acquire); }

/// How many handlers this thread is in. In the static block: found without a call.
inline thread_local int depth __attribute__((tls_model("initial-exec"))) = 0;

/// Driver entries called meanwhile by this thread go to the driver.
class Inside {
 public:
  Inside() : error_(errno) { ++depth; }
  ~Inside() {
    --depth;
    errno = error_;
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  int error_;
};

inline uint64_t number(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
/// The stream of a _ptds or _ptsz entry: null means the thread's own default stream.
inline CUstream own(CUstream stream) { return stream ? stream : CU_STREAM_PER_THREAD; }

/// The function handed out for an entry. `late`: called once exit has begun, too.
template <auto handler, auto entry, bool late = false>
struct Door;
template <class... P, CUresult (*handler)(P...), CUresult (*Real::*entry)(P...), bool late>
struct Door<handler, entry, late> {
  /// For the coverage report. Not exact: an increment may be lost between threads.
  static inline std::atomic<uint64_t> calls{0};

  /// Never throws: the program above may be C, and the driver's own code is.
  static CUresult enter(P... parameters) noexcept {
    if (depth > 0 || (!live.load(std::memory_order_acquire) && !(late && exiting())))
      return (real().*entry)(parameters...);
    Inside inside;
    calls.store(calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    try {
      return handler(parameters...);
    } catch (const std::exception&) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    } catch (...) {
      return CUDA_ERROR_UNKNOWN;
    }
  }
};

}  // namespace firn::preload
