// The exports of the software GPU's libcuda.so.1 beside the driver API: its settings, its clock,
// its faults and its own count of frames. Resolve these by dlsym from Driver::handle; absent from a
// real driver. Every setting can come from the environment too (the names in brackets), read at
// cuInit.
#pragma once

#include <cstdint>

extern "C" {

typedef struct FirnGpuConfig {
  unsigned struct_bytes;        // sizeof(FirnGpuConfig)
  int devices;                  // [FIRN_GPU_DEVICES] default 1, at most 16
  uint64_t memory_bytes;        // [FIRN_GPU_MEMORY] capacity per device, e.g. 8GiB; default 8 GiB
  double link_bytes_s;          // [FIRN_GPU_LINK] host link each way, e.g. 16GiB/s; 0: unmodelled
                                // (as fast as memcpy); default 0
  uint64_t link_latency_ns;     // [FIRN_GPU_LINK_LATENCY] default 0
  double memory_bytes_s;        // device-to-device copies and memsets; 0: unmodelled
  uint64_t call_ns_create, call_ns_map, call_ns_access, call_ns_unmap;  // modelled on the virtual
                                // clock only; default 0
  int virtual_clock;            // [FIRN_GPU_CLOCK=virtual|wall] default wall
  int no_bytes;                 // copies and fills take their time and move nothing, mapped
                                // addresses stay inaccessible: a GPU of any size costs no memory.
                                // Everything is checked as ever. Virtual clock only. Default 0
  int tags;                     // with no_bytes: memory has tags in place of bytes. Default 0
} FirnGpuConfig;

// Tags: one 64-bit number for each 4 KiB of frames and of host memory, at multiples of that (memory
// that was never written has firn_gpu_tag_undefined). Copies and fills do to tags as they would to
// bytes, when they end on the virtual clock. From a copy's begin to its end its target is
// firn_gpu_tag_in_flight; a source that changed meanwhile arrives as firn_gpu_tag_torn. A target in
// mapped memory is in flight from the copy's submission on, if a use of it before would be a fault
// (backing/gpu/software/arrivals.h).
enum : uint64_t {
  firn_gpu_tag_bytes = 4096,
  firn_gpu_tag_undefined = 0xFFFFFFFFFFFF0001,
  firn_gpu_tag_in_flight = 0xFFFFFFFFFFFF0002,
  firn_gpu_tag_torn = 0xFFFFFFFFFFFF0003,
  firn_gpu_tag_filled = 0xFFFFFFFFFFFF0100,  // + the value of a fill's last byte
};

// Machines that refuse something, from the environment alone, at every cuInit:
//  FIRN_GPU_POSIX_FD=304   frames that could be shared (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) are
//                          refused with that error, as in gVisor (304), by vGPU and MIG (999)
//  FIRN_GPU_HOST_NUMA=none|fail|crash   host memory as frames: the attribute says that there is
//                          none; cuMemCreate answers out of memory; cuMemCreate kills the process
//  FIRN_GPU_HOST_NUMA=no-htod|no-copies   or it is granted, and copies between such frames and host
//                          memory are refused: cuMemcpyHtoD and DtoH; all of them
//  FIRN_GPU_CALL_COST=40, or 40+150   calls that create, map, open, unmap and release frames, and
//                          that register host memory, take so many times as long as on an A100, for
//                          each handle, one at a time in the process; opening waits, up to 150 us
//                          for each handle, until no copy to the host is under way. Wall clock only

// Device memory that the driver takes for itself:
//  FIRN_GPU_OWN=module:32MiB,launch:8MiB,stream:2MiB,graph:4MiB   each module or library loaded, each
//                          kernel's first launch, each stream and executable graph; out of memory
//                          where the device has less. Given back with the object. Default: nothing
// Memory that PyTorch's operators on it keep, as cuBLASLt's do:
//  FIRN_GPU_WORKSPACE=4194304   bytes for each stream, allocated by the first matrix product there
//                          and used by all that follow. Default: 0

/// Before cuInit, or after firnGpuReset. 0, or -1 when already initialised, or for bad settings.
int firnGpuConfigure(const FirnGpuConfig* config);
/// Forgets every device, context, stream, event, frame and mapping (tests: a fresh GPU in the same
/// process). Aborts when another thread is inside the driver.
void firnGpuReset(void);

/// Nanoseconds of the GPU's clock.
uint64_t firnGpuNow(void);
/// Virtual clock: runs everything due until `ns` (absolute), then sets the clock there.
void firnGpuAdvanceTo(uint64_t ns);
/// When the next queued work would complete; UINT64_MAX when nothing is queued.
uint64_t firnGpuNextEvent(void);

/// The nth next call (1 = the next) of `entry` ("cuMemMap"; "*" any fallible call) answers `error`
/// and does nothing. nth == 0 clears. Also [FIRN_GPU_FAIL=cuMemMap:3:2,...] (entry:nth:error).
void firnGpuFailAt(const char* entry, uint64_t nth, int error);
/// As firnGpuFailAt, and every call of `entry` after that one, too. Also
/// [FIRN_GPU_FAIL=cuMemMap:3+:2].
void firnGpuFailFrom(const char* entry, uint64_t nth, int error);
/// After `after` more calls (0: now) every context of the process ends with `error`, as if a kernel
/// of its own had failed: 700 an illegal address, 710 an assertion, 719 a failed launch. Queued
/// work never runs; nearly every entry answers `error` until the context is destroyed. A kernel
/// that faults, asserts or traps ends its own context by itself. Also [FIRN_GPU_DIE=700:250]
/// (error:after). 0, or -1 before cuInit or for error 0.
int firnGpuDie(int error, uint64_t after);
/// Calls of `entry` fail with probability `rate`, drawn from `seed`.
void firnGpuFailRate(const char* entry, double rate, uint64_t seed, int error);
/// Calls that could have been made to fail so far (for loops over n).
uint64_t firnGpuFallibleCalls(void);

typedef struct FirnGpuCounts {
  uint64_t frame_bytes, frame_bytes_peak;    // cuMemCreate frames held now, at most
  uint64_t malloc_bytes, malloc_bytes_peak;  // cuMemAlloc family
  uint64_t used_bytes_peak;                  // both together, at most
  uint64_t frames, mapped_bytes, streams, events, host_registered_bytes;
  uint64_t kernels, copies, copied_bytes;
  uint64_t copied_to_device_bytes;  // of these, from host memory
  uint64_t copied_to_host_bytes;    // from this device to host memory
} FirnGpuCounts;
int firnGpuCounts(int device, FirnGpuCounts* counts);
/// Addresses that are reserved (cuMemAddressReserve) and not given back, of the whole process.
uint64_t firnGpuReservedBytes(void);
/// Restarts the *_peak figures of `device` at the present values.
void firnGpuResetPeaks(int device);

/// A kernel as a host function, without a module (tests, and PyTorch's operators): runs
/// fn(params, grid, block) when `stream` (a CUstream) reaches it. `params` are copied by `layout`,
/// pairs of (offset, size) ended by {0, 0}, as cuLaunchKernel would. Returns a CUresult.
typedef void (*FirnGpuKernel)(void** params, const unsigned grid[3], const unsigned block[3]);
int firnGpuKernelCreate(const char* name, FirnGpuKernel fn, const unsigned (*layout)[2],
                        void** function /* out: CUfunction */);

/// For kernels and stores of simulations; `address` and `bytes` are rounded outwards. All return
/// one of FirnGpuTags, the last of which name what is wrong with the access; then nothing was done.
/// `device`: the one whose access to mapped memory counts; -1: none's.
enum FirnGpuTags {
  firn_gpu_tags_done = 0,
  firn_gpu_tags_differ = 1,
  firn_gpu_tags_unmapped = -1,
  firn_gpu_tags_read_only = -2,
  firn_gpu_tags_early = -3,  // a copy to it is in flight
};
/// Writes `first`, `first` + 1, ...
int firnGpuTagsFill(int device, uint64_t address, uint64_t bytes, uint64_t first);
/// Differ: `at` gets the number of the first that is not `first` + its number, `found` that tag.
int firnGpuTagsCompare(int device, uint64_t address, uint64_t bytes, uint64_t first, uint64_t* at,
                       uint64_t* found);
int firnGpuTagsRead(uint64_t address, uint64_t bytes, uint64_t* tags);
int firnGpuTagsWrite(uint64_t address, uint64_t bytes, const uint64_t* tags);

/// Keeps `stream` (a CUstream) busy for `ns`: a kernel that only takes time.
int firnGpuBusy(void* stream, uint64_t ns);

/// Called for every piece of work that takes time, when it is complete, with the GPU's lock held
/// (no call back into the driver): the entry that enqueued it ("cuMemcpyDtoHAsync", "firnGpuBusy"),
/// its stream (a CUstream), its begin and end on the GPU's clock, and the bytes of a copy.
typedef void (*FirnGpuObserver)(void* context, const char* entry, void* stream, uint64_t begin_ns,
                                uint64_t end_ns, uint64_t bytes);
/// One observer at a time; null ends it. firnGpuReset() forgets it.
void firnGpuObserve(FirnGpuObserver observer, void* context);

}  // extern "C"
