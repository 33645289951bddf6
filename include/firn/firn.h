/**
 * @file firn.h
 * Firn's C API: device memory that ages. A block keeps its address for life; while no work uses it,
 * its bytes may leave the GPU for host memory and NVMe, and they are back before the next work that
 * was announced by firn_touch().
 *
 * Conventions: sizes are bytes. A stream is a CUstream (cudaStream_t); null is the legacy default
 * stream. Functions that return int return 0 on success, otherwise one of firn_status, and leave a
 * one-line description for the calling thread in firn_error(). All functions are thread-safe.
 *
 * The rule that replaces a page fault: announce every block that work will use, in one firn_touch()
 * before the work is enqueued. The announced blocks stay on the device until the same thread's next
 * firn_touch() or firn_launched(). A block that was never touched is never evicted.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FIRN_API __attribute__((visibility("default")))
#else
#define FIRN_API
#endif

#ifdef __cplusplus
#define FIRN_NOEXCEPT noexcept
#else
#define FIRN_NOEXCEPT
#endif

typedef void* firn_stream; /**< CUstream, not owned */

enum firn_status {
  FIRN_OK = 0,
  FIRN_INVALID_ARGUMENT = 1,   /**< foreign or freed pointer, malformed setting */
  FIRN_OUT_OF_MEMORY = 2,      /**< the budget cannot hold what was asked for; see firn_error() */
  FIRN_HOST_OUT_OF_MEMORY = 3, /**< no pinned host memory */
  FIRN_DRIVER = 4,             /**< the driver answered an error */
  FIRN_IO = 5,                 /**< spill files: EIO, ENOSPC, EFBIG */
  FIRN_NOT_SUPPORTED = 6,      /**< refused by this machine */
  FIRN_LOST = 7                /**< a block's last good copy could not be read back */
};

enum firn_access { FIRN_READ = 0, FIRN_WRITE = 1 /**< written, or read and written */ };

/**
 * Starts Firn in this process: opens driver and store, no thread and no device yet.
 * @param conf "firn_budget:20GiB,firn_dir:/nvme0;/nvme1,firn_host:8GiB", null or "" for the FIRN_*
 *        environment and the defaults alone. The same settings again: no effect.
 * @return FIRN_INVALID_ARGUMENT for unknown keys, malformed values and unusable directories.
 */
FIRN_API int firn_init(const char* conf) FIRN_NOEXCEPT;

/**
 * Allocates at least `bytes` on `device` (ordinal) for work on `stream`.
 * @param[out] block device address, 512-byte aligned at least; null for 0 bytes. Contents
 *     undefined.
 * @return FIRN_OUT_OF_MEMORY when, after everything evictable was evicted, there is no room.
 */
FIRN_API int firn_malloc(void** block, size_t bytes, int device, firn_stream stream) FIRN_NOEXCEPT;

/**
 * Frees a block. Its memory is reused at once by allocations for the stream it was allocated for,
 * elsewhere after all announced work is over.
 * @param stream work on it may use the block until here, beside the allocation's stream.
 * @return FIRN_INVALID_ARGUMENT for pointers that are not the start of a live block.
 */
FIRN_API int firn_free(void* block, firn_stream stream) FIRN_NOEXCEPT;

/**
 * Announces that the next work enqueued on `stream` by this thread uses `count` blocks.
 * Makes all of them resident (waits for those that are not; `stream` waits on the device for copies
 * in flight) and holds them until this thread's next firn_touch() or firn_launched().
 * @param blocks any addresses inside blocks; addresses that are not Firn's are ignored.
 * @param access count values of firn_access, or null: all written.
 * @return on an error nothing is held.
 */
FIRN_API int firn_touch(void* const* blocks, const int* access, size_t count, firn_stream stream) FIRN_NOEXCEPT;

/** The announced work has been enqueued; its blocks may leave again once it is over. */
FIRN_API void firn_launched(void) FIRN_NOEXCEPT;

/**
 * The live blocks in [block, block + bytes) are used soon, by work that will be enqueued on `stream`:
 * brings them back, of large blocks the parts in the range. Acts at its place in the stream: room is
 * made for them once what was enqueued there before is over; where there is room already they come
 * at once. Hints of one stream act in order. Does not wait; ignored while `stream` is captured.
 * Memory in the range that is not Firn's, or free, is skipped. A range means one device's blocks.
 * @return FIRN_INVALID_ARGUMENT where no live block is in the range.
 */
FIRN_API int firn_prefetch(void* block, size_t bytes, firn_stream stream) FIRN_NOEXCEPT;

/** The live blocks in [block, block + bytes) are not used again for long: they leave, whole, behind
 * the announced work that uses them. No effect on a block that is announced now, before
 * firn_launched(), or on its way in. Ranges and errors as for firn_prefetch(). */
FIRN_API int firn_cold(void* block, size_t bytes) FIRN_NOEXCEPT;

/** Keeps a block on the device (brings it back if need be) until firn_unpin(). Counted. */
FIRN_API int firn_pin(void* block) FIRN_NOEXCEPT;
FIRN_API int firn_unpin(void* block) FIRN_NOEXCEPT;

/**
 * Statistics as a JSON document, the same as `firn run --stats` writes.
 * @param[out] text receives at most `size` bytes including the terminating zero; may be null.
 * @return the length of the whole document without the zero.
 */
FIRN_API size_t firn_stats(char* text, size_t size) FIRN_NOEXCEPT;

/** Stops Firn's threads and writes the statistics file, if one was asked for. Memory stays valid
 * until the process ends, but nothing is moved any more. */
FIRN_API void firn_shutdown(void) FIRN_NOEXCEPT;

/** This thread's last error in words; "" if there was none. Valid until its next call. */
FIRN_API const char* firn_error(void) FIRN_NOEXCEPT;

#ifdef __cplusplus
}
#endif
