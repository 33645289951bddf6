// The handles by which other processes open memory: the words that name frames, and the 64 bytes
// that name the words. An input: which handle, and changes to its bytes.
//
// Beyond no crash: a handle that was not changed opens the frames that it names, in their order;
// words that were changed are refused, and changed bytes open nothing else; an address is within
// what was opened; a refusal says why on one line; nothing stays mapped, open or imported.
#include <sys/mman.h>
#include <sys/stat.h>

#include <memory>
#include <vector>

#include "allocator/memory/exported_memory.h"
#include "allocator/preload/shared_handle.h"
#include "tests/fuzz/fuzz.h"

using namespace firn;

namespace {

constexpr uint64_t granule = 2u << 20;
constexpr uint64_t addresses = uint64_t{1} << 40;

struct Frame {
  int fd = -1;
  uint64_t bytes = 0;
  ino_t inode = 0;
};
std::vector<Frame> frames;                      // a handle is a number of it, from 1 on
struct Mapped {
  uint64_t at, bytes;
  size_t frame;
};
struct {
  uint64_t reserved_at = 0, reserved_bytes = 0;  // one reservation at a time
  std::vector<Mapped> mapped;
  std::map<uint64_t, size_t> imported;  // handles of imports: the frame
  uint64_t next_import = 1000;
} gpu;

CUresult no_name(CUresult, const char** name) {
  *name = "refused";
  return CUDA_SUCCESS;
}
CUresult export_frame(void* to, CUmemGenericAllocationHandle frame, CUmemAllocationHandleType,
                      unsigned long long) {
  *static_cast<int*>(to) = ::fcntl(frames[frame - 1].fd, F_DUPFD_CLOEXEC, 0);
  return CUDA_SUCCESS;
}
CUresult import_frame(CUmemGenericAllocationHandle* to, void* shareable,
                      CUmemAllocationHandleType) {
  struct stat found{};
  if (::fstat(static_cast<int>(reinterpret_cast<intptr_t>(shareable)), &found) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < frames.size(); ++i)
    if (frames[i].inode == found.st_ino) {
      *to = gpu.next_import++;
      gpu.imported[*to] = i;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_VALUE;
}
CUresult release_frame(CUmemGenericAllocationHandle frame) {
  FUZZ_CHECK(gpu.imported.erase(frame) == 1, "a frame is released that was not imported");
  return CUDA_SUCCESS;
}
CUresult reserve(CUdeviceptr* at, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  if (bytes == 0 || bytes % granule != 0 || bytes > addresses) return CUDA_ERROR_INVALID_VALUE;
  FUZZ_CHECK(gpu.reserved_bytes == 0, "a reservation is left");
  *at = gpu.reserved_at = uint64_t{0x7100} << 32;
  gpu.reserved_bytes = bytes;
  return CUDA_SUCCESS;
}
CUresult free_addresses(CUdeviceptr at, size_t bytes) {
  FUZZ_CHECK(at == gpu.reserved_at && bytes == gpu.reserved_bytes && gpu.mapped.empty(),
             "addresses are given back that are not free");
  gpu.reserved_bytes = 0;
  return CUDA_SUCCESS;
}
CUresult map(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle frame,
             unsigned long long) {
  const auto found = gpu.imported.find(frame);
  FUZZ_CHECK(found != gpu.imported.end(), "no such frame");
  if (offset != 0 || bytes != frames[found->second].bytes || at < gpu.reserved_at ||
      at - gpu.reserved_at > gpu.reserved_bytes - bytes)
    return CUDA_ERROR_INVALID_VALUE;
  gpu.mapped.push_back({at, bytes, found->second});
  return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr at, size_t bytes) {
  FUZZ_CHECK(!gpu.mapped.empty() && at == gpu.mapped.front().at &&
                 at + bytes == gpu.mapped.back().at + gpu.mapped.back().bytes,
             "other memory is unmapped than was mapped");
  gpu.mapped.clear();
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }

Driver& driver() {
  static Driver made;
  made.get_error_name = made.get_error_string = no_name;
  made.mem_export_to_shareable_handle = export_frame;
  made.mem_import_from_shareable_handle = import_frame;
  made.mem_release = release_frame;
  made.mem_address_reserve = reserve;
  made.mem_address_free = free_addresses;
  made.mem_map = map;
  made.mem_unmap = unmap;
  made.mem_set_access = set_access;
  return made;
}

/// An export of its own frames, with the preload library's file and handle for it.
struct Export {
  std::shared_ptr<const ExportedMemory> memory;
  std::string words;
  std::vector<size_t> of;  // its frames
  uint64_t bytes = 0;
  Descriptor file;

  Export(uint64_t base, std::initializer_list<uint64_t> sizes) {
    std::vector<std::pair<CUmemGenericAllocationHandle, uint64_t>> list;
    for (const uint64_t size : sizes) {
      Frame frame{::memfd_create("frame", MFD_CLOEXEC), size, 0};
      struct stat found{};
      FUZZ_CHECK(frame.fd >= 0 && ::fstat(frame.fd, &found) == 0, "memfd");
      frame.inode = found.st_ino;
      frames.push_back(frame);
      of.push_back(frames.size() - 1);
      list.emplace_back(frames.size(), size);
      bytes += size;
    }
    auto made = ExportedMemory::make(driver(), base, list);
    FUZZ_CHECK(made, "%s", describe(made.error()).c_str());
    memory = *made;
    words = memory->handle();
    file = preload::words_file(words);
  }
  CUipcMemHandle handle(uint64_t place) const {
    return preload::handle_of({::getpid(), file.get(), place, *identity_of(words)});
  }
};

struct Exports {
  Export one{uint64_t{1} << 40, {granule, 4 * granule, granule}};
  Export two{uint64_t{1} << 41, {2 * granule}};
  std::string ended;  // of an export that is no more
  CUipcMemHandle ended_handle;
  /// What else a changed number may name: a file without end, and one that holds anything.
  Descriptor endless{::open("/dev/zero", O_RDONLY | O_CLOEXEC)};
  Exports() {
    const Export gone{uint64_t{1} << 42, {granule, granule}};
    ended = gone.words;
    ended_handle = gone.handle(0);
  }
};

/// A few changes, each of them a place and what is put there.
std::string changed(std::string bytes, fuzz::Draw& draw) {
  for (unsigned changes = draw.upto(4); changes > 0; --changes) {
    if (bytes.empty()) break;
    const size_t at = draw.number<uint16_t>() % bytes.size();
    switch (draw.upto(5)) {
      case 0: bytes.resize(at); break;
      case 1: bytes.append(draw.bytes(draw.upto(40))); break;
      case 2: bytes[at] = static_cast<char>(bytes[at] + 1); break;
      case 3: {  // one aligned word is what another one is
        const size_t to = at / 8 * 8, from = draw.number<uint8_t>() % (bytes.size() / 8 + 1) * 8;
        if (to + 8 <= bytes.size() && from + 8 <= bytes.size())
          std::memmove(&bytes[to], &bytes[from], 8);
        break;
      }
      case 4: {
        const uint64_t word = draw.number<uint64_t>();
        std::memcpy(&bytes[at], &word, std::min(sizeof word, bytes.size() - at));
        break;
      }
      default: bytes[at] = static_cast<char>(draw.number<uint8_t>());
    }
  }
  return bytes;
}

/// What is mapped now is one of the exports, whole and in order.
bool is_mapped(const Export& all) {
  if (gpu.mapped.size() != all.of.size()) return false;
  for (size_t i = 0; i < all.of.size(); ++i)
    if (gpu.mapped[i].frame != all.of[i]) return false;
  return true;
}

void check_nothing_is_left(unsigned descriptors) {
  FUZZ_CHECK(gpu.mapped.empty() && gpu.imported.empty() && gpu.reserved_bytes == 0,
             "%zu mapped, %zu imported", gpu.mapped.size(), gpu.imported.size());
  FUZZ_CHECK(Descriptor::live() == descriptors, "descriptors are left");
}

void check_words(const Exports& exports, fuzz::Draw& draw) {
  const unsigned which = draw.upto(2);
  const std::string& given = which == 0   ? exports.one.words
                             : which == 1 ? exports.two.words
                                          : exports.ended;
  const std::string words = changed(given, draw);
  auto opened = ImportedMemory::open(driver(), 0, words);
  if (!opened) {
    fuzz::check_words(opened.error().text);
    FUZZ_CHECK(words != exports.one.words && words != exports.two.words, "refused: %s",
               opened.error().text.c_str());
    return;
  }
  FUZZ_CHECK(gpu.imported.empty(), "an import is left");
  const bool one = is_mapped(exports.one), two = is_mapped(exports.two);
  FUZZ_CHECK(one || two, "what was opened is no export");
  FUZZ_CHECK(words == (one ? exports.one.words : exports.two.words),
             "a handle that was changed opens memory");
  FUZZ_CHECK((*opened)->bytes() == (one ? exports.one.bytes : exports.two.bytes), "the size");
}

void check_handle(const Exports& exports, fuzz::Draw& draw) {
  const unsigned which = draw.upto(2);
  const uint64_t place = draw.number<uint8_t>() * uint64_t{512};
  const CUipcMemHandle given = which == 0   ? exports.one.handle(place)
                               : which == 1 ? exports.two.handle(place)
                                            : exports.ended_handle;
  std::string bytes = changed(std::string(given.reserved, sizeof given.reserved), draw);
  const bool same = bytes == std::string(given.reserved, sizeof given.reserved);
  bytes.resize(sizeof given.reserved);
  CUipcMemHandle passed{};
  std::memcpy(passed.reserved, bytes.data(), bytes.size());
  const auto told = preload::read_handle(passed);
  if (!told) {
    FUZZ_CHECK(!same, "it is not known as a handle");
    return;
  }
  auto block = preload::open_shared(driver(), 0, *told);
  if (!block) {
    fuzz::check_words(block.error().text);
    FUZZ_CHECK(!same || which == 2, "refused: %s", block.error().text.c_str());
    return;
  }
  const bool one = is_mapped(exports.one), two = is_mapped(exports.two);
  FUZZ_CHECK(one || two, "what was opened is no export");
  FUZZ_CHECK(told->identity == *identity_of(one ? exports.one.words : exports.two.words),
             "another export is opened than the handle names");
  FUZZ_CHECK(block->address - block->memory->base() < block->memory->bytes(),
             "an address outside what was opened");
  FUZZ_CHECK(!same || block->address - block->memory->base() == place, "another place");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Exports& exports = *new Exports;
  const unsigned descriptors = Descriptor::live();
  fuzz::Draw draw(data, size);
  if (draw.upto(1) == 0)
    check_words(exports, draw);
  else
    check_handle(exports, draw);
  check_nothing_is_left(descriptors);
  return 0;
}
