#include "shared_mark.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "gpu.h"

namespace firn::software {

namespace {
constexpr uint32_t marks_most = 16384;
constexpr size_t file_bytes = marks_most * sizeof(SharedMarkCounters);
constexpr uint64_t magic = 0x746e766e72696631;  // "1firnvnt"

struct Passed {
  uint64_t magic, serial;
  int32_t process, fd;
  uint32_t index;
};
static_assert(sizeof(Passed) <= sizeof(CUipcEventHandle));

/// The counters of this process's own marks. Under Gpu::mutex.
struct OwnMarks {
  MemoryFile file;
  SharedMarkCounters* first = nullptr;
  std::vector<uint32_t> free;
  uint64_t serials = 0;

  bool open() {
    if (first) return true;
    file = MemoryFile("firn-gpu-events", file_bytes);
    void* at = ::mmap(nullptr, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
    if (at == MAP_FAILED) return false;
    first = static_cast<SharedMarkCounters*>(at);
    for (uint32_t i = marks_most; i-- > 0;) free.push_back(i);
    return true;
  }
};
OwnMarks& own_marks() {
  static OwnMarks& all = *new OwnMarks;
  return all;
}
}  // namespace

void SharedMark::complete(uint64_t number) {
  uint64_t before = counters->completed.load();
  while (before < number && !counters->completed.compare_exchange_weak(before, number)) {
  }
}

SharedMark::~SharedMark() {
  if (mapped) {
    ::munmap(mapped, file_bytes);
    return;
  }
  counters->serial.store(0);
  own_marks().free.push_back(index);
}

std::shared_ptr<SharedMark> make_shared_mark() {
  OwnMarks& all = own_marks();
  if (!all.open() || all.free.empty()) return nullptr;
  auto mark = std::make_shared<SharedMark>();
  mark->index = all.free.back();
  all.free.pop_back();
  mark->counters = all.first + mark->index;
  mark->counters->recorded.store(0);
  mark->counters->completed.store(0);
  mark->counters->serial.store(++all.serials);
  return mark;
}

bool export_mark(const SharedMark& mark, CUipcEventHandle* handle) {
  if (mark.mapped) return false;  // only the maker of the event passes it on
  const Passed passed{magic, mark.counters->serial.load(), ::getpid(), own_marks().file.fd(),
                      mark.index};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &passed, sizeof passed);
  return true;
}

std::shared_ptr<SharedMark> import_mark(const CUipcEventHandle& handle) {
  Passed passed{};
  std::memcpy(&passed, &handle, sizeof passed);
  if (passed.magic != magic || passed.index >= marks_most) return nullptr;
  const std::string path =
      "/proc/" + std::to_string(passed.process) + "/fd/" + std::to_string(passed.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* at = ::mmap(nullptr, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (at == MAP_FAILED) return nullptr;
  auto mark = std::make_shared<SharedMark>();
  mark->mapped = at;
  mark->index = passed.index;
  mark->counters = static_cast<SharedMarkCounters*>(at) + passed.index;
  if (mark->counters->serial.load() != passed.serial) return nullptr;
  return mark;
}

}  // namespace firn::software
