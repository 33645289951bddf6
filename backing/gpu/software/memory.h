// Addresses and physical memory: frames in memfds, reservations, mappings, linear allocations, host
// memory. Owns all of them. Lock: Gpu::mutex.
//
// Invariants: every reserved address without access is PROT_NONE; pages of released frames are kept
// for the next ones up to MemoryFile::kept_most, and given back to the system beyond (a hole is
// punched); used_bytes <= capacity on every device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "abi.h"
#include "identity.h"

namespace firn::software {

inline constexpr size_t granule_bytes = 2u << 20;
inline constexpr int pitch_most = 2147483647;  // CU_DEVICE_ATTRIBUTE_MAX_PITCH
inline constexpr size_t linear_alignment = 512;

inline size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/// Free stretches of an address or file range; first fit, coalescing.
class Stretches {
 public:
  Stretches() = default;
  Stretches(uint64_t base, uint64_t bytes) { free_[base] = bytes; }
  std::optional<uint64_t> take(uint64_t bytes);
  void give(uint64_t base, uint64_t bytes);

 private:
  std::map<uint64_t, uint64_t> free_;
};

struct Peak {
  uint64_t now = 0, peak = 0;
  void add(uint64_t n) {
    now += n;
    if (now > peak) peak = now;
  }
  void subtract(uint64_t n) { now -= n; }
};

/// A file of memory: pages appear when written, and go when a hole is punched. (A GPU's frames cost
/// its kernels nothing when they are new; a page of the system's is found, cleared and entered.)
class MemoryFile {
 public:
  MemoryFile() = default;
  explicit MemoryFile(const std::string& name, uint64_t bytes);
  ~MemoryFile();
  MemoryFile(MemoryFile&&) noexcept;
  MemoryFile& operator=(MemoryFile&&) noexcept;
  int fd() const { return fd_; }
  void punch(uint64_t offset, uint64_t bytes) const;

  // Granules, for frames:
  static constexpr uint64_t kept_most = uint64_t{256} << 20;  // bytes that no frame has
  /// True: all of them were mapped before and kept. No old bytes are in them.
  bool claim(uint64_t offset, uint64_t bytes);
  /// Of what was claimed: those that were mapped are kept, for their pages are there by now; others
  /// are punched.
  void release(uint64_t offset, uint64_t bytes, bool mapped_before);

 private:
  void clear(uint64_t offset, uint64_t bytes) const;

  int fd_ = -1;
  std::vector<bool> kept_;  // by granule
  uint64_t kept_bytes_ = 0;
};

struct Frame {
  uint64_t handle = 0;
  int device = -1;                   // -1: host memory
  size_t bytes = 0;
  uint64_t offset = 0;               // in the device's file, or in the one it was imported from
  bool exported = false;             // others may map it: its memory stays while this process is
  int imported_fd = -1;
  unsigned references = 0;           // of the handle
  unsigned mappings = 0;
  bool mapped_before = false;        // its pages are there already
  std::unique_ptr<uint64_t[]> tags{};  // in place of bytes (tags.h)
  CUmemAllocationProp prop{};
};

struct Mapping {
  uint64_t base = 0;
  size_t bytes = 0;
  std::shared_ptr<Frame> frame{};
  uint8_t access[devices_max] = {};  // CUmemAccess_flags per device
  bool reachable = false;            // some device has access
  int protection() const;            // the most that a device may, as mmap's PROT_
};

/// Bytes of mapped memory, as they lie in a file.
struct FilePart {
  int fd = -1;
  uint64_t offset = 0;
  size_t bytes = 0;
};

struct Allocation {
  enum class Kind : uint8_t { linear, managed, host, registered, variable };
  Kind kind = Kind::linear;
  uint64_t base = 0;
  size_t bytes = 0;      // as asked
  size_t held_bytes = 0; // of the heap, or of the host mapping
  int device = 0;        // for host memory the device current when it was made
  uint64_t context = 0;
  unsigned flags = 0;
  uint64_t pool = 0;     // handle, when it came from one
  uint64_t id = 0;
  bool on_heap() const { return kind == Kind::linear || kind == Kind::managed; }
  bool on_device() const { return on_heap() || kind == Kind::variable; }
};

/// Linear memory (cuMemAlloc) of one device: a file mapped whole, whose granules become accessible
/// with their first allocation and are given back with their last.
class Heap {
 public:
  Heap() = default;
  Heap(const std::string& name, uint64_t bytes);
  /// Granules that taking [address, +bytes) would newly need, and the address; nullopt: full.
  std::optional<uint64_t> take(size_t bytes, uint64_t room_bytes, uint64_t* committed_bytes);
  /// Bytes of granules given back.
  uint64_t give(uint64_t address, size_t bytes);
  bool contains(uint64_t address) const { return address - base_ < bytes_; }
  uint64_t offset_of(uint64_t address) const { return address - base_; }  // in the file
  int fd() const { return file_.fd(); }
  void destroy();

 private:
  MemoryFile file_;
  uint64_t base_ = 0, bytes_ = 0;
  Stretches free_;
  std::map<uint64_t, unsigned> users_;  // allocations per committed granule, by index
};

struct DeviceMemory {
  uint64_t capacity = 0;
  Peak frame_bytes, linear_bytes, used_bytes;
  uint64_t frames = 0, mapped_bytes = 0;
  MemoryFile frame_file;
  Stretches frame_space;
  Heap small, large;  // below and from one granule
  bool opened = false;

  void open(int ordinal);
  uint64_t free_bytes() const { return capacity - used_bytes.now; }
};

enum class MemoryKind : uint8_t { pageable, pinned, device, invalid };

class AddressSpace {
 public:
  // Virtual memory management. Breaches of the rules abort, naming `entry`; errors are what the
  // system cannot give (vm.max_map_count), and leave everything as it was.
  CUresult reserve(uint64_t* address, size_t bytes, size_t alignment, uint64_t hint);
  CUresult free_reservation(const char* entry, uint64_t address, size_t bytes);
  CUresult map(const char* entry, uint64_t address, size_t bytes,
               const std::shared_ptr<Frame>& frame);
  CUresult unmap(const char* entry, uint64_t address, size_t bytes);
  CUresult set_access(const char* entry, uint64_t address, size_t bytes,
                      const CUmemAccessDesc* access, size_t count);
  const Mapping* mapping_around(uint64_t address) const;
  /// Mappings that begin in [address, +bytes).
  size_t mappings_in(uint64_t address, size_t bytes) const;
  bool reserved(uint64_t address) const;
  uint64_t reserved_bytes() const;

  // Copies into mapped memory (arrivals.cpp).
  struct Pages {
    uint64_t base = 0;
    size_t bytes = 0;
  };
  /// Takes all access from the pages that lie wholly in [address, +bytes), until end_arrival() of
  /// the answer; 0: there are none.
  uint64_t begin_arrival(uint64_t address, size_t bytes);
  void end_arrival(uint64_t arrival);
  /// Parts of the range that such copies have closed at this moment.
  std::vector<Pages> closed_in(uint64_t address, size_t bytes) const;
  /// A copy out reads the range, by end_departure() of the answer.
  uint64_t begin_departure(uint64_t address, size_t bytes);
  void end_departure(uint64_t departure);
  bool departing(uint64_t address, size_t bytes) const;
  /// Where the bytes of a mapped range lie. Aborts, naming `entry`, where it is not open for writing.
  std::vector<FilePart> behind(const char* entry, uint64_t address, size_t bytes) const;
  /// Why an access to the address is a fault, in words for stderr; empty: it is none.
  std::string access_words(uint64_t address) const;

  // Frames.
  std::shared_ptr<Frame> create_frame(DeviceMemory* memory, int device, size_t bytes,
                                      const CUmemAllocationProp& prop);
  void drop_if_unused(const std::shared_ptr<Frame>& frame);
  /// The file that holds the frame's bytes, from Frame::offset on.
  int file_of(const Frame& frame) const;

  // Linear and host memory.
  CUresult allocate_linear(DeviceMemory& memory, Allocation wanted, uint64_t* address);
  void free_linear(DeviceMemory& memory, uint64_t base);
  CUresult allocate_host(Allocation wanted, uint64_t* address);
  CUresult register_host(Allocation wanted);
  void add_variable(Allocation wanted);  // a module's; its memory is the shared object's
  const Allocation* allocation_around(uint64_t address) const;
  Allocation* allocation_at(uint64_t base);
  void forget(uint64_t base);           // unregister
  void free_host(uint64_t base);
  bool host_overlaps(uint64_t address, size_t bytes) const;
  uint64_t host_registered_bytes() const { return registered_bytes_; }
  const std::map<uint64_t, Allocation>& allocations() const { return allocations_; }

  /// The kind of memory at [address, +bytes); `device` gets its ordinal (-1 for host memory).
  MemoryKind kind_of(uint64_t address, size_t bytes, int* device) const;
  /// May that device use [address, +bytes), as far as it is mapped? (Linear memory is every one's.)
  bool open_to(uint64_t address, size_t bytes, int device) const;
  /// Is the address in the GPU's part of the address space (mapped or not)?
  bool of_device(uint64_t address) const;

  void reset();

 private:
  /// The frame's pages at the address, without access as yet.
  CUresult map_frame(const char* entry, uint64_t address, size_t bytes, const Frame& frame) const;

  std::map<uint64_t, size_t> reservations_;
  std::map<uint64_t, Mapping> mappings_;
  /// Takes access away again from the pages of arrivals under way, after others gave it.
  void close_arriving(uint64_t address, size_t bytes) const;
  std::map<uint64_t, Pages> arriving_;  // by arrival
  std::map<uint64_t, Pages> departing_;
  uint64_t arrivals_ = 0, departures_ = 0;
  std::map<uint64_t, Allocation> allocations_;
  MemoryFile host_file_;
  Stretches host_space_;
  uint64_t registered_bytes_ = 0, ids_ = 0;
};

}  // namespace firn::software
